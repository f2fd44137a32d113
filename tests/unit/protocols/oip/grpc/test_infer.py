"""Inferences over gRPC: written at once or in full, they are the same to every dialect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef, Sequence
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError, MalformedMessage
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor, items_tensor
from gateway.protocols.oip.grpc.dialects import DIALECTS
from gateway.protocols.oip.grpc.infer import Inferences
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcResponse

X = array_tensor("X", np.arange(6, dtype="<i2").reshape(2, 3))
INFERENCES = Inferences(DEFAULT_LIMITS, DIALECTS["triton"])


def written(write: Any, call: InferRequest) -> Any:
    """Return the bytes that are written, or the error."""
    try:
        return b"".join(write(call, "spare"))
    except GatewayError as error:
        return type(error), error.message


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": None},
        {"model": ModelRef("m", "2")},
        {"id": "abc"},
        {"outputs": (RequestedOutput("Y"),)},
        {"outputs": (RequestedOutput("Y", classes=2),)},
        {"sequence": Sequence("s", start=True)},
        {"priority": 2},
        {"timeout_us": 5},
        {"parameters": {"k": 0.5}},
        {"inputs": (Tensor("X", X.datatype, X.shape, X.data, {"k": 0.5}),)},
        {"inputs": (array_tensor("H", np.zeros(2, "<u2"), Datatype.BF16),)},
        {"inputs": (array_tensor("BIG", np.zeros(4096, "<i4")),)},
        {"id": "\ud800"},
    ],
)
def test_calls_are_alike_written_at_once_and_in_full(dialect: Any, fields: dict[str, Any]) -> None:
    """What a call says is written, and what cannot be asked is refused, in either way alike."""
    call = InferRequest(**{"model": ModelRef("m"), "inputs": (X,), **fields})
    inferences = Inferences(DEFAULT_LIMITS, dialect)
    in_full = written(inferences._written, call)
    for _ in range(2):
        assert in_full == written(inferences.encode_call, call)


def replied(*outputs: Tensor) -> GrpcResponse:
    """Return an answer as a server sends it."""
    reply = InferResponse(model=ModelRef("m"), outputs=outputs)
    message = INFERENCES.encode_reply(InferRequest(model=ModelRef("m")), reply)
    return GrpcResponse((b"".join(message),))


def test_outputs_that_were_not_asked_for_are_dropped() -> None:
    """KServe returns all outputs, whatever was asked for."""
    call = InferRequest(model=ModelRef("m"), outputs=(RequestedOutput("Y"),))
    wire = replied(X, array_tensor("Y", np.zeros(2, "<i4")))
    found = Inferences(DEFAULT_LIMITS, DIALECTS["kserve"]).decode_reply(call, wire, wire.view)
    assert ["Y"] == [tensor.name for tensor in found.outputs]


def test_an_output_that_was_asked_for_must_come() -> None:
    """An answer without it is none to this call."""
    call = InferRequest(model=ModelRef("m"), outputs=(RequestedOutput("Y"),))
    wire = replied(X)
    with pytest.raises(MalformedMessage, match="response lacks the requested output 'Y'"):
        INFERENCES.decode_reply(call, wire, wire.view)


def test_classes_are_written_as_c_prints_them() -> None:
    """Values of classes have six digits, as Triton writes them."""
    call = InferRequest(model=ModelRef("m"), outputs=(RequestedOutput("X", classes=1),))
    reply = InferResponse(model=ModelRef("m"), outputs=(items_tensor("X", (1,), [b"0.5:1"]),))
    message = pb.ModelInferResponse.FromString(b"".join(INFERENCES.encode_reply(call, reply)))
    assert [b"\x0a\0\0\x000.500000:1"] == list(message.raw_output_contents)
