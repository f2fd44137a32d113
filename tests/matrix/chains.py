"""A gateway in memory: a listener, an upstream, and behind it a gateway with a model in-process.

Composed as `gateway/app` composes them: what is not about codecs (routes, metrics) is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.backends.python import PythonBackend
from gateway.backends.versions import Versions
from gateway.frontend import Frontend
from gateway.policies.complete import Complete
from gateway.policies.forward import Forward
from gateway.transports.memory import grpc_memory, http_memory, stream_memory
from gateway.upstream import Upstream
from tests.matrix.clients import WHOLE, Client
from tests.properties.carries import Carries
from tests.properties.registered import REGISTERED

_MEMORY: dict[str, Any] = {"http": http_memory, "grpc": grpc_memory, "stream": stream_memory}


@asynccontextmanager
async def gateway(client: Client, way: Carries, model: str, source: str) -> AsyncIterator[Any]:
    """Give a transport to a gateway whose upstream, asked in *way*, runs the model *source*."""
    versions = Versions(model, [PythonBackend(model, source)])
    await versions.start()
    try:
        there = way.registered
        behind = _MEMORY[there.carrier](
            Frontend(there.make(way.listener), Complete(versions, WHOLE))
        )
        codec = there.make(way.upstream)
        upstream = Forward(Complete(Upstream("behind", codec, behind), codec.needs), (), {})
        here = REGISTERED[client.codec]
        yield _MEMORY[here.carrier](Frontend(here.make(client.listener), upstream))
    finally:
        await versions.stop()
