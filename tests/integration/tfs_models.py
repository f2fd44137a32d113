"""The models of the recordings in tests/golden/tfs, as callables, and their configuration."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.schema import tensorflow_messages_pb2 as pb

GOLDEN = Path(__file__).parents[1] / "golden" / "tfs"
_HERE = "tests.integration.tfs_models"

Arrays = dict[str, npt.NDArray[Any]]


@cache
def recorded(folder: str) -> list[dict[str, Any]]:
    """Return the entries of the recordings in a folder."""
    found: list[dict[str, Any]] = json.loads((GOLDEN / folder / "index.json").read_text("utf-8"))[
        "entries"
    ]
    return found


@declares(
    inputs=(TensorMetadata("x", Datatype.FP32, (-1,)),),
    outputs=(TensorMetadata("y", Datatype.FP32, (-1,)),),
)
def half(inputs: Arrays) -> Arrays:
    """Return x / 2 + 2."""
    return {"y": inputs["x"] / np.float32(2) + np.float32(2)}


def _features(inputs: Arrays) -> npt.NDArray[np.float32]:
    """Return feature x of each example, an error where there is none."""
    values = []
    for each in inputs["inputs"].reshape(-1):
        feature = pb.Example.FromString(bytes(each)).features.feature
        if "x" not in feature or not feature["x"].float_list.value:
            raise ValueError("Feature: x (data type: float) is required but could not be found.")
        values.append(feature["x"].float_list.value[0])
    return np.array(values, np.float32)


@declares(
    inputs=(TensorMetadata("inputs", Datatype.BYTES, (-1,)),),
    outputs=(
        TensorMetadata("classes", Datatype.BYTES, (-1, 2)),
        TensorMetadata("scores", Datatype.FP32, (-1, 2)),
        TensorMetadata("outputs", Datatype.FP32, (-1,)),
    ),
)
def half_examples(inputs: Arrays) -> Arrays:
    """Return two labels with their scores, and a value, for each example."""
    x = _features(inputs)
    labels = np.array([[b"low", b"high"]] * len(x), object).reshape(-1, 2)
    return {
        "classes": labels,
        "scores": np.stack([1 - x, x], 1),
        "outputs": x / np.float32(2) + np.float32(2),
    }


@declares(
    inputs=tuple([TensorMetadata(f"INPUT{at}", Datatype.INT32, (-1, 16)) for at in range(2)]),
    outputs=tuple([TensorMetadata(f"OUTPUT{at}", Datatype.INT32, (-1, 16)) for at in range(2)]),
)
def add_sub(inputs: Arrays) -> Arrays:
    """Return sum and difference."""
    one, other = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": one + other, "OUTPUT1": one - other}


@declares(
    inputs=(TensorMetadata("image_bytes", Datatype.BYTES, (-1,)),),
    outputs=(
        TensorMetadata("copy_bytes", Datatype.BYTES, (-1,)),
        TensorMetadata("size", Datatype.INT32, (-1,)),
    ),
)
def image_bytes(inputs: Arrays) -> Arrays:
    """Return each image, and its size."""
    images = inputs["image_bytes"]
    sizes = [len(bytes(each)) for each in images.reshape(-1)]
    return {"copy_bytes": images, "size": np.array(sizes, np.int32).reshape(images.shape)}


@declares(
    inputs=(TensorMetadata("x", Datatype.FP32, (-1, -1)),),
    outputs=(TensorMetadata("y", Datatype.FP32, (-1,)),),
)
def digits(inputs: Arrays) -> Arrays:
    """Return the sum of each row."""
    return {"y": inputs["x"].sum(1)}


def _model(name: str, more: str = "") -> str:
    return f'  {name}:\n    backend: python\n    options: {{callable: "{_HERE}:{name}"}}\n{more}'


_DATATYPES = tuple(each.name.lower() for each in Datatype)

MODELS = "".join(
    [
        _model(
            "half",
            "    protocols:\n      tfs:\n        signatures:\n"
            "          tensorflow/serving/classify: {method: classify, model: half_examples}\n"
            "          tensorflow/serving/regress: {method: regress, model: half_examples}\n",
        ),
        _model("half_examples"),
        _model("add_sub", "    protocols: {tfs: {labels: {stable: 1, canary: 1}}}\n"),
        _model("image_bytes"),
        _model("digits"),
        *[
            f"  identity_{name}:\n    backend: python\n"
            f'    options: {{callable: "gateway.backends.examples:identity_{name}"}}\n'
            for name in _DATATYPES
        ],
    ]
)
"""The `models` of a configuration."""
