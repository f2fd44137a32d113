"""Versions: one name, several versions, the highest number by default."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gateway.backends.base import LoadError
from gateway.backends.python import PythonBackend
from gateway.backends.versions import Versions
from gateway.ir.calls import (
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import ModelNotFound
from gateway.ir.metadata import ModelState, RepositoryEntry, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import as_numpy

OUT = (TensorMetadata("VERSION", Datatype.INT32, (1,)),)


def backend(
    version: str, name: str = "m", outputs: Sequence[TensorMetadata] | None = OUT
) -> PythonBackend:
    number = np.array([int(version) if version.isdecimal() else 0], np.int32)
    return PythonBackend(
        name, lambda _inputs: {"VERSION": number}, version, inputs=(), outputs=outputs
    )


@pytest.mark.parametrize(
    ("requested_version", "found"), [("", "10"), ("9", "9"), ("10", "10"), ("2", "2")]
)
async def test_the_highest_version_is_the_default(requested_version: str, found: str) -> None:
    """A request that names a version reaches that version."""
    model = Versions("m", [backend("9"), backend("10"), backend("2")])
    await model.start()
    reply = await model(InferRequest(model=ModelRef("m", requested_version)))
    assert (ModelRef("m", found), [int(found)]) == (
        reply.model,
        as_numpy(reply.outputs[0]).tolist(),
    )
    await model.stop()


@pytest.mark.parametrize("version", ["3", "09", "x", "-1"])
async def test_an_unknown_version_is_not_found(version: str) -> None:
    """The error lists the available versions."""
    model = Versions("m", [backend("9"), backend("2")])
    with pytest.raises(ModelNotFound, match=f"model 'm' has no version '{version}'; it has 2, 9"):
        await model(InferRequest(model=ModelRef("m", version)))


async def test_metadata_lists_all_versions() -> None:
    """The metadata of any version has all of them in numeric order."""
    model = Versions("m", [backend("10"), backend("9")])
    await model.start()
    for version in ("", "9"):
        metadata = await model(ModelMetadataRequest(model=ModelRef("m", version)))
        assert ("m", ("9", "10"), OUT) == (metadata.name, metadata.versions, metadata.outputs)
    await model.stop()


async def test_ready_and_index_follow_loading() -> None:
    """Before loading and after unloading no version is ready."""
    model = Versions("m", [backend("10"), backend("9")])

    async def state() -> tuple[bool, bool, tuple[RepositoryEntry, ...]]:
        ready = await model(ModelReadyRequest(model=ModelRef("m")))
        return model.ready(), ready, await model(RepositoryIndexRequest())

    def entries(state: ModelState) -> tuple[RepositoryEntry, ...]:
        return tuple(RepositoryEntry("m", version, state) for version in ("9", "10"))

    assert (False, False, entries(ModelState.UNAVAILABLE)) == await state()
    await model.start()
    assert (True, True, entries(ModelState.READY)) == await state()
    await model.stop()
    await model.stop()
    assert (False, False, entries(ModelState.UNAVAILABLE)) == await state()


async def test_a_version_that_fails_to_load_unloads_the_others() -> None:
    """Either all versions are loaded or none."""
    good, bad = backend("1"), backend("2", outputs=None)
    with pytest.raises(LoadError, match="does not declare its outputs"):
        await Versions("m", [good, bad]).start()
    assert (False, False) == (good.is_loaded, bad.is_loaded)


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ([], "model 'm' has no versions"),
        (["1", "x"], "model 'm': version 'x' is not a number"),
        (["²"], "model 'm': version '²' is not a number"),
        (["1", "1"], "model 'm' has duplicate versions"),
    ],
)
def test_invalid_versions_are_rejected(versions: list[str], message: str) -> None:
    """Versions are distinct numbers, and at least one."""
    with pytest.raises(ValueError, match=message):
        Versions("m", [backend(version) for version in versions])


async def test_a_call_without_a_model_reaches_the_default_version() -> None:
    """The reply names the highest version."""
    model = Versions("m", [backend("1"), backend("2")])
    await model.start()
    assert ModelRef("m", "2") == (await model(InferRequest())).model
    await model.stop()
