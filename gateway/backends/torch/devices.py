"""Where an instance of a PyTorch model runs: how arrays get there, and results back.

An instance has one of these to itself, and one inference at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gateway.backends.torch.tensors import array_of, dtype_of, tensor_of
from gateway.ir.datatypes import Datatype

Given = Sequence[tuple[Datatype, npt.NDArray[Any]]]
Call = Callable[[Sequence[Any]], Sequence[Any]]
"""From tensors on the device to the outputs that are wanted, on any device."""


class Runner(Protocol):
    """Runs a program on a device."""

    def __call__(self, call: Call, given: Given, /) -> list[npt.NDArray[Any]]:
        """Return the outputs of *call* for the inputs *given*; blocks until they are there."""
        ...


class CpuRunner:
    """Runs on the CPU, in the thread that asks.

    Args:
        torch: The module.
        copies: The program writes into its inputs, which must not change what came in.
    """

    def __init__(self, torch: Any, *, copies: bool) -> None:
        self._torch = torch
        self._copies = copies

    def __call__(self, call: Call, given: Given, /) -> list[npt.NDArray[Any]]:
        """Return the outputs of *call*."""
        torch = self._torch
        with torch.inference_mode():
            tensors = [
                tensor_of(torch, array, datatype, copy=self._copies) for datatype, array in given
            ]
            return [array_of(torch, tensor) for tensor in call(tensors)]


class StreamRunner:
    """Runs on a stream of a GPU, beside the streams of other instances.

    Inputs are laid into pinned memory that is kept for the next inference, copied from there
    without waiting, and outputs are copied into pinned memory that goes out with the answer. The
    thread waits once, at the end, and asleep.

    Args:
        torch: The module.
        device: Where the program is.
        on_stream: Makes what is done within it be done on the instance's stream.
        wait: Returns when all that was done on the stream is done.
        pinned: False where there is no GPU to pin memory for, as in tests.
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
        self._pinned = pinned
        self._staging: list[Any] = []

    def __call__(self, call: Call, given: Given, /) -> list[npt.NDArray[Any]]:
        """Return the outputs of *call*."""
        torch = self._torch
        with torch.inference_mode(), self._on_stream():
            tensors = [
                self._sent(place, datatype, array) for place, (datatype, array) in enumerate(given)
            ]
            found = call(tensors)
            landed = [self._landing(tensor) for tensor in found]
            self._wait()
            return [array_of(torch, tensor) for tensor in landed]

    def _sent(self, place: int, datatype: Datatype, array: npt.NDArray[Any]) -> Any:
        """Return an input on the device; the copy may still be on its way."""
        dtype = dtype_of(self._torch, datatype)
        if array.nbytes == 0:
            return self._torch.empty(array.shape, dtype=dtype, device=self._device)
        staged = self._staged(place, array.nbytes)
        np.copyto(staged.numpy().view(datatype.numpy_dtype).reshape(array.shape), array)
        tensor = staged.view(dtype).reshape(array.shape)
        # Into memory of its own: the staging is written again for the next inference.
        sent = self._torch.empty(array.shape, dtype=dtype, device=self._device)
        return sent.copy_(tensor, non_blocking=True)

    def _staged(self, place: int, size_bytes: int) -> Any:
        while place >= len(self._staging):
            self._staging.append(self._torch.empty(0, dtype=self._torch.uint8))
        if self._staging[place].numel() < size_bytes:
            room = 1 << (size_bytes - 1).bit_length()
            self._staging[place] = self._torch.empty(
                room, dtype=self._torch.uint8, pin_memory=self._pinned
            )
        return self._staging[place][:size_bytes]

    def _landing(self, tensor: Any) -> Any:
        """Return memory of the CPU that *tensor* is being copied into."""
        if tensor.device.type == "cpu" and self._pinned:
            return tensor
        landing = self._torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=self._pinned
        )
        return landing.copy_(tensor, non_blocking=True)


def stream_runner(torch: Any, device: Any) -> StreamRunner:
    """Return a runner with a new stream of *device*, a CUDA one."""
    stream = torch.cuda.Stream(device)
    done = torch.cuda.Event(blocking=True)  # sleeps; the default spins on a core

    def wait() -> None:
        done.record(stream)
        done.synchronize()

    return StreamRunner(torch, device, on_stream=partial(torch.cuda.stream, stream), wait=wait)


def device_of(torch: Any, wanted: str) -> Any:
    """Return the device that "auto", "cpu", "cuda" or "cuda:N" means here.

    Raises:
        LookupError: There is none such.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not count):
        return torch.device("cpu")
    index = 0 if wanted in {"auto", "cuda"} else int(wanted.removeprefix("cuda:"))
    if index >= count:
        there = f"{count} CUDA devices" if count else "no CUDA device"
        raise LookupError(f"device {wanted!r} is not available here: PyTorch sees {there}")
    return torch.device("cuda", index)
