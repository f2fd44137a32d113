"""Models that wait: one until its caller leaves, with a list of its jobs, and one with its load."""

from __future__ import annotations

import threading
from typing import Any

from gateway.backends.base import Job
from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype

RUNNING: list[Job] = []
MAY_LOAD = threading.Event()


@declares(
    inputs=(TensorMetadata("x", Datatype.INT32, None),),
    outputs=(TensorMetadata("y", Datatype.INT32, None),),
)
def wait(inputs: dict[str, Any], job: Job) -> dict[str, Any]:
    """Wait until the caller has left, for ten seconds at most."""
    RUNNING.append(job)
    job.cancelled.wait(10)
    RUNNING.remove(job)
    return {"y": inputs["x"]}


class Late:
    """A model that waits until it may load, for ten seconds at most."""

    def __init__(self) -> None:
        MAY_LOAD.wait(10)

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs
