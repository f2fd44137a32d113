"""A real server of Redis for tests, what can go wrong with it, and gateways that share quotas in it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import redis

from gateway.config.permissions import QuotaStoreConfig
from gateway.quotas.budget_queue import Charge
from gateway.quotas.budgets import Budgets, Limit, LocalAccounts
from gateway.quotas.pools import PoolLeases
from gateway.quotas.store import QuotaStore
from tests.integration.workers_kit import eventually
from tests.interop.programs import program

CALL = [Charge(("q", "fraud"), 1)]
LATE_S = 5.0


class Redis:
    """A server of Redis on a unix socket, and what can go wrong with it."""

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
        command = [program("redis-server"), "--port", "0", "--unixsocket", str(self.path)]
        self._process = subprocess.Popen(
            [*command, "--save", "", "--dir", str(self._folder)], stdout=subprocess.DEVNULL
        )
        eventually(self.path.exists)

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

    def command(self, *words: str) -> None:
        """Send a command to the server."""
        with redis.Redis(unix_socket_path=str(self.path)) as client:
            client.execute_command(*words)


@contextmanager
def serving_redis(folder: Path) -> Iterator[Redis]:
    """Run a server."""
    server = Redis(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Proxy:
    """Stands before a server of Redis, and may keep what clients send for a while.

    What it keeps reaches the server later, also if the client has closed its connection by then.

    Attributes:
        delay_s: How long it keeps a request; 3600 for ever.
    """

    def __init__(self, server: Redis) -> None:
        self._server = server
        self.path = server.path.with_name("proxy.sock")
        self.delay_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with AsyncExitStack() as stack:
            stack.enter_context(suppress(OSError))
            stack.push_async_callback(closed, writer)
            replies, requests = await asyncio.open_unix_connection(self._server.path)
            stack.push_async_callback(closed, requests)
            copying = asyncio.create_task(copied(replies, writer))
            stack.callback(copying.cancel)
            while data := await reader.read(1 << 16):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                requests.write(data)


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write all that is read."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection."""
    writer.close()
    with suppress(OSError):  # TimeoutError is one
        async with asyncio.timeout(20):
            await writer.wait_closed()


@asynccontextmanager
async def proxied(server: Redis) -> AsyncIterator[Proxy]:
    """Run a proxy before a server."""
    proxy = Proxy(server)
    listening = await asyncio.start_unix_server(proxy.serve, proxy.path)
    try:
        yield proxy
    finally:
        listening.close()
        await proxy.stop()


def quotas_at(url: str) -> QuotaStoreConfig:
    """Return the configuration of a store."""
    return QuotaStoreConfig(url=url, timeout=0.5)


@asynccontextmanager
async def replica(url: str, replicas: int = 2, **limits: Limit) -> AsyncIterator[LocalAccounts]:
    """Yield the accounts of one gateway."""
    leases = PoolLeases(replicas)
    store = QuotaStore(quotas_at(url), leases, secrets.token_hex(4))
    await store.start()
    try:
        yield LocalAccounts(Budgets(limits, pools=leases), ask=store.ask)
    finally:
        await store.stop()


@asynccontextmanager
async def two_replicas(url: str, **limits: Limit) -> AsyncIterator[list[LocalAccounts]]:
    """Yield the accounts of two gateways."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(replica(url, 2, **limits)) for _ in range(2)]


async def admitted(accounts: LocalAccounts) -> bool:
    """Return whether a call is admitted, as the layer asks."""
    short = accounts.charge(CALL)
    if short and any(not one.wait_s for one in short):
        short = await accounts.wait(CALL)
    return not short


async def count(
    gateways: list[LocalAccounts],
    seconds: float,
    pause_s: float = 0.0005,
    is_enough: Callable[[int], bool] = lambda _count: False,
) -> int:
    """Return how many calls all gateways admit in a time, or until it is enough."""
    found = 0

    async def clients(accounts: LocalAccounts) -> None:
        nonlocal found
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not is_enough(found):
            is_admitted = await admitted(accounts)
            found += is_admitted
            await asyncio.sleep(pause_s)

    await asyncio.gather(*map(clients, gateways))
    return found
