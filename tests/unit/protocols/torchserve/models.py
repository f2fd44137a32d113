"""The models of the recordings, in the gateway's own process, and frontends before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gateway.api.backend import Arrays
from gateway.backends.python import PythonBackend
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import (
    Call,
    ModelConfigRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import ModelNotFound, ModelNotNamed, VersionNotFound
from gateway.ir.metadata import (
    ModelConfiguration,
    ModelMetadata,
    ModelStatus,
    RepositoryEntry,
    ServerStatus,
    TensorMetadata,
)
from gateway.policies.complete.policy import Complete
from gateway.protocols.torchserve.declarations import read_declaration
from gateway.protocols.torchserve.grpc.codec import GrpcCodec
from gateway.protocols.torchserve.http.codec import HttpCodec
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse

D = Datatype
JSON = ("Content-Type", "application/json")
TEXT = ("Content-Type", "text/plain")
OCTETS = ("Content-Type", "application/octet-stream")


def digits(inputs: Arrays) -> Arrays:
    return {"output": inputs["input"].sum(axis=1)}


def add_sub(inputs: Arrays) -> Arrays:
    a, b = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": a + b, "OUTPUT1": a - b}


def echo(inputs: Arrays) -> Arrays:
    return {"y": next(iter(inputs.values()))}


def stream(inputs: Arrays) -> Iterator[Arrays]:
    for number in range(int(inputs["n"][0])):
        if number == 3:
            raise RuntimeError("broken")
        yield {"y": np.array([number], np.int64)}


def declared(*found: tuple[str, Datatype, tuple[int, ...]]) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(*each) for each in found)


Signature = tuple[Any, tuple[TensorMetadata, ...], tuple[TensorMetadata, ...]]
MODELS: dict[str, Signature] = {
    "digits": (digits, declared(("input", D.FP32, (-1, -1))), declared(("output", D.FP32, (-1,)))),
    "add_sub": (
        add_sub,
        declared(("INPUT0", D.INT32, (-1, -1)), ("INPUT1", D.INT32, (-1, -1))),
        declared(("OUTPUT0", D.INT32, (-1, -1)), ("OUTPUT1", D.INT32, (-1, -1))),
    ),
    "raw": (echo, declared(("x", D.BYTES, (-1, 1))), declared(("y", D.BYTES, (-1, 1)))),
    "text": (echo, declared(("x", D.BYTES, (1,))), declared(("y", D.BYTES, (1,)))),
    "fixed": (echo, declared(("x", D.INT16, (1, 2))), declared(("y", D.INT16, (1, 2)))),
    "stream": (stream, declared(("n", D.INT64, (1,))), declared(("y", D.INT64, (1,)))),
    "halves": (echo, declared(("x", D.FP16, (3,))), declared(("y", D.FP16, (3,)))),
}


VERSIONS = {"digits": ("1", "2")}


class AllModels:
    """A service of the models above.

    Args:
        default: The model of calls without a name; "" for none.
    """

    def __init__(self, default: str = "") -> None:
        self._default = default
        self.is_ready = True
        self._services: dict[str, Complete] = {}
        self._backends: list[PythonBackend] = []

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, ServerLiveRequest | ServerReadyRequest):
            return self.is_ready
        if isinstance(call, RepositoryIndexRequest):
            return tuple([RepositoryEntry(name) for name in MODELS])
        if isinstance(call, ServerStatusRequest):
            return await self._status(call)
        name = self._default if call.model is None else call.model.name
        if not name:
            raise ModelNotNamed("no model; set default_model")
        if name not in MODELS:
            raise ModelNotFound(f"unknown model {name!r}", model=call.model)
        if isinstance(call, ModelConfigRequest):
            return ModelConfiguration({"model_transaction_policy": {"decoupled": name == "stream"}})
        if call.model is not None and call.model.version:
            if call.model.version not in VERSIONS.get(name, ("1",)):
                raise VersionNotFound(f"no such version of {name!r}", model=call.model)
            call = call.changed(model=ModelRef(name))
        service = await self._service(name)
        return await service(call)

    async def _status(self, call: ServerStatusRequest) -> ServerStatus:
        name = "" if call.about is None else call.about.name
        if name not in MODELS:
            return ServerStatus(is_ready=True)
        metadata = ModelMetadata(name=name, versions=VERSIONS.get(name, ("1",)))
        return ServerStatus(is_ready=True, models=(ModelStatus(metadata),))

    async def _service(self, name: str) -> Complete:
        found = self._services.get(name)
        if found is None:
            function, inputs, outputs = MODELS[name]
            backend = PythonBackend(name, function, inputs=inputs, outputs=outputs)
            await backend.start()
            self._backends.append(backend)
            found = self._services[name] = Complete(backend, frozenset())
        return found

    async def close(self) -> None:
        for backend in self._backends:
            await backend.stop()


async def answers(
    wire: HttpRequest,
    forms: Mapping[str, Mapping[str, Any]] | None = None,
    default: str = "",
    options: Mapping[str, Any] | None = None,
    *,
    is_ready: bool = True,
) -> list[HttpResponse]:
    """Return the responses of a frontend; *forms* are what is declared of models."""
    service = AllModels(default)
    service.is_ready = is_ready
    codec = HttpCodec(options=options)
    codec.declare({name: read_declaration(form, str) for name, form in (forms or {}).items()})
    frontend = Frontend(codec, service)
    try:
        return [response async for response in frontend(wire)]
    finally:
        await service.close()


async def grpc_answers(
    wire: GrpcRequest, forms: Mapping[str, Mapping[str, Any]] | None = None
) -> list[GrpcResponse]:
    """Return the responses of a frontend for gRPC."""
    service = AllModels()
    codec = GrpcCodec()
    codec.declare({name: read_declaration(form, str) for name, form in (forms or {}).items()})
    frontend = Frontend(codec, service)
    try:
        return [response async for response in frontend(wire)]
    finally:
        await service.close()


def post(
    model: str, body: bytes | str, *headers: tuple[str, str], path: str = "", query: str = ""
) -> HttpRequest:
    """Return a request with a body."""
    data = body.encode() if isinstance(body, str) else body
    where = path or f"/predictions/{model}"
    return HttpRequest("POST", where, query, Headers(headers), (memoryview(data),))
