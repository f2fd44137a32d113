"""Calls to record, with a secret in every place that clients write to."""

from __future__ import annotations

from typing import Any

import numpy as np

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, Context, ModelRef, Need
from gateway.ir.tensors.tensor import RequestedOutput, array_tensor, items_tensor
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import Recordable

SECRET = b"seeded-secret-4711"
HEADER = "seeded-header-0815"
FULL = Privacy(payload="full", parameters=True, headers=("x-tenant",))


def request(number: int = 0) -> InferRequest:
    """Return a request with a secret in every place that clients write to."""
    text = SECRET.decode()
    return InferRequest(
        model=ModelRef("fraud", "7"),
        context=Context(
            protocol="oip.http",
            request_id=f"r{number}",
            metadata=(("authorization", HEADER), ("x-tenant", HEADER), ("user-agent", "curl/8")),
            needs=frozenset({Need.NAMES}),
        ),
        inputs=(
            array_tensor("features", np.arange(4, dtype=np.float32)),
            items_tensor("text", (1,), [SECRET]),
        ),
        outputs=(RequestedOutput("y", 2),),
        id="own",
        sequence=CallSequence(9, start=True),
        priority=1,
        parameters={"prompt": text},
    )


def recordable(number: int = 0, **fields: Any) -> Recordable:
    call = request(number)
    reply = InferResponse(
        model=ModelRef("fraud"),
        outputs=(items_tensor("y", (1,), [SECRET]),),
        parameters={"note": SECRET.decode()},
    )
    values: dict[str, Any] = {
        "started_us": 1_700_000_000_000_000 + number,
        "request": call,
        "kind": "InferRequest",
        "context": call.context,
        "took_us": 1500,
        "items": [(1400, reply)],
    }
    return Recordable(**values | fields)
