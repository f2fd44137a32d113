"""Inferences over gRPC: written at once or in full, they are the same to every dialect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef, Sequence
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor
from gateway.protocols.oip.grpc_dialects import DIALECTS
from gateway.protocols.oip.grpc_infer import Inferences

X = array_tensor("X", np.arange(6, dtype="<i2").reshape(2, 3))


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
