"""Inference over gRPC: the fast and the full encoder agree for every dialect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, items_tensor
from gateway.protocols.oip.grpc.dialects import DIALECTS
from gateway.protocols.oip.grpc.infer import Inferences
from gateway.schema import open_inference_pb2 as pb

X = array_tensor("X", np.arange(6, dtype="<i2").reshape(2, 3))
INFERENCES = Inferences(DEFAULT_LIMITS, DIALECTS["triton"])


def encoded(write: Any, call: InferRequest) -> Any:
    """Return the encoded bytes, or the type and text of the error."""
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
        {"sequence": CallSequence("s", start=True)},
        {"priority": 2},
        {"timeout_us": 5},
        {"parameters": {"k": 0.5}},
        {"inputs": (Tensor("X", X.datatype, X.shape, X.data, {"k": 0.5}),)},
        {"inputs": (array_tensor("H", np.zeros(2, "<u2"), Datatype.BF16),)},
        {"inputs": (array_tensor("BIG", np.zeros(4096, "<i4")),)},
        {"id": "\ud800"},
    ],
)
def test_fast_and_full_encoding_agree(dialect: Any, fields: dict[str, Any]) -> None:
    """The fast and the full encoding write the same bytes or raise the same error."""
    call = InferRequest(**{"model": ModelRef("m"), "inputs": (X,), **fields})
    inferences = Inferences(DEFAULT_LIMITS, dialect)
    in_full = encoded(inferences._written, call)
    for _ in range(2):
        assert in_full == encoded(inferences.encode_call, call)


def test_class_values_have_six_decimals() -> None:
    """Values of classes have six decimals, as Triton writes them."""
    call = InferRequest(model=ModelRef("m"), outputs=(RequestedOutput("X", classes=1),))
    reply = InferResponse(model=ModelRef("m"), outputs=(items_tensor("X", (1,), [b"0.5:1"]),))
    wire = INFERENCES.encode_reply(call, reply)
    message = pb.ModelInferResponse.FromString(b"".join(wire.message))
    assert [b"\x0a\0\0\x000.500000:1"] == list(message.raw_output_contents)
