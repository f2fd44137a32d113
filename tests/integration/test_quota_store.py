"""Quotas that replicas share in a real Redis: up, away, emptied and back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from gateway.app.quota_store import QuotaStore
from gateway.config.permissions import QuotaStoreConfig
from gateway.policies.access.quotas.budgets import Budgets, Charge, Limit, LocalAccounts
from gateway.policies.access.quotas.pools import PoolLeases
from tests.integration.workers_kit import BODY, two_workers

pytestmark = [
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server"),
    pytest.mark.timeout(120),
]
pytest.importorskip("redis")

CALL = [Charge(("q", "fraud"), 1)]


class Redis:
    """A server of Redis on a unix socket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its URL."""
        return f"unix://{self.path}"

    def start(self) -> None:
        """Start the server, without any data, and wait until it listens."""
        command = ["redis-server", "--port", "0", "--unixsocket", str(self.path), "--save", ""]
        self._process = subprocess.Popen(
            [*command, "--dir", str(self._folder)], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while not self.path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def stop(self) -> None:
        """Kill the server; idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.path.unlink(missing_ok=True)


@contextmanager
def serving(folder: Path) -> Iterator[Redis]:
    """Run a server."""
    server = Redis(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """Return a running server."""
    with serving(tmp_path) as server:
        yield server


@asynccontextmanager
async def replica(redis: Redis, replicas: int = 2, **limits: Limit) -> AsyncIterator[Any]:
    """Yield the accounts of one gateway."""
    leases = PoolLeases(replicas)
    store = QuotaStore(quotas_at(redis.url), leases)
    store.start()
    try:
        yield LocalAccounts(Budgets(limits, pools=leases), ask=store.ask)
    finally:
        await store.stop()


@asynccontextmanager
async def two_replicas(redis: Redis, **limits: Limit) -> AsyncIterator[list[Any]]:
    """Yield the accounts of two gateways."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(replica(redis, 2, **limits)) for _ in range(2)]


async def admitted(accounts: LocalAccounts) -> bool:
    """Return whether a call is admitted, as the layer asks."""
    short = accounts.charge(CALL)
    if short and any(not one.wait_s for one in short):
        short = await accounts.wait(CALL)
    return not short


async def count(gateways: list[LocalAccounts], seconds: float, pause_s: float = 0.0005) -> int:
    """Return how many calls all gateways admit in a time."""

    async def clients(accounts: LocalAccounts) -> int:
        found = 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found += await admitted(accounts)
            await asyncio.sleep(pause_s)
        return found

    return sum(await asyncio.gather(*map(clients, gateways)))


async def test_a_window_is_used_up_and_not_exceeded(redis: Redis) -> None:
    """Two gateways admit 99 to 100 % of a day, and one that comes later admits nothing."""
    async with two_replicas(redis, q=Limit(amount=500, period="day")) as gateways:
        assert 495 <= await count(gateways, 6) <= 500
        async with replica(redis, q=Limit(amount=500, period="day")) as late:
            assert await count([late], 0.3) <= 5


async def test_a_rate_is_kept_by_all(redis: Redis) -> None:
    """In 5 s two gateways admit the burst and five seconds of the rate, within 3 %."""
    async with two_replicas(redis, q=Limit(amount=200, period="s", burst=200)) as gateways:
        assert 1164 <= await count(gateways, 5) <= 1236


async def test_leases_go_back_at_a_stop(redis: Redis) -> None:
    """What a gateway held and has not spent is there for the next one."""
    limit = Limit(amount=100, period="day")
    async with replica(redis, q=limit) as first:
        assert 1 <= sum([await admitted(first) for _ in range(3)]) <= 3
    async with replica(redis, q=limit) as second:
        assert await count([second], 3) >= 60


async def test_without_the_store_each_gateway_has_its_part(redis: Redis) -> None:
    """Killed or silent, the store makes nobody wait long, and no budget is exceeded."""
    async with two_replicas(redis, q=Limit(amount=400, period="day")) as gateways:
        before = await count(gateways, 0.5, 0.01)
        redis.signal(signal.SIGSTOP)
        started = time.monotonic()
        for _ in range(20):
            await admitted(gateways[0])
        assert time.monotonic() - started < 1.0
        during = await count(gateways, 2)
        assert 380 <= before + during <= 400
        redis.signal(signal.SIGCONT)
        assert await count(gateways, 3) <= 20


def test_two_gateways_of_two_workers_share_a_budget(redis: Redis, tmp_path: Path) -> None:
    """Four processes admit 99 to 100 % of a day."""
    more = f'quotas: {{q: {{limit: 300/day, by: none}}}}\nquota_store: {{url: "{redis.url}"}}'
    with ExitStack() as stack:
        ports = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            gateway = stack.enter_context(two_workers(tmp_path / name, more=more))
            ports.append(int(gateway.addresses["main.http"].rpartition(":")[2]))

        def client(port: int) -> Counter[int]:
            statuses: Counter[int] = Counter()
            for _ in range(150):
                with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                    connection.request("POST", "/v2/models/simple/infer", BODY)
                    response = connection.getresponse()
                    response.read()
                    statuses[response.status] += 1
                time.sleep(0.002)
            return statuses

        with ThreadPoolExecutor(4) as pool:
            found = sum(pool.map(client, ports * 2), Counter[int]())
        assert set(found) == {200, 429}
        assert 297 <= found[200] <= 300


async def test_an_emptied_store_gets_the_counts_again(redis: Redis) -> None:
    """Nothing is spent twice after a store came back without its data."""
    async with two_replicas(redis, q=Limit(amount=300, period="day")) as gateways:
        total = await count(gateways, 0.5, 0.005)
        redis.stop()
        total += await count(gateways, 0.5, 0.01)
        redis.start()
        total += await count(gateways, 5)
        assert 285 <= total <= 306


async def test_a_reload_moves_the_counts_to_another_store(tmp_path: Path) -> None:
    """What was spent of a window is spent in the new store, and the old one is asked no more."""
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    with serving(folders[0]) as old, serving(folders[1]) as new:
        leases = PoolLeases(1)
        store = QuotaStore(quotas_at(old.url), leases)
        store.start()
        limits = {"q": Limit(amount=100, period="day")}
        gateway = LocalAccounts(Budgets(limits, pools=leases), ask=store.ask)
        try:
            spent = await count([gateway], 0.5, 0.01)
            store.change(quotas_at(new.url))
            old.stop()
            await asyncio.sleep(0.1)
            assert leases.is_up
            async with replica(new, q=limits["q"]) as other:
                spent += await count([gateway, other], 4)
            assert 90 <= spent <= 100
            store.change(quotas_at("redis://127.0.0.1:1"))
            assert await count([gateway], 0.5) <= 100 - spent
            assert not leases.is_up
        finally:
            await store.stop()


def quotas_at(url: str) -> QuotaStoreConfig:
    """Return the configuration of a store."""
    return QuotaStoreConfig(url=url, timeout=0.2)
