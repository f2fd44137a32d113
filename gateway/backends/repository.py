"""Model repositories: finds the versions of a model in a folder.

The layout is Triton's, `<model>/<version>/model.onnx`; a single file is version 1. Other backends
use the same layout with other file names.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from gateway.api.model_spec import ModelSpec
from gateway.backends.base import Backend, LoadError
from gateway.backends.onnx import OnnxBackend, OnnxOptions
from gateway.backends.versions import Versions
from gateway.ir.context import ModelRef

FILE_NAME = "model.onnx"


def onnx_model(
    name: str,
    path: Path,
    options: OnnxOptions | None = None,
    *,
    versions: Collection[str] = (),
    **settings: Any,
) -> Versions:
    """Return the ONNX model at *path* without loading it.

    Args:
        name: The model's name.
        path: A file, or a folder with one folder per version number.
        options: For every version; None for the defaults.
        versions: The versions to serve; empty for all.
        settings: `instances` and `queue` of `Backend`.

    Raises:
        LoadError: *path* does not exist, or has no such version.
    """
    used = OnnxOptions() if options is None else options
    return repository(
        name,
        path,
        lambda file, version: OnnxBackend(name, file, version, used, **settings),
        versions=versions,
    )


def repository(
    name: str,
    path: Path,
    build: Callable[[Path, str], Backend],
    *,
    file_names: Sequence[str] = (FILE_NAME,),
    versions: Collection[str] = (),
) -> Versions:
    """Return the model at *path* without loading it.

    Args:
        name: The model's name.
        path: A file, or a folder with one folder per version number.
        build: Returns the backend of one version, from its file and its number.
        file_names: Names of a version's file, in order of preference.
        versions: The versions to serve; empty for all.

    Raises:
        LoadError: *path* does not exist, or has no such version.
    """
    files = find_versions(name, path, file_names)
    missing = [version for version in versions if version not in files]
    if missing:
        raise LoadError(
            f"model {name!r}: {path} has no version {missing[0]!r}; it has {', '.join(files)}",
            model=ModelRef(name),
        )
    return Versions(
        name,
        [
            build(file, version)
            for version, file in files.items()
            if not versions or version in versions
        ],
    )


def find_versions(
    name: str, path: Path, file_names: Sequence[str] = (FILE_NAME,)
) -> dict[str, Path]:
    """Return the model file of each version at *path*, lowest version first.

    Like Triton, skip folders whose names are not numbers. Prefer the first existing name of
    *file_names*.

    Raises:
        LoadError: *path* does not exist, or has no version.
    """
    if path.is_file():
        return {"1": path}
    if not path.is_dir():
        raise LoadError(
            f"model {name!r}: {path} cannot be loaded: it does not exist",
            model=ModelRef(name),
        )
    numbers = sorted(
        (entry.name for entry in path.iterdir() if entry.name.isascii() and entry.name.isdecimal()),
        key=int,
    )
    files = {number: _file(path / number, file_names) for number in numbers}
    if not files:
        expected = f"{path}/<number>/{' or '.join(file_names)}"
        raise LoadError(
            f"model {name!r}: {path} has no versions; expected {expected}", model=ModelRef(name)
        )
    return files


def _file(folder: Path, file_names: Sequence[str]) -> Path:
    files = [folder / name for name in file_names]
    return next((file for file in files if file.is_file()), files[0])


def from_spec(spec: ModelSpec) -> Versions:
    """Return the ONNX model of *spec* without loading it.

    Options: `device` (auto, cpu, cuda, tensorrt), `threads`, `warm_up`, `max_batch_size`, `labels`
    (output name to file, one label per line, relative to the model), `versions`, `instances`,
    `queue`.

    Raises:
        LoadError: The path does not exist, or has no such version.
        ValueError: An option is invalid, or the path is missing.
    """
    spec.only(
        "device", "threads", "warm_up", "max_batch_size", "labels", "versions", "instances", "queue"
    )
    options = OnnxOptions(
        device=str(spec.options.get("device", "auto")),
        threads=spec.integer("threads", 1) if "threads" in spec.options else None,
        warm_up=spec.flag("warm_up"),
        max_batch_size=spec.max_batch_size,
        labels=spec.files("labels"),
    )
    return onnx_model(
        spec.name,
        spec.required_path,
        options,
        versions=spec.texts("versions"),
        **spec.pool_settings,
    )
