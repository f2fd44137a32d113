"""The models in a folder that a platform has filled: one file, one model, or a repository.

The forms: a model file, alone or in the folder; `N/model.onnx`; `NAME/N/model.onnx`. A folder of
versions may have a `config.pbtxt`. Links are followed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gateway.migration.importers.triton_repository import (
    ImportedRepository,
    import_model,
    import_repository,
)

_BACKENDS: Final = {".onnx": "onnx", ".pt": "torch", ".pt2": "torch"}
_DEPTH: Final = 4

Fingerprint = tuple[tuple[str, int, int], ...]
"""Paths, sizes and times of the files of a folder."""


class NoModels(Exception):
    """A folder has no model, or is absent; the text says what was found."""


def models_in(folder: Path, name: str) -> ImportedRepository:
    """Return the models of a folder.

    Args:
        folder: The folder, or a model file.
        name: The name of a model that is alone there and has no name of its own.

    Raises:
        NoModels: There is none.
    """
    try:
        found = _models_in(folder, name)
    except OSError as error:
        raise NoModels(f"{folder} cannot be read: {error.strerror}") from error
    if not found.models:
        expected = "expected model.onnx, N/model.onnx or NAME/N/model.onnx"
        reasons = "; ".join(str(each) for each in found.unmapped)
        raise NoModels(f"{folder} has no model; {expected}" + f": {reasons}" * bool(reasons))
    return found


def _models_in(folder: Path, name: str) -> ImportedRepository:
    if folder.is_file():
        return _of_file(folder, name)
    entries = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    files = [each for each in entries if each.is_file() and each.suffix in _BACKENDS]
    if len(files) > 1:
        names = ", ".join(each.name for each in files)
        raise NoModels(f"{folder} has {len(files)} model files: {names}; expected one")
    if files:
        return _of_file(files[0], name)
    if any(each.is_dir() and each.name.isdecimal() for each in entries):
        return import_model(folder, name)
    return import_repository(folder)


def _of_file(file: Path, name: str) -> ImportedRepository:
    found = ImportedRepository()
    suffix = file.resolve().suffix
    if suffix in _BACKENDS:
        found.models[name] = {"backend": _BACKENDS[suffix], "path": str(file.absolute())}
    return found


def fingerprint(folder: Path) -> Fingerprint:
    """Return what tells whether the files of a folder have changed."""
    return tuple(sorted(_files(folder, _DEPTH)))


def _files(path: Path, depth: int) -> Iterator[tuple[str, int, int]]:
    try:
        if not path.is_dir():
            status = path.stat()
            yield str(path), status.st_size, status.st_mtime_ns
            return
        entries = list(path.iterdir()) if depth else []
    except OSError:  # it is absent, or goes away at this moment
        return
    for entry in entries:
        yield from _files(entry, depth - 1)


def configuration_of(found: ImportedRepository) -> dict[str, Any]:
    """Return the keys of a configuration that serves the models."""
    return {"models": found.models, **({"pipelines": found.pipelines} if found.pipelines else {})}
