"""ReloadableModel: the gateway's own models, loaded again and unloaded while they are served."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gateway.backends.base import LoadError
from gateway.backends.python import PythonBackend
from gateway.backends.reloadable import ReloadableModel
from gateway.backends.versions import Versions
from gateway.ir.calls import (
    InferRequest,
    ModelLoadRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import NotReady, Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from tests.fakes import settle

M = ModelRef("m")
LOAD, UNLOAD, INFER = ModelLoadRequest(model=M), ModelUnloadRequest(model=M), InferRequest(model=M)
OUT = (TensorMetadata("VERSION", Datatype.INT32, (1,)),)


class Folder:
    """A model folder with versions; the version None cannot be loaded."""

    def __init__(self, *versions: str | None) -> None:
        self.versions: Sequence[str | None] = versions
        self.made: list[Versions] = []

    def __call__(self) -> Versions:
        made = Versions("m", [_backend(version) for version in self.versions])
        self.made.append(made)
        return made


class _Broken(PythonBackend):
    def load(self) -> None:
        raise LoadError("model 'm': file is damaged", model=self.model)


def _backend(version: str | None) -> PythonBackend:
    kind = PythonBackend if version is not None else _Broken
    number = np.array([int(version or 0)], np.int32)
    return kind("m", lambda _inputs: {"VERSION": number}, version or "9", inputs=(), outputs=OUT)


async def test_a_model_unloads_and_loads() -> None:
    """An unloaded model is not ready, rejects inferences and is listed as unloaded."""
    model = ReloadableModel(Folder("1"))
    await model.start()
    await model(UNLOAD)
    assert (False, True) == (await model(ModelReadyRequest(model=M)), model.is_unloaded)
    expected = RepositoryEntry("m", "1", ModelState.UNAVAILABLE, "unloaded")
    assert (expected,) == await model(RepositoryIndexRequest())
    with pytest.raises(NotReady):
        await model(INFER)
    await model(UNLOAD)  # once more does no harm
    await model(LOAD)
    assert (True, False) == (model.ready(), model.is_unloaded)
    assert (RepositoryEntry("m", "1", ModelState.READY),) == await model(RepositoryIndexRequest())
    await model.stop()


async def test_loading_finds_new_versions() -> None:
    """Loading serves the versions now in the folder, and unloads the previous ones."""
    folder = Folder("1")
    model = ReloadableModel(folder)
    await model.start()
    folder.versions = ("1", "2")
    await model(LOAD)
    assert "2" == (await model(INFER)).model.version
    await model.stop()
    assert [False, False] == [made.ready() for made in folder.made]


async def test_a_failed_load_keeps_the_loaded_versions() -> None:
    """The previous versions stay ready."""
    folder = Folder("1")
    model = ReloadableModel(folder)
    await model.start()
    folder.versions = ("1", None)
    with pytest.raises(LoadError, match="damaged"):
        await model(LOAD)
    assert "1" == (await model(INFER)).model.version
    assert (RepositoryEntry("m", "1", ModelState.READY),) == model.entries()
    await model.stop()


async def test_a_model_being_loaded_is_listed_as_loading() -> None:
    """The index has LOADING after an unload."""
    seen: list[ModelState] = []

    class Watching(PythonBackend):
        def load(self) -> None:
            seen.extend(entry.state for entry in model.entries())
            super().load()

    def make() -> Versions:
        return Versions(
            "m", [Watching("m", lambda _inputs: {"VERSION": 1}, "1", inputs=(), outputs=OUT)]
        )

    model = ReloadableModel(make)
    await model(UNLOAD)
    await model(LOAD)
    assert [ModelState.LOADING] == seen
    await settle()
    await model.stop()


async def test_load_parameters_are_rejected() -> None:
    """Only the configuration defines the gateway's own models."""
    model = ReloadableModel(Folder("1"))
    with pytest.raises(Unsupported, match="the call has 'config'"):
        await model(ModelLoadRequest(model=M, parameters={"config": "{}"}))
