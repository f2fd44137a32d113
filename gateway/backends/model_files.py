"""What backends that load a model from a file have in common: labels, zeros to warm up with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.ir.datatypes import Datatype
from gateway.ir.metadata import TensorMetadata


def read_labels(
    files: Mapping[str, Path], unloadable: Callable[[str], Exception]
) -> dict[str, tuple[str, ...]]:
    """Return the class labels of each output, from files that hold one a line.

    Raises:
        Exception: What *unloadable* makes of the reason; a file cannot be read.
    """
    return {name: _labels(path, unloadable) for name, path in files.items()}


def zeros(tensor: TensorMetadata, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
    """Return an input of zeros, or of empty BYTES; of *shape*, or with 1 for what varies."""
    if shape is None:
        shape = tuple(1 if dim < 0 else dim for dim in tensor.shape or ())
    datatype = Datatype.FP32 if tensor.datatype is None else tensor.datatype
    if datatype is Datatype.BYTES:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, datatype.numpy_dtype)


def one_line(error: BaseException) -> str:
    """Return what *error* says, in one line."""
    return " ".join(str(error).split())


def _labels(path: Path, unloadable: Callable[[str], Exception]) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise unloadable(f"labels in {path} cannot be read: {one_line(error)}") from error
