"""Shared parts of backends that load a model from a file: load errors, labels, warm-up inputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.backends.base import Backend, LoadError
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype


class FileBackend(Backend):
    """One version of a model, loaded from one file.

    Args:
        name: The model's name.
        path: The model file.
        version: A number.
        settings: `instances` and `queue` of `Backend`.

    Attributes:
        path: The model file, which `load` opens.
    """

    def __init__(self, name: str, path: Path, version: str = "1", **settings: Any) -> None:
        super().__init__(name, version, **settings)
        self.path = path

    def check_here(self) -> None:
        """Check that the file can be read. Raises LoadError."""
        try:
            with self.path.open("rb"):
                pass
        except OSError as error:
            raise self.unloadable(str(error.strerror)) from error

    def unloadable(self, text: str) -> LoadError:
        """Return a LoadError that names the model and its file."""
        return LoadError(
            f"model {str(self.model)!r}: {self.path} cannot be loaded: {text}", model=self.model
        )

    def read_labels(self, files: Mapping[str, Path]) -> dict[str, tuple[str, ...]]:
        """Return the class labels of each output, from files with one label per line.

        Raises:
            LoadError: A file cannot be read.
        """
        labels = {}
        for name, path in files.items():
            try:
                labels[name] = tuple(path.read_text(encoding="utf-8").splitlines())
            except (OSError, UnicodeDecodeError) as error:
                reason = one_line(error)
                raise self.unloadable(f"labels in {path} cannot be read: {reason}") from error
        return labels


def zeros(tensor: TensorMetadata, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
    """Return an input of zeros, or of empty BYTES; variable dimensions are 1 without *shape*."""
    if shape is None:
        shape = tuple(1 if dim < 0 else dim for dim in tensor.shape or ())
    datatype = Datatype.FP32 if tensor.datatype is None else tensor.datatype
    if datatype is Datatype.BYTES:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, datatype.numpy_dtype)


def one_line(error: BaseException) -> str:
    """Return the text of *error* in one line."""
    return " ".join(str(error).split())
