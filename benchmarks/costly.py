"""A model with the cost of an accelerator: expensive calls, cheap rows, one call at a time.

It sleeps on its thread and uses no CPU, so the benchmark measures the gateway.
"""

import time

from gateway.backends.examples import Arrays
from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype

CALL_S = 0.002
ROW_S = 0.00005
WIDTH = 16


@declares(
    inputs=(TensorMetadata("X", Datatype.FP32, (-1, WIDTH)),),
    outputs=(TensorMetadata("Y", Datatype.FP32, (-1, WIDTH)),),
)
def costly(inputs: Arrays) -> Arrays:
    """Double each row, in 2 ms and 0.05 ms for each row."""
    rows = inputs["X"]
    time.sleep(CALL_S + ROW_S * len(rows))
    return {"Y": 2 * rows}
