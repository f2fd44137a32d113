"""Tensors that are still arriving: found, judged, waited for."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, ModelReadyRequest, StreamInferRequest
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.data import RawData, StreamedData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidTensor
from gateway.ir.streaming_body import can_cut_through, streaming_body_of, with_buffered_body
from gateway.ir.tensor import Tensor, as_items, as_numpy, as_raw, streamed_tensor
from tests.fakes import FakeArriving

HERE = Tensor("here", Datatype.UINT8, (2,), RawData(memoryview(b"ab")))


def tensor(name: str, source: FakeArriving, start: int, size: int) -> Tensor:
    return streamed_tensor(name, Datatype.UINT8, (size,), StreamedData(source, start, size))


def body() -> FakeArriving:
    return FakeArriving(b"{}abcdefgh", 2)


def call(*inputs: Tensor) -> InferRequest:
    return InferRequest(model=ModelRef("m"), inputs=inputs)


def test_what_is_waited_for_is_found() -> None:
    """The source of arriving inputs is found in an inference and in a stream, and nowhere else."""
    source = body()
    waiting = call(HERE, tensor("a", source, 2, 8))
    assert source is streaming_body_of(waiting)
    assert source is streaming_body_of(StreamInferRequest(model=ModelRef("m"), request=waiting))
    assert streaming_body_of(call(HERE)) is None
    assert streaming_body_of(ModelReadyRequest(model=ModelRef("m"))) is None


def test_what_lies_as_it_came_can_pass() -> None:
    """Inputs that are the end of a call, in the order of their bytes and all of them, can pass."""
    source = body()
    first, second = tensor("a", source, 2, 3), tensor("b", source, 5, 5)
    assert can_cut_through(call(first, second))
    assert can_cut_through(call(HERE, first, second))


@pytest.mark.parametrize("places", [(1, 0), (0,), (1,), (0, 2, 1), (0, 1, 2), (2,), ()])
def test_what_was_changed_cannot_pass(places: tuple[int, ...]) -> None:
    """Another order, an input left out or something behind them needs the whole."""
    source = body()
    inputs = (tensor("a", source, 2, 3), tensor("b", source, 5, 5), HERE)
    assert not can_cut_through(call(*[inputs[place] for place in places]))


def test_two_sources_cannot_pass() -> None:
    """Inputs of two messages are no end of one."""
    one, other = body(), body()
    assert not can_cut_through(call(tensor("a", one, 2, 3), tensor("b", other, 5, 5)))


async def test_a_landed_call_has_its_bytes() -> None:
    """Each input is a view of the one body; the wire origin, which says otherwise, is dropped."""
    source = body()
    waiting = call(HERE, tensor("a", source, 2, 3), tensor("b", source, 5, 5))
    waiting = waiting.with_context(origin=Origin("oip.http", None))
    found = await with_buffered_body(waiting)
    assert isinstance(found, InferRequest)
    assert [b"ab", b"abc", b"defgh"] == [bytes(as_raw(each)) for each in found.inputs]
    assert found.context.origin is None
    assert streaming_body_of(found) is None
    assert 1 == source.landed


async def test_a_landed_stream_has_its_bytes() -> None:
    """The request within a stream's call is made whole."""
    source = body()
    waiting = call(tensor("a", source, 2, 8))
    found = await with_buffered_body(StreamInferRequest(model=ModelRef("m"), request=waiting))
    assert isinstance(found, StreamInferRequest)
    assert b"abcdefgh" == bytes(as_raw(found.request.inputs[0]))


async def test_a_whole_call_is_itself() -> None:
    """Nothing is copied of a call that waits for nothing."""
    whole = call(HERE).changed(context=Context(request_id="r"))
    assert whole is await with_buffered_body(whole)


def test_bytes_that_are_not_here_cannot_be_read() -> None:
    """Reading them is an error that says so, not rubbish; their number and equality are known."""
    source = body()
    waiting = tensor("a", source, 2, 8)
    for read in (as_raw, as_numpy):
        with pytest.raises(InvalidTensor, match="'a' was read before its body was received"):
            read(waiting)
    with pytest.raises(InvalidTensor, match="'a' has datatype UINT8"):
        as_items(waiting)
    assert 8 == waiting.nbytes
    assert waiting == waiting.renamed("a")
    assert waiting != tensor("a", source, 2, 7)


def test_their_number_is_checked() -> None:
    """Bytes that are announced must be what shape and datatype need."""
    with pytest.raises(InvalidTensor, match=r"'a' has 8 bytes, shape \[3\] of FP32 needs 12"):
        streamed_tensor("a", Datatype.FP32, (3,), StreamedData(body(), 2, 8))
