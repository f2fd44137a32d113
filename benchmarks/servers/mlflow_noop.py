"""Writes a model of MLflow that does nothing into the folder that its first argument names.

It runs in the environment of MLflow. BENCH_ANSWER names a file with the outputs, BENCH_INPUTS one
with the inputs, without their elements.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

_DTYPES = {"INT32": "int32", "FP32": "float32"}


class NoOp(mlflow.pyfunc.PythonModel):  # type: ignore[misc]  # it has no types
    """Returns the same outputs for any request."""

    def __init__(self, outputs: dict[str, Any]) -> None:
        self._outputs = outputs

    def predict(self, _context: Any, _model_input: Any) -> Any:
        """Handle one request."""
        return self._outputs


def _specs(tensors: list[dict[str, Any]]) -> Schema:
    return Schema(
        [
            TensorSpec(np.dtype(_DTYPES[each["datatype"]]), (-1, *each["shape"][1:]), each["name"])
            for each in tensors
        ]
    )


def main() -> None:
    """Write the model."""
    outputs = json.loads(Path(os.environ["BENCH_ANSWER"]).read_text())
    inputs = json.loads(Path(os.environ["BENCH_INPUTS"]).read_text())
    arrays = {
        each["name"]: np.array(each["data"], _DTYPES[each["datatype"]]).reshape(each["shape"])
        for each in outputs
    }
    signature = ModelSignature(_specs(inputs), _specs(outputs))
    mlflow.pyfunc.save_model(sys.argv[1], python_model=NoOp(arrays), signature=signature)


if __name__ == "__main__":
    main()
