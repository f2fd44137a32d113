"""The model `digits` with a text as its input, for protocols that send texts and get numbers."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.backends.onnx import import_runtime
from gateway.cli.demo.samples import SIDE, Scan
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype

Arrays = dict[str, npt.NDArray[Any]]


class DigitTexts:
    """Reads pixels from texts, and returns a probability for each digit."""

    inputs = (TensorMetadata("text", Datatype.BYTES, (-1,)),)
    outputs = (TensorMetadata("probabilities", Datatype.FP32, (-1, 10)),)

    def __init__(self) -> None:
        folder = Path(str(files("gateway.cli.demo"))) / "models" / "digits"
        path = next(folder.rglob("*.onnx"))
        self._session = import_runtime().InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )

    def __call__(self, inputs: Arrays) -> Arrays:
        """Return the probabilities of each text.

        Raises:
            InvalidRequest: A text has something else than pixels.
        """
        try:
            rows = [np.array(bytes(text).split(), np.float32) for text in inputs["text"].tolist()]
            pixels = np.stack(rows).reshape(-1, SIDE * SIDE)
        except ValueError as error:
            raise InvalidRequest(
                f"a text has no {SIDE * SIDE} pixels: {error}; expected numbers"
            ) from error
        (found,) = self._session.run(["probabilities"], {"X": pixels})
        return {"probabilities": np.asarray(found, np.float32)}


def text_of(scan: Scan) -> bytes:
    """Return the pixels of *scan* as a text."""
    return " ".join(map(repr, map(float, np.array(scan.pixels).reshape(-1)))).encode()
