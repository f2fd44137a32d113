"""Writes the model that its first argument names into the folder that the second one names."""

import sys
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec


class Digits(mlflow.pyfunc.PythonModel):  # type: ignore[misc]  # it has no types
    """Sums of rows; one tensor without a name."""

    signature = ModelSignature(
        Schema([TensorSpec(np.dtype("float32"), (-1, 4))]),
        Schema([TensorSpec(np.dtype("float32"), (-1,))]),
    )

    def predict(self, _context: Any, model_input: Any, params: Any = None) -> Any:
        """Return the sums."""
        return np.asarray(model_input).sum(axis=1)


class AddSub(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Sum and difference of two tensors."""

    signature = ModelSignature(
        Schema([TensorSpec(np.dtype("int64"), (-1, 2), name) for name in ("INPUT0", "INPUT1")]),
        Schema([TensorSpec(np.dtype("int64"), (-1, 2), name) for name in ("OUTPUT0", "OUTPUT1")]),
    )

    def predict(self, _context: Any, model_input: Any, params: Any = None) -> Any:
        """Return both."""
        one, other = np.asarray(model_input["INPUT0"]), np.asarray(model_input["INPUT1"])
        return {"OUTPUT0": one + other, "OUTPUT1": one - other}


class Frame(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """A table in, a table out, and a parameter."""

    signature = ModelSignature(
        Schema([ColSpec("double", "a"), ColSpec("long", "b"), ColSpec("string", "s")]),
        Schema([ColSpec("double", "total"), ColSpec("string", "text")]),
        ParamSchema([ParamSpec("scale", DataType.double, 1.0)]),
    )

    def predict(self, _context: Any, model_input: Any, params: Any = None) -> Any:
        """Return totals and texts."""
        scale = (params or {}).get("scale", 1.0)
        total = (model_input["a"] + model_input["b"]) * scale
        return pd.DataFrame({"total": total, "text": model_input["s"].astype(str)})


MODELS: dict[str, Any] = {"digits": Digits, "add_sub": AddSub, "frame": Frame}

if __name__ == "__main__":
    model = MODELS[sys.argv[1]]
    mlflow.pyfunc.save_model(sys.argv[2], python_model=model(), signature=model.signature)
