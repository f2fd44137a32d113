"""The store of quotas in virtual time: what waits for it, and what does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from gateway.config.permissions import QuotaStoreConfig
from gateway.quotas import store as quota_store
from gateway.quotas.budget_queue import Charge
from gateway.quotas.budgets import Budgets, Limit, LocalAccounts
from gateway.quotas.pools import PoolLeases
from gateway.quotas.store import QuotaStore, stored_name
from tests.simulation.virtual_time import elapse, now, simulate

CALL = [Charge(("q", "fraud"), 1)]


class SilentPipeline:
    """Some commands of a client that has no replies."""

    def __init__(self, client: SilentClient) -> None:
        self._client = client

    def eval(self, *_arguments: Any) -> None:
        """Take a command."""

    async def execute(self) -> Any:
        return await self._client.eval()


class SilentClient:
    """A client whose server never replies, and that turns a cancellation into its own error."""

    async def eval(self, *_arguments: Any) -> Any:
        try:
            await elapse(1e6)
        except asyncio.CancelledError as error:
            raise RuntimeError("the connection is closed") from error

    def pipeline(self, **_settings: Any) -> Any:
        return SilentPipeline(self)

    async def aclose(self) -> None:
        """Close nothing."""


async def test_the_host_of_the_store_is_looked_up_as_those_of_upstreams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The threads of the loop wait for no name server; the next address is tried, too."""
    names: list[str] = []

    async def look_up(host: str) -> list[str]:
        names.append(host)
        return ["127.0.0.9", "127.0.0.1"]

    monkeypatch.setattr(quota_store, "look_up", look_up)
    connected = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = quota_store.client_of(QuotaStoreConfig(url=f"redis://store.test:{port}"))
        with pytest.raises(redis.exceptions.RedisError):
            await client.ping()
        await client.aclose()
    assert (True, ["store.test"]) == (connected.is_set(), names)


def test_the_certificate_of_the_store_has_its_name() -> None:
    """A connection to an address expects the name of the URL."""
    client = quota_store.client_of(QuotaStoreConfig(url="rediss://store.test"))
    arguments = client.connection_pool.make_connection()._connection_arguments()
    assert "store.test" == arguments["server_hostname"]


def test_no_call_waits_longer_than_5_ms_for_a_silent_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are admitted by what the gateway may spend alone; the store stops at once."""
    monkeypatch.setattr(quota_store, "client_of", lambda _config: SilentClient())

    async def main() -> tuple[list[float], int, float]:
        leases = PoolLeases(2)
        store = QuotaStore(QuotaStoreConfig(url="redis://silent"), leases, "one")
        await store.start()
        accounts = LocalAccounts(
            Budgets({"q": Limit(amount=100, period="day")}, pools=leases), ask=store.ask
        )
        waits, admitted = [], 0
        for _ in range(400):
            began = now()
            short = accounts.charge(CALL) and await accounts.wait(CALL)
            waits.append(now() - began)
            admitted += not short
            await elapse(0.01)
        began = now()
        await store.stop()
        return waits, admitted, now() - began

    waits, admitted, end_s = simulate(main)
    assert max(waits) <= 0.006
    assert admitted == 50
    assert end_s < 2


def test_two_budgets_had_one_name_in_the_store() -> None:
    """Names of clients may have any character; plain ones stand in the store as they are."""
    keys = [
        ("q", "a|b", "c"),
        ("q", "a", "b|c"),
        ("q", "a%7Cb", "c"),
        ("q", "a\u00fc", "c"),
        ("q",),
    ]
    assert len(keys) == len(set(map(stored_name, keys)))
    assert "q|corp:svc/a b|m" == stored_name(("q", "corp:svc/a b", "m"))
