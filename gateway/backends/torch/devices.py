"""Runners: each runs one instance of a PyTorch model, and copies its inputs and outputs.

A runner belongs to one instance, which runs one inference at a time.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gateway.backends.torch.tensors import array_of, dtype_of, tensor_of
from gateway.ir.tensors.datatypes import Datatype

InputArrays = Sequence[tuple[Datatype, npt.NDArray[Any]]]
ProgramCall = Callable[[Sequence[Any]], Sequence[Any]]
"""From tensors on the device to the requested outputs, on any device."""


class Runner(Protocol):
    """Runs a program on a device."""

    def __call__(self, call: ProgramCall, inputs: InputArrays, /) -> list[npt.NDArray[Any]]:
        """Return the outputs of *call* for *inputs*; block until they are complete."""
        ...


class CpuRunner:
    """Runs on the CPU, in the calling thread.

    Args:
        torch: The module.
        copies: Copy the inputs, because the program writes into them.
    """

    def __init__(self, torch: Any, *, copies: bool) -> None:
        self._torch = torch
        self._should_copy = copies

    def __call__(self, call: ProgramCall, inputs: InputArrays, /) -> list[npt.NDArray[Any]]:
        """Return the outputs of *call*."""
        torch = self._torch
        with torch.inference_mode():
            tensors = [
                tensor_of(torch, array, datatype, copy=self._should_copy)
                for datatype, array in inputs
            ]
            return [array_of(torch, tensor) for tensor in call(tensors)]


class StreamRunner:
    """Runs on its own stream of a GPU.

    Inputs are copied into pinned memory, which is reused, and from there to the GPU without
    blocking. Outputs are copied into pinned memory that belongs to the reply. The thread sleeps
    once, until the stream has finished.

    Args:
        torch: The module.
        device: The program's device.
        on_stream: Context manager that selects the stream.
        wait: Blocks until the stream has finished.
        pinned: False to use pageable memory without a GPU, as in tests.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        *,
        on_stream: Callable[[], AbstractContextManager[Any]],
        wait: Callable[[], None],
        pinned: bool = True,
    ) -> None:
        self._torch = torch
        self._device = device
        self._on_stream = on_stream
        self._wait = wait
        self._is_pinned = pinned
        self._staging: list[Any] = []

    def __call__(self, call: ProgramCall, inputs: InputArrays, /) -> list[npt.NDArray[Any]]:
        """Return the outputs of *call*."""
        torch = self._torch
        with torch.inference_mode(), self._on_stream():
            tensors = [
                self._copy_to_device(index, datatype, array)
                for index, (datatype, array) in enumerate(inputs)
            ]
            outputs = [self._copy_to_cpu(tensor) for tensor in call(tensors)]
            self._wait()
            return [array_of(torch, tensor) for tensor in outputs]

    def _copy_to_device(self, index: int, datatype: Datatype, array: npt.NDArray[Any]) -> Any:
        """Return an input on the device; the copy may not have finished."""
        dtype = dtype_of(self._torch, datatype)
        if array.nbytes == 0:
            return self._torch.empty(array.shape, dtype=dtype, device=self._device)
        staging = self._staging_buffer(index, array.nbytes)
        np.copyto(staging.numpy().view(datatype.numpy_dtype).reshape(array.shape), array)
        tensor = staging.view(dtype).reshape(array.shape)
        # A copy in every case, because the next inference overwrites the staging buffer.
        copy = self._torch.empty(array.shape, dtype=dtype, device=self._device)
        return copy.copy_(tensor, non_blocking=True)

    def _staging_buffer(self, index: int, size_bytes: int) -> Any:
        while index >= len(self._staging):
            self._staging.append(self._torch.empty(0, dtype=self._torch.uint8))
        if self._staging[index].numel() < size_bytes:
            capacity = 1 << (size_bytes - 1).bit_length()
            self._staging[index] = self._torch.empty(
                capacity, dtype=self._torch.uint8, pin_memory=self._is_pinned
            )
        return self._staging[index][:size_bytes]

    def _copy_to_cpu(self, tensor: Any) -> Any:
        """Return an output in CPU memory; the copy may not have finished."""
        if tensor.device.type == "cpu" and self._is_pinned:
            return tensor
        copy = self._torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=self._is_pinned
        )
        return copy.copy_(tensor, non_blocking=True)


def stream_runner(torch: Any, device: Any) -> StreamRunner:
    """Return a runner with a new stream of the CUDA *device*."""
    stream = torch.cuda.Stream(device)
    done = torch.cuda.Event(blocking=True)  # sleep instead of spinning

    def wait() -> None:
        done.record(stream)
        done.synchronize()

    return StreamRunner(torch, device, on_stream=partial(torch.cuda.stream, stream), wait=wait)


def device_of(torch: Any, name: str) -> Any:
    """Return the device for "auto", "cpu", "cuda" or "cuda:N" on this machine.

    Raises:
        LookupError: The device does not exist.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    index = 0 if name in {"auto", "cuda"} else int(name.removeprefix("cuda:"))
    if index >= count:
        devices = f"{count} CUDA devices" if count else "no CUDA device"
        raise LookupError(f"device {name!r} is not available: PyTorch finds {devices}")
    return torch.device("cuda", index)
