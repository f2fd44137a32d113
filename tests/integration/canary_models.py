"""Two versions of a model: the second takes three times as long, and fails each twentieth call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from gateway.api.backend import Job
from gateway.backends import examples
from gateway.backends.examples import Arrays
from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata as Tensor
from gateway.ir.tensors.datatypes import Datatype

STABLE_S = 0.01
INPUTS = (Tensor("INPUT0", Datatype.INT32, (-1, 16)), Tensor("INPUT1", Datatype.INT32, (-1, 16)))
OUTPUTS = (Tensor("OUTPUT0", Datatype.INT32, (-1, 16)), Tensor("OUTPUT1", Datatype.INT32, (-1, 16)))


@declares(inputs=INPUTS, outputs=OUTPUTS)
def stable(inputs: Arrays, job: Job) -> Arrays:
    """Take 10 ms."""
    job.cancelled.wait(STABLE_S)
    found: Arrays = examples.simple(inputs)
    return found


@declares(inputs=INPUTS, outputs=OUTPUTS)
class Canary:
    """Take 30 ms, and fail each twentieth call."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count(1)

    def __call__(self, inputs: Arrays, job: Job) -> Arrays:
        job.cancelled.wait(3 * STABLE_S)
        if next(self._numbers) % 20 == 0:
            raise ValueError("this version fails on purpose")
        found: Arrays = examples.simple(inputs)
        return found
