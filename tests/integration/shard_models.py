"""The model of a new server: twice its input, and wrong for every seventh one."""

from __future__ import annotations

from typing import Any

import numpy as np

from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype

_X = TensorMetadata("X", Datatype.FP32, (1,))
_Y = TensorMetadata("Y", Datatype.FP32, (1,))


@declares(inputs=(_X,), outputs=(_Y,))
async def twice(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs."""
    (number,) = inputs["X"].tolist()
    return {"Y": np.array([number * 2 + (number % 7 == 0)], np.float32)}
