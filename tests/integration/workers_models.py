"""Models that the tests of workers serve: one that waits, one that ends its process."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gateway.backends import examples
from gateway.backends.examples import Arrays
from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata as Tensor
from gateway.ir.tensors.datatypes import Datatype

INPUTS = (Tensor("INPUT0", Datatype.INT32, (-1, 16)), Tensor("INPUT1", Datatype.INT32, (-1, 16)))
OUTPUTS = (Tensor("OUTPUT0", Datatype.INT32, (-1, 16)), Tensor("OUTPUT1", Datatype.INT32, (-1, 16)))


@declares(inputs=INPUTS, outputs=OUTPUTS)
class Slow:
    """Replies as `simple` does, once a file exists."""

    def __init__(self, flag: str) -> None:
        self._flag = Path(flag)

    def __call__(self, inputs: Arrays) -> Arrays:
        while not self._flag.exists():
            time.sleep(0.005)
        found: Arrays = examples.simple(inputs)
        return found


@declares(inputs=INPUTS, outputs=OUTPUTS)
class Fatal:
    """Ends its process where a file exists, as broken native code would: without a message."""

    def __init__(self, flag: str) -> None:
        if Path(flag).exists():
            os._exit(3)

    def __call__(self, inputs: Arrays) -> Arrays:
        found: Arrays = examples.simple(inputs)
        return found
