"""Callers of every protocol share one call of the model, and one cached reply, before any upstream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from gateway.app.build.batching import batch_queues
from gateway.app.layers import build_chain
from gateway.backends.examples import simple
from gateway.backends.python import PythonBackend
from gateway.backends.versions import Versions
from gateway.config.models import ModelConfig
from gateway.frontend.frontend import Frontend
from gateway.ir.context import ModelRef
from gateway.ir.tensors.datatypes import Datatype
from gateway.policies.complete.policy import Complete
from gateway.policies.forward_headers import ForwardHeaders
from gateway.policies.reject_sequences import ModelProcesses
from gateway.policies.signatures import DescribedModels
from gateway.telemetry.metrics import Metrics
from gateway.upstream import Upstream
from tests.matrix.clients import CLIENTS, WHOLE, Array, Client
from tests.memory_client import grpc_memory, http_memory, stream_memory
from tests.properties.carries import WAYS, Carries
from tests.properties.chains import Told
from tests.properties.registered import REGISTERED
from tests.sections import model_context, model_of

M = ModelRef("m")
BY_UPSTREAM = pytest.mark.parametrize(
    "way", [None, *WAYS], ids=lambda way: getattr(way, "name", "own")
)

_MEMORY: dict[str, Any] = {"http": http_memory, "grpc": grpc_memory, "stream": stream_memory}


class Counted:
    """The model, which remembers how many rows each of its calls had."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.inputs, self.outputs = simple.inputs, simple.outputs

    def __call__(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Return sum and difference."""
        self.rows.append(len(inputs["INPUT0"]))
        found: dict[str, Array] = simple(inputs)
        return found


@asynccontextmanager
async def sharing(
    way: Carries | None, model: Counted, config: ModelConfig
) -> AsyncIterator[dict[str, Any]]:
    """Yield each client's transport to a gateway whose callers share *model*.

    The model is the gateway's own, or behind an upstream that is called in *way*.
    """
    versions = Versions(M.name, [PythonBackend(M.name, model, max_batch_size=64)])
    await versions.start()
    try:
        target: Any = versions
        if way is not None:
            there = way.registered
            served = Told(Complete(target, WHOLE))
            behind = _MEMORY[there.carrier](Frontend(there.make(way.listener), served))
            codec = there.make(way.upstream)
            target = ForwardHeaders(
                Complete(Upstream("behind", codec, behind), codec.needs), (), {}
            )
        parts = (batch_queues(M.name, config, None), ModelProcesses(), DescribedModels())
        at = model_context(M.name, config, Metrics("test")).with_parts(*parts)
        service = Told(build_chain("model", target, at))
        yield {client.name: _transport(client, service) for client in CLIENTS}
    finally:
        await versions.stop()


def _transport(client: Client, service: Any) -> Any:
    here = REGISTERED[client.codec]
    return _MEMORY[here.carrier](Frontend(here.make(client.listener), service))


async def _check_row(client: Client, transports: dict[str, Any], row: int) -> None:
    """Request sum and difference of one row, and check them."""
    one = np.full((1, 16), row, "<i4")
    other = np.arange(16, dtype="<i4").reshape(1, 16)
    inputs = {"INPUT0": (Datatype.INT32, one), "INPUT1": (Datatype.INT32, other)}
    found = await client.infer(transports[client.name], M, inputs)
    assert (one + other).tolist() == found["OUTPUT0"].tolist(), client.name
    assert (one - other).tolist() == found["OUTPUT1"].tolist(), client.name


@BY_UPSTREAM
async def test_calls_of_all_protocols_share_one_batch(way: Carries | None) -> None:
    """Every client sends one row; the model is called once, and each client gets its own result."""
    model = Counted()
    batching = {"max_batch_size": len(CLIENTS), "max_delay": "10s"}
    async with sharing(way, model, model_of(batching=batching)) as transports:
        await asyncio.gather(
            *[_check_row(client, transports, row) for row, client in enumerate(CLIENTS)]
        )
    assert [len(CLIENTS)] == model.rows


@BY_UPSTREAM
async def test_all_protocols_share_one_cached_reply(way: Carries | None) -> None:
    """The cached reply to one client serves all others, each in its own protocol."""
    model = Counted()
    async with sharing(way, model, model_of(cache={})) as transports:
        for client in CLIENTS:
            await _check_row(client, transports, 7)
    assert [1] == model.rows
