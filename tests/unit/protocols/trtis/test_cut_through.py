"""TensorRT v1 requests over HTTP with a streaming body."""

from __future__ import annotations

import pytest

from gateway.api.protocol import CutThroughCodec
from gateway.ir.calls import InferRequest, ModelReadyRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidTensor
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.data import RawData, StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.protocols.trtis.http.codec import HttpCodec
from tests.fakes import FakeArriving

CODEC = HttpCodec(MessageLimits(), {})
MODEL = ModelRef("m")
BODY = b"{}abcdefgh"


def call(*inputs: Tensor) -> InferRequest:
    return InferRequest(model=MODEL, inputs=inputs, outputs=(RequestedOutput("y"),), batch_size=2)


def tensors(source: FakeArriving, size: int = 4) -> tuple[Tensor, ...]:
    """Return two inputs of two items each."""
    shape = (size // 2,)
    return tuple(
        Tensor(name, Datatype.UINT8, shape, StreamedData(source, start, size))
        for name, start in (("a", 2), ("b", 2 + size))
    )


def test_cut_through_request_equals_the_whole_request() -> None:
    """The encoded part and the streaming body are the same request."""
    source = FakeArriving(BODY, 2)
    wire = CODEC.encode_cut_through(call(*tensors(source)))
    whole = [
        Tensor(name, Datatype.UINT8, (2,), RawData(memoryview(data)))
        for name, data in (("a", b"abcd"), ("b", b"efgh"))
    ]
    expected = CODEC.encode_call(call(*whole))
    assert isinstance(CODEC, CutThroughCodec)
    assert wire is not None
    assert source is wire.body_stream
    assert (expected.path, expected.headers) == (wire.path, wire.headers)
    assert bytes(expected.view) == bytes(wire.view) + BODY[2:]


def test_other_calls_are_not_cut_through() -> None:
    """Inputs in another order and other calls need the whole body."""
    source = FakeArriving(BODY, 2)
    assert CODEC.encode_cut_through(call(*tensors(source)[::-1])) is None
    assert CODEC.encode_cut_through(ModelReadyRequest(model=MODEL)) is None


def test_sizes_are_checked_before_the_body_is_received() -> None:
    """A size that does not match batch size and shape is rejected."""
    source = FakeArriving(BODY, 2)
    wrong = tuple(Tensor(each.name, each.datatype, (3,), each.data) for each in tensors(source))
    with pytest.raises(InvalidTensor, match="'a' has 4 bytes: batch size 2 of shape"):
        CODEC.encode_cut_through(call(*wrong))
