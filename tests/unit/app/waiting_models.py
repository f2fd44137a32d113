"""A model that waits until its caller leaves, and lists the running jobs."""

from __future__ import annotations

from typing import Any

from gateway.backends.base import Job
from gateway.backends.python import declares
from gateway.ir.datatypes import Datatype
from gateway.ir.metadata import TensorMetadata

RUNNING: list[Job] = []


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
