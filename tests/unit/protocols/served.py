"""Models of recordings, in the gateway's own process, as a service behind frontends of codecs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from gateway.ir.errors import ModelNotFound, ModelNotNamed, VersionNotFound
from gateway.ir.metadata import (
    ModelConfiguration,
    ModelMetadata,
    ModelStatus,
    RepositoryEntry,
    ServerStatus,
    TensorMetadata,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.policies.complete.policy import Complete

Tensors = tuple[TensorMetadata, ...]
Signature = tuple[Any, Tensors, Tensors]


def digits(inputs: Arrays) -> Arrays:
    return {"output": inputs["input"].sum(axis=1)}


def add_sub(inputs: Arrays) -> Arrays:
    a, b = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": a + b, "OUTPUT1": a - b}


def tensors(*found: tuple[str, Datatype, tuple[int, ...]]) -> Tensors:
    return tuple(TensorMetadata(*each) for each in found)


class Models:
    """A service of Python models.

    Args:
        models: Function, inputs and outputs of each.
        default: The model of calls without a name; "" for none.
        decoupled: Models with several replies.
        versions: Of models with another version than 1.
        needs: What codecs need of tensors.
        declarations: Of every model.
    """

    def __init__(
        self,
        models: Mapping[str, Signature],
        default: str = "",
        *,
        decoupled: str = "",
        versions: Mapping[str, tuple[str, ...]] | None = None,
        needs: frozenset[Any] = frozenset(),
        declarations: Mapping[str, Any] | None = None,
    ) -> None:
        self.is_ready = True
        self._models, self._default, self._decoupled = models, default, decoupled
        self._versions, self._needs = versions or {}, needs
        self._declarations = declarations
        self._services: dict[str, Complete] = {}
        self._backends: list[PythonBackend] = []

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, ServerLiveRequest | ServerReadyRequest):
            return self.is_ready
        if isinstance(call, RepositoryIndexRequest):
            return tuple([RepositoryEntry(name) for name in self._models])
        if isinstance(call, ServerStatusRequest):
            return self._status("" if call.about is None else call.about.name)
        name = self._default if call.model is None else call.model.name
        if not name:
            raise ModelNotNamed("no model; set default_model")
        if name not in self._models:
            raise ModelNotFound(f"unknown model {name!r}", model=call.model)
        if isinstance(call, ModelConfigRequest):
            policy = {"decoupled": name == self._decoupled}
            return ModelConfiguration({"model_transaction_policy": policy})
        if call.model is not None and call.model.version:
            if call.model.version not in self._versions.get(name, ("1",)):
                raise VersionNotFound(f"no such version of {name!r}", model=call.model)
            call = call.changed(model=ModelRef(name))
        service = await self._service(name)
        return await service(call)

    def _status(self, name: str) -> ServerStatus:
        if name not in self._models:
            return ServerStatus(is_ready=True)
        metadata = ModelMetadata(name=name, versions=self._versions.get(name, ("1",)))
        return ServerStatus(is_ready=True, models=(ModelStatus(metadata),))

    async def _service(self, name: str) -> Complete:
        found = self._services.get(name)
        if found is None:
            function, inputs, outputs = self._models[name]
            backend = PythonBackend(name, function, inputs=inputs, outputs=outputs)
            await backend.start()
            self._backends.append(backend)

            async def declared(call: Call[Any], /) -> Any:
                reply = await backend(call)
                if self._declarations is None or not isinstance(reply, ModelMetadata):
                    return reply
                return reply.changed(declarations=self._declarations)

            found = self._services[name] = Complete(declared, self._needs)
        return found

    async def responses(self, codec: Any, wire: Any) -> list[Any]:
        """Return the responses of a frontend before the models, which are stopped then."""
        try:
            return [response async for response in Frontend(codec, self)(wire)]
        finally:
            for backend in self._backends:
                await backend.stop()
