"""Model repositories: which versions of a model lie in a folder.

The layout is `<model>/<version>/model.onnx`, as model servers have it; a single file is version 1.
Other backends have the same layout with file names of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from gateway.backends.base import Backend, LoadError
from gateway.backends.model_spec import ModelSpec
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
    """Return the model at *path*, not loaded yet.

    Args:
        name: Of the model.
        path: A file, or a folder whose folders are named by version numbers.
        options: For every version; None for the defaults.
        versions: Those to serve; empty for all that are there.
        settings: `instances` and `queue` of `Backend`.

    Raises:
        LoadError: There is nothing at *path*, or a version is not there.
    """
    how = OnnxOptions() if options is None else options
    return repository(
        name,
        path,
        lambda file, version: OnnxBackend(name, file, version, how, **settings),
        versions=versions,
    )


def repository(
    name: str,
    path: Path,
    make: Callable[[Path, str], Backend],
    *,
    file_names: Sequence[str] = (FILE_NAME,),
    versions: Collection[str] = (),
) -> Versions:
    """Return the model at *path*, with what *make* makes of each version's file and number.

    Args:
        name: Of the model.
        path: A file, or a folder whose folders are named by version numbers.
        make: Called once for each version.
        file_names: What a version's file may be called, the best first.
        versions: Those to serve; empty for all that are there.

    Raises:
        LoadError: There is nothing at *path*, or a version is not there.
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
            make(file, version)
            for version, file in files.items()
            if not versions or version in versions
        ],
    )


def find_versions(
    name: str, path: Path, file_names: Sequence[str] = (FILE_NAME,)
) -> dict[str, Path]:
    """Return the model file of each version at *path*, lowest version first.

    Folders whose names are no numbers are passed over, as model servers do. Of several names a file
    may have, the first that is there counts.

    Raises:
        LoadError: There is nothing there, or no version.
    """
    if path.is_file():
        return {"1": path}
    if not path.is_dir():
        raise LoadError(
            f"model {name!r}: {path} cannot be loaded: there is no such file or folder",
            model=ModelRef(name),
        )
    numbers = sorted(
        (entry.name for entry in path.iterdir() if entry.name.isascii() and entry.name.isdecimal()),
        key=int,
    )
    files = {number: _file(path / number, file_names) for number in numbers}
    if not files:
        needed = f"{path}/<number>/{' or '.join(file_names)}"
        raise LoadError(
            f"model {name!r}: {path} has no versions; needed is {needed}",
            model=ModelRef(name),
        )
    return files


def _file(folder: Path, file_names: Sequence[str]) -> Path:
    files = [folder / name for name in file_names]
    return next((file for file in files if file.is_file()), files[0])


def from_plan(plan: ModelSpec) -> Versions:
    """Return the ONNX model of *plan*.

    Options: `device` (auto, cpu, cuda, tensorrt), `threads`, `warm_up`, `max_batch_size`, `labels`
    (output name to file, one label a line, beside the model), `versions`, `instances`, `queue`.

    Raises:
        LoadError: There is nothing at the plan's path, or a version is not there.
        ValueError: An option is wrong, or there is no path.
    """
    plan.only(
        "device", "threads", "warm_up", "max_batch_size", "labels", "versions", "instances", "queue"
    )
    if plan.path is None:
        raise ValueError(f"model {plan.name!r} needs 'path': a model file, or a folder of versions")
    given = plan.options
    folder = plan.path if plan.path.is_dir() else plan.path.parent
    options = OnnxOptions(
        device=str(given.get("device", "auto")),
        threads=plan.integer("threads", 1) if "threads" in given else None,
        warm_up=plan.flag("warm_up"),
        max_batch_size=plan.integer("max_batch_size", 0, 0) if "max_batch_size" in given else None,
        labels={name: folder / str(file) for name, file in plan.mapping("labels").items()},
    )
    return onnx_model(
        plan.name,
        plan.path,
        options,
        versions=plan.texts("versions"),
        instances=plan.integer("instances", 1),
        queue=plan.integer("queue", 256, least=0),
    )
