"""Models that only the tests of cancellation and shutdown need; loaded by their dotted names."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.backends.base import Job
from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata as Tensor
from gateway.ir.tensors.datatypes import Datatype

Arrays = dict[str, npt.NDArray[Any]]

_RELEASED: dict[int, threading.Event] = {}  # of the model `held`, by the numbers of its calls

# How many milliseconds to wait, and a number to tell calls apart.
_IN = (Tensor("INPUT0", Datatype.INT32, (2,)),)


@declares(inputs=_IN, outputs=(Tensor("OUTPUT0", Datatype.INT32, (2,)),))
def watched(inputs: Arrays, job: Job) -> Arrays:
    """Wait, and write to standard error at the start and when the call is cancelled."""
    wait_ms, number = (int(value) for value in inputs["INPUT0"])
    _say("begun", number)
    if job.cancelled.wait(wait_ms / 1000):
        _say("left", number)
    return {"OUTPUT0": np.array([wait_ms, number], np.int32)}


@declares(inputs=_IN, outputs=(Tensor("OUTPUT0", Datatype.INT32, (2,)),))
def held(inputs: Arrays, job: Job) -> Arrays:
    """Wait until another call has the same number and 0 milliseconds."""
    wait_ms, number = (int(value) for value in inputs["INPUT0"])
    released = _RELEASED.setdefault(number, threading.Event())
    if not wait_ms:
        released.set()
    while not released.wait(0.01) and not job.cancelled.is_set():
        pass
    return {"OUTPUT0": np.array([wait_ms, number], np.int32)}


def _say(event: str, number: int) -> None:
    # One write, past Python's buffers: the log writes its lines at the same time.
    os.write(2, json.dumps({"event": event, "number": number}).encode() + b"\n")
