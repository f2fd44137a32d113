"""Tensors of a streaming body: lookup, cut-through, buffering."""

from __future__ import annotations

import pytest

from gateway.ir.bodies.streamed_inputs import can_cut_through, streaming_body_of, with_buffered_body
from gateway.ir.calls import InferRequest, ModelReadyRequest, StreamInferRequest
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.data import RawData, StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy, as_raw, streamed_tensor
from tests.fakes import FakeArriving

RECEIVED = Tensor("here", Datatype.UINT8, (2,), RawData(memoryview(b"ab")))


def tensor(name: str, source: FakeArriving, start: int, size: int) -> Tensor:
    return streamed_tensor(name, Datatype.UINT8, (size,), StreamedData(source, start, size))


def body() -> FakeArriving:
    return FakeArriving(b"{}abcdefgh", 2)


def call(*inputs: Tensor) -> InferRequest:
    return InferRequest(model=ModelRef("m"), inputs=inputs)


def test_streaming_body_of_a_call_is_found() -> None:
    """An inference and a stream call with streamed inputs have a streaming body, others none."""
    source = body()
    waiting = call(RECEIVED, tensor("a", source, 2, 8))
    assert source is streaming_body_of(waiting)
    assert source is streaming_body_of(StreamInferRequest(model=ModelRef("m"), request=waiting))
    assert streaming_body_of(call(RECEIVED)) is None
    assert streaming_body_of(ModelReadyRequest(model=ModelRef("m"))) is None


def test_inputs_in_body_order_can_be_cut_through() -> None:
    """All streamed inputs, in the order of their bytes, must be the end of the call."""
    source = body()
    first, second = tensor("a", source, 2, 3), tensor("b", source, 5, 5)
    assert can_cut_through(call(first, second))
    assert can_cut_through(call(RECEIVED, first, second))


@pytest.mark.parametrize("places", [(1, 0), (0,), (1,), (0, 2, 1), (0, 1, 2), (2,), ()])
def test_changed_inputs_cannot_be_cut_through(places: tuple[int, ...]) -> None:
    """Another order, a missing input or a later input needs the whole body."""
    source = body()
    inputs = (tensor("a", source, 2, 3), tensor("b", source, 5, 5), RECEIVED)
    assert not can_cut_through(call(*[inputs[place] for place in places]))


def test_inputs_of_two_bodies_cannot_be_cut_through() -> None:
    """Inputs of two messages are not the end of one."""
    one, other = body(), body()
    assert not can_cut_through(call(tensor("a", one, 2, 3), tensor("b", other, 5, 5)))


async def test_buffered_call_has_its_bytes() -> None:
    """The body is read once, each input is a view of it, and the outdated origin is dropped."""
    source = body()
    waiting = call(RECEIVED, tensor("a", source, 2, 3), tensor("b", source, 5, 5))
    waiting = waiting.with_context(origin=Origin("oip.http", None))
    found = await with_buffered_body(waiting)
    assert isinstance(found, InferRequest)
    views = [as_raw(each) for each in found.inputs]
    assert [b"ab", b"abc", b"defgh"] == [bytes(view) for view in views]
    assert as_raw(RECEIVED) is views[0]
    assert all(view.obj is source.body for view in views[1:])
    assert found.context.origin is None
    assert streaming_body_of(found) is None
    assert 1 == source.landed


async def test_buffered_stream_call_has_its_bytes() -> None:
    """The body of the inference within a stream call is buffered."""
    source = body()
    waiting = call(tensor("a", source, 2, 8))
    found = await with_buffered_body(StreamInferRequest(model=ModelRef("m"), request=waiting))
    assert isinstance(found, StreamInferRequest)
    assert b"abcdefgh" == bytes(as_raw(found.request.inputs[0]))


async def test_call_without_a_streaming_body_is_unchanged() -> None:
    """A call whose inputs are received is not copied."""
    whole = call(RECEIVED).changed(context=Context(request_id="r"))
    assert whole is await with_buffered_body(whole)


def test_reading_a_streamed_tensor_raises() -> None:
    """Reading raises before the body is received; size and equality are available."""
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


def test_size_of_a_streamed_tensor_is_checked() -> None:
    """The announced bytes must match shape and datatype."""
    with pytest.raises(InvalidTensor, match=r"'a' has 8 bytes, shape \[3\] of FP32 needs 12"):
        streamed_tensor("a", Datatype.FP32, (3,), StreamedData(body(), 2, 8))
