"""Batching and caching before the real Triton: clients see no difference, Triton fewer calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.tensors.datatypes import Datatype
from gateway.transports.contract import ClientLimits
from gateway.transports.reference.grpc_client import GrpcClient
from gateway.transports.reference.http_client import HttpClient
from tests.integration.cli_kit import Running, get
from tests.interop.client import Client
from tests.interop.gateways import CARRIERS, serving
from tests.interop.servers.process import RunningServer
from tests.interop.servers.triton.models import MODELS
from tests.interop.test_gateway import ENABLED, SCRIPTS, seen_through, sidecar
from tests.matrix.clients import CLIENTS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

EACH = 6


@contextmanager
def before(
    server: RunningServer, carrier: str, folder: Path, models: dict[str, Any]
) -> Iterator[Running]:
    """Run the gateway before *server* with the given configuration of its models."""
    address = server.address(carrier)
    # As the sidecar's `--enable NAME[=VALUE]` has it.
    enabled = {name: value or "true" for name, _, value in (one.partition("=") for one in ENABLED)}
    config = {
        "version": 1,
        "listeners": [{"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "options": {"oip": enabled}}],
        "admin": {"address": "127.0.0.1:0", "metrics": None},
        "upstreams": {"triton": {"url": f"oip+{carrier}://{address}"}},
        "models": models,
        "lifecycle": {"pre_stop": "0s"},
    }
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(config))
    with serving(str(file)) as gateway:
        yield gateway


@pytest.mark.parametrize("carrier", CARRIERS)
def test_real_clients_see_no_difference(
    triton_server: RunningServer, client: Client, carrier: str, tmp_path: Path
) -> None:
    """With every model batched and cached, the results of all checks are the same."""
    shared: dict[str, Any] = {"batching": {}, "cache": {}}
    models = {model.name: shared for model in MODELS}
    with before(triton_server, carrier, tmp_path, models) as gateway:
        found = {script: seen_through(gateway, client, script) for script in SCRIPTS}
    with sidecar(triton_server, carrier) as gateway:
        expected = {script: seen_through(gateway, client, script) for script in SCRIPTS}
    assert expected == found


def _executions(server: RunningServer) -> tuple[int, int]:
    """Return how many rows `simple` has computed, and in how many executions."""
    _, found = get(f"{server.http_url}/v2/models/simple/stats")
    statistics = found["model_stats"][0]
    return statistics["inference_count"], statistics["execution_count"]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_protocols_share_tritons_executions(
    triton_server: RunningServer, carrier: str, tmp_path: Path
) -> None:
    """Requests of concurrent clients share executions, and each has its own reply."""
    batching = {"max_delay": "50ms", "in_flight": 1}
    before_rows, before_runs = _executions(triton_server)
    with before(triton_server, carrier, tmp_path, {"simple": {"batching": batching}}) as gateway:
        row_count = asyncio.run(_infer_all(gateway))
    rows, runs = _executions(triton_server)
    assert row_count == rows - before_rows
    # Eight is the most that the model takes; what clients' connections spread is not full.
    assert runs - before_runs <= row_count / 2


async def _infer_all(gateway: Running) -> int:
    clients = [
        one for one in CLIENTS if one.model is None and one.codec.rpartition(".")[2] != "stream"
    ]
    transports: dict[str, Any] = {
        "http": HttpClient(f"http://{gateway.addresses['main.http']}", ClientLimits()),
        "grpc": GrpcClient(gateway.addresses["main.grpc"], ClientLimits()),
    }
    inferences = []
    for number, client in enumerate(clients * EACH):
        carrier = client.codec.rpartition(".")[2]
        if carrier in transports:
            inferences.append(_infer(client, transports[carrier], number))
    try:
        await asyncio.gather(*inferences)
    finally:
        for transport in transports.values():
            await transport.close()
    return len(inferences)


async def _infer(client: Any, transport: Any, number: int) -> None:
    one, other = np.full((1, 16), number, "<i4"), np.arange(16, dtype="<i4").reshape(1, 16)
    inputs = {"INPUT0": (Datatype.INT32, one), "INPUT1": (Datatype.INT32, other)}
    found = await client.infer(transport, ModelRef("simple"), inputs)
    assert (one + other).tolist() == found["OUTPUT0"].tolist()
    assert (one - other).tolist() == found["OUTPUT1"].tolist()
