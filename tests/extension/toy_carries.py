"""What the protocol of the package in this folder carries; see `tests/properties/carries.py`."""

from __future__ import annotations

from gateway.ir.calls import InferRequest
from gateway.ir.errors import ErrorCode
from gateway.ir.tensors.datatypes import Datatype
from tests.properties.carries import NOTHING, Carries

_INTEGERS = frozenset({Datatype.INT64})

TOY = Carries(
    codec="toy.http",
    questions=frozenset({InferRequest}),
    datatypes=_INTEGERS,
    reply_datatypes=_INTEGERS,
    binary=False,
    reply_binary=False,
    least_rank=1,
    most_rank=1,
    most_tensors=1,
    plain_models=True,
    versions=False,
    ids=NOTHING,
    parameters=NOTHING,
    tensor_parameters=NOTHING,
    reply_parameters=NOTHING,
    sequences=NOTHING,
    priority=0,
    timeouts=False,
    answers_model=False,
    least_outputs=1,
    selects=False,
    declared=True,
    errors={
        ErrorCode.QUOTA_EXCEEDED: ErrorCode.OVERLOADED,
        ErrorCode.NOT_READY: ErrorCode.UNAVAILABLE,
        ErrorCode.OVERLOADED: ErrorCode.UNAVAILABLE,
        ErrorCode.INTERNAL: ErrorCode.UPSTREAM,
        ErrorCode.CANCELLED: ErrorCode.BAD_UPSTREAM,
    },
)
