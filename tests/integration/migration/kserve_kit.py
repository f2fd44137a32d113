"""The command lines of `deploy/kserve` as KServe renders them, and a small model for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.integration import fork_server
from tests.integration.cli_kit import Running, started
from tests.unit.backends.onnx_models import ELEMENT_TYPES, model

DEPLOY = Path(__file__).parents[3] / "deploy" / "kserve"
NAME = "main.http+grpc"
ONNX = model(
    [("Add", ["X", "X"], ["Y"])],
    [("X", ELEMENT_TYPES["FP32"], ["batch", 2])],
    [("Y", ELEMENT_TYPES["FP32"], ["batch", 2])],
)
BODY = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2]}]}
CONFIG = """
name: "other"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def rendered(file: str, name: str, **values: str) -> list[str]:
    """Return the arguments of the container as KServe renders them, with other ports and folders."""
    document = yaml.safe_load((DEPLOY / file).read_text())
    spec = document["spec"]
    for key in ("transformer", "predictor"):
        if "containers" in spec.get(key, {}):
            spec = spec[key]
            break
    (words,) = [each["args"] for each in spec["containers"] if "tensor-gateway" in each["image"]]
    found = [word.replace("{{.Name}}", name) for word in words]
    for key, value in values.items():
        option = f"--{key}="
        found = [each for each in found if not each.startswith(option)] + [f"{option}{value}"]
    return found


@contextmanager
def serving(*words: str) -> Iterator[Running]:
    """Run a command line, and wait until it listens."""
    stderr, writer = os.pipe()
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123  # no path
        process = fork_server.start(words, nothing.fileno(), writer)
    os.close(writer)
    with started(Running(process, os.fdopen(stderr))) as running:
        yield running
