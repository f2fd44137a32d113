"""A model that waits until no caller needs its reply, for tests of whole gateways."""

from __future__ import annotations

import threading
from typing import Any

from gateway.backends.base import Job
from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype

_X = (TensorMetadata("x", Datatype.INT32, (-1, 1)),)

RUNS: list[int] = []
"""Rows of each call that has begun."""

GO_ON = threading.Event()
"""Ends a call that somebody still wants."""

GIVEN_UP = threading.Event()
"""Set when a call ended because nobody wanted it."""


@declares(inputs=_X, outputs=_X)
def patient(inputs: dict[str, Any], job: Job) -> dict[str, Any]:
    """Return the input once the event is set."""
    RUNS.append(len(inputs["x"]))
    while not GO_ON.is_set():
        if job.cancelled.wait(0.005):
            GIVEN_UP.set()
            break
    return {"x": inputs["x"]}
