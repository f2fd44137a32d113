"""A gateway: a listener, an upstream, and behind it a gateway with a model in-process.

Composed as `gateway/app` composes them: what is not about codecs (routes, metrics) is left out. The
parts are joined in memory, or over sockets by either make of the transports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

from gateway.backends.python import PythonBackend
from gateway.backends.versions import Versions
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.metadata import ModelMetadata
from gateway.policies.buffer_body import BufferBody
from gateway.policies.complete.policy import Complete
from gateway.policies.forward_headers import ForwardHeaders
from gateway.upstream import Upstream
from tests.matrix.clients import WHOLE, Client
from tests.memory_client import grpc_memory, http_memory, stream_memory
from tests.properties.carries import Carries
from tests.properties.chains import Told
from tests.properties.registered import REGISTERED, Registered

R = TypeVar("R")

_MEMORY: dict[str, Any] = {"http": http_memory, "grpc": grpc_memory, "stream": stream_memory}

Joined = Callable[[Registered, Any], AbstractAsyncContextManager[Any]]
"""Gives a client transport to a frontend of a codec."""


class Declared:
    """A model with other metadata than its own."""

    def __init__(self, inner: Any, metadata: ModelMetadata) -> None:
        self._inner = inner
        self._metadata = metadata

    async def __call__(self, call: Call[R], /) -> R:
        """Return the metadata, or forward any other call."""
        if isinstance(call, ModelMetadataRequest):
            return cast("R", self._metadata)
        return cast("R", await self._inner(call))


@asynccontextmanager
async def in_memory(there: Registered, frontend: Any) -> AsyncIterator[Any]:
    """Join a client and a frontend without sockets."""
    yield _MEMORY[there.carrier](frontend)


@asynccontextmanager
async def gateway(
    client: Client,
    way: Carries,
    model: str,
    source: str,
    metadata: ModelMetadata | None = None,
    *,
    join: Joined = in_memory,
) -> AsyncIterator[Any]:
    """Yield a transport to a gateway whose upstream, called in *way*, runs the model *source*.

    The model declares *metadata*, or its own.
    """
    versions = Versions(model, [PythonBackend(model, source)])
    await versions.start()
    try:
        there, here = way.registered, REGISTERED[client.codec]
        runs: Any = versions if metadata is None else Declared(versions, metadata)
        served = Frontend(there.make(way.listener), BufferBody(Told(Complete(runs, WHOLE))))
        async with join(there, served) as behind:
            codec = there.make(way.upstream)
            target: Any = Upstream("behind", codec, behind)
            if way.declared and metadata is not None:
                target = Declared(target, metadata)
            upstream = ForwardHeaders(Complete(target, codec.needs), (), {})
            offered = Frontend(here.make(client.listener), Told(upstream))
            async with join(here, offered) as transport:
                yield transport
    finally:
        await versions.stop()
