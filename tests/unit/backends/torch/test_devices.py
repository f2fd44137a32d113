"""Streams and staging of a GPU, on the CPU: copies, reuse and synchronization.

The tests in tests/gpu do the same on a real GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.backends.torch.devices import StreamRunner
from gateway.ir.tensors.datatypes import Datatype

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

pytestmark = pytest.mark.torch


class Stream:
    """A fake stream that records its events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def on(self) -> Iterator[None]:
        self.events.append("on")
        yield
        self.events.append("off")

    def wait(self) -> None:
        self.events.append("wait")


def runner(stream: Stream) -> StreamRunner:
    return StreamRunner(
        torch, torch.device("cpu"), on_stream=stream.on, wait=stream.wait, pinned=False
    )


def as_fp32(*arrays: npt.NDArray[Any]) -> list[tuple[Datatype, npt.NDArray[Any]]]:
    return [(Datatype.FP32, array) for array in arrays]


def test_copies_and_calls_run_on_the_instances_stream() -> None:
    """The thread waits once, at the end."""
    stream = Stream()

    def call(tensors: Sequence[Any]) -> Sequence[Any]:
        stream.events.append("call")
        return [tensors[0] + tensors[1], tensors[0]]

    one, other = np.ones((2, 3), np.float32), np.full((2, 3), 4, np.float32)
    found = runner(stream)(call, as_fp32(one, other))
    assert [(one + other).tolist(), one.tolist()] == [array.tolist() for array in found]
    assert ["on", "call", "wait", "off"] == stream.events


def test_staging_memory_is_reused_and_grows() -> None:
    """Only an input larger than all before needs new memory."""
    runs = runner(Stream())
    addresses = []
    for size in (100, 60, 128, 129):
        array = np.arange(size, dtype=np.float32)
        assert [array.tolist()] == [
            found.tolist() for found in runs(lambda tensors: tensors, as_fp32(array))
        ]
        addresses.append(runs._staging[0].data_ptr())
    sizes = [staged.numel() for staged in runs._staging]
    assert (1, 2, [1024]) == (len(set(addresses[:3])), len(set(addresses)), sizes)


def test_a_reply_is_not_overwritten_by_the_next_inference() -> None:
    """Each inference has output memory of its own."""
    runs = runner(Stream())
    first = runs(lambda tensors: tensors, as_fp32(np.zeros(4, np.float32)))
    second = runs(lambda tensors: tensors, as_fp32(np.ones(4, np.float32)))
    assert ([0.0] * 4, [1.0] * 4) == (first[0].tolist(), second[0].tolist())


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3,)], ids=str)
@pytest.mark.parametrize("datatype", [Datatype.BOOL, Datatype.BF16, Datatype.INT64, Datatype.FP16])
def test_datatypes_and_shapes_round_trip(datatype: Datatype, shape: tuple[int, ...]) -> None:
    """Bits are equal afterwards, also for read-only and strided arrays."""
    array = np.ones((*shape, 2), datatype.numpy_dtype)[..., 0]
    array.flags.writeable = False
    found = runner(Stream())(lambda tensors: tensors, [(datatype, array)])
    assert (array.dtype, array.shape, array.tobytes()) == (
        found[0].dtype,
        found[0].shape,
        found[0].tobytes(),
    )
