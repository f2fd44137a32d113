"""A rolling update from the previous release and back: pods change one by one, and no call is lost.

A balancer stands for the Service of Kubernetes: a new connection goes to a pod that is ready, and stays there.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Self

import pytest
import yaml

from tests.integration.cli_kit import Running, serving
from tests.integration.test_upgrade import previous, serving_previous
from tests.integration.workers_kit import PATIENCE_S, Load, eventually

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "tensor-gateway"
REPLICAS = 2
CALLS = 60
# As in the chart, but for less time.
POD = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", metrics: null}
models: {simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
lifecycle: {pre_stop: 3s, drain: 20s}
"""
__all__ = ["previous"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.flaky(reruns=0)]


class Service:
    """A balancer of connections over the pods that are ready, on a port for each server."""

    def __init__(self) -> None:
        self.pods: list[Running] = []
        self.addresses: dict[str, str] = {}
        self._turn = itertools.count()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        for name in ("main.http", "main.grpc"):
            listening = asyncio.run_coroutine_threadsafe(self._listen(name), self._loop)
            self.addresses[name] = listening.result(PATIENCE_S)
        return self

    def __exit__(self, *_raised: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _listen(self, name: str) -> str:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pod = self.pods[next(self._turn) % len(self.pods)]
            host, _, port = pod.addresses[name].rpartition(":")
            upstream = await asyncio.open_connection(host, int(port))
            pipes = (self._pipe(reader, upstream[1]), self._pipe(upstream[0], writer))
            await asyncio.gather(*pipes)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            while received := await reader.read(1 << 16):
                writer.write(received)
                await writer.drain()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def is_ready(pod: Running) -> bool:
    with closing(HTTPConnection(pod.addresses["admin"], timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200


def answer_more(loads: list[Load]) -> None:
    """Wait until each client has got some more responses."""
    targets = [load.answered + CALLS for load in loads]
    eventually(
        lambda: all(load.answered >= target for load, target in zip(loads, targets, strict=True))
    )


def roll(service: Service, stack: ExitStack, pods: list[AbstractContextManager[Running]]) -> None:
    """Replace each pod: the new one is ready first, then the old one gets no connections and ends."""
    for starting in pods:
        new = stack.enter_context(starting)
        eventually(lambda new=new: is_ready(new))  # type: ignore[misc]  # bound here
        service.pods.append(new)
        old = service.pods[0]
        old.process.terminate()
        eventually(lambda old=old: not is_ready(old))  # type: ignore[misc]  # bound here
        service.pods.remove(old)
        assert 0 == old.process.wait(PATIENCE_S)


def test_the_chart_replaces_pods_one_by_one() -> None:
    """A new pod is ready before an old one ends, which waits until nobody sends it connections."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {"maxUnavailable": 0, "maxSurge": 1} == values["strategy"]["rollingUpdate"]
    assert "0s" != values["config"]["lifecycle"]["pre_stop"]


def test_a_rolling_update_to_this_release_and_back(tmp_path: Path, previous: Path) -> None:
    """Kept and new connections of HTTP and gRPC lose nothing, in both directions."""
    path = tmp_path / "gateway.yaml"
    path.write_text(POD)
    with ExitStack() as stack, Service() as service:
        for _ in range(REPLICAS):
            service.pods.append(stack.enter_context(serving_previous(previous, str(path))))
        loads = [
            Load(service, 2),
            Load(service, 1, keep=False),
            Load(service, 2, grpc=True),
            Load(service, 1, grpc=True, keep=False),
        ]
        with ExitStack() as asking:
            for load in loads:
                asking.enter_context(load)
            answer_more(loads)
            roll(service, stack, [serving(str(path)) for _ in range(REPLICAS)])
            answer_more(loads)
            roll(service, stack, [serving_previous(previous, str(path)) for _ in range(REPLICAS)])
            answer_more(loads)
        assert [[] for _ in loads] == [load.lost for load in loads]
