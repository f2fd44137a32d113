"""A backend of a package: `gateway.api.Backend` alone, run with threads, a queue and checks."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from gateway.api.backend import Arrays, Backend, Inputs, Job
from gateway.api.model_spec import ModelSpec
from gateway.backends.base import LoadError
from gateway.backends.hosted import versions_of
from gateway.backends.python import PythonBackend
from gateway.backends.versions import Versions
from gateway.ir.calls import InferRequest, ModelMetadataRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, UpstreamError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, as_numpy

M = ModelRef("m")
X, Y = (TensorMetadata(name, Datatype.INT64, (-1,)) for name in "xy")


class Adding(Backend):
    """Adds an option to its input."""

    def __init__(self, spec: ModelSpec) -> None:
        self._by = spec.integer("by", 1)
        self.thread: int | None = None

    @property
    def metadata(self) -> ModelMetadata:
        return ModelMetadata(name="", platform="toy", inputs=(X,), outputs=(Y,))

    def load(self) -> None:
        if self._by > 100:
            raise FileNotFoundError("no such number")

    def unload(self) -> None:
        self._by = 0

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        if job.id == "fail":
            raise ZeroDivisionError("of the package")
        self.thread = threading.get_ident()
        return {"y": inputs["x"] + self._by}


class OnLoop(Adding):
    async def run(self, inputs: Inputs, job: Job, /) -> Arrays:
        return self.infer(inputs, job)


class Counting(Adding):
    decoupled = True

    async def run_stream(self, inputs: Inputs, job: Job, /) -> AsyncIterator[Arrays]:
        for number in range(2):
            yield {"y": inputs["x"] + number}


def request(value: int = 1, **fields: Any) -> InferRequest:
    return InferRequest(model=M, inputs=(array_tensor("x", np.array([value])),), **fields)


def spec(**options: Any) -> ModelSpec:
    return ModelSpec(name="m", options=options)


@pytest.mark.parametrize("kind", [Adding, OnLoop])
async def test_a_backend_is_run(kind: type[Adding]) -> None:
    """Its options, its metadata and its outputs arrive; `infer` runs on a thread, `run` does not."""
    made: list[Adding] = []

    def make(found: ModelSpec) -> Adding:
        made.append(kind(found))
        return made[0]

    versions = versions_of(make, spec(by="41", instances="2"))
    await versions.start()
    metadata = await versions(ModelMetadataRequest(model=M))
    assert ("m", ("1",), "toy") == (metadata.name, metadata.versions, metadata.platform)
    assert [42] == as_numpy((await versions(request())).outputs[0]).tolist()
    assert (kind is OnLoop) == (threading.get_ident() == made[0].thread)
    with pytest.raises(UpstreamError, match="of the package"):
        await versions(request(id="fail"))
    with pytest.raises(InvalidRequest):
        await versions(InferRequest(model=M))
    await versions.stop()


async def test_a_backend_streams() -> None:
    """A decoupled backend has any number of replies."""
    versions = versions_of(Counting, spec())
    await versions.start()
    stream = await versions(StreamInferRequest(model=M, request=request(7)))
    found: list[int] = []
    async for item in stream:
        found += [as_numpy(each)[0] for each in item.outputs]
    assert [7, 8] == found
    await versions.stop()


async def test_an_exception_of_load_is_a_load_error() -> None:
    """The text names the model and the cause."""
    versions = versions_of(Adding, spec(by="101"))
    with pytest.raises(LoadError, match="model 'm version 1' cannot be loaded: FileNotFoundError"):
        await versions.start()


@pytest.mark.parametrize(
    "make",
    [lambda _: PythonBackend("m", print), lambda _: Versions("m", [PythonBackend("m", print)])],
)
def test_backends_of_today_are_taken_as_they_are(make: Any) -> None:
    """A function may return a `gateway.backends.base.Backend`, or all versions."""
    assert "m" == versions_of(make, spec()).name


def test_anything_else_is_refused() -> None:
    """The error says what was made."""
    with pytest.raises(ValueError, match="made a dict; expected a gateway"):
        versions_of(lambda _: {}, spec())
