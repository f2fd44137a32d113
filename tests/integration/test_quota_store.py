"""Quotas that replicas share in a real Redis: up, away in each way, emptied and back."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client

from gateway.quotas.budgets import Budgets, Limit, LocalAccounts
from gateway.quotas.pools import PoolLeases
from gateway.quotas.store import QuotaStore
from tests.integration.cli_kit import Running, get
from tests.integration.redis_kit import (
    LATE_S,
    Proxy,
    Redis,
    admitted,
    count,
    proxied,
    quotas_at,
    replica,
    serving_redis,
    two_replicas,
)
from tests.integration.workers_kit import BODY, ask, connect, eventually, metrics, two_workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # apt-get may install Redis first

LIMIT = 1000
UP = "gateway_quota_store_up 1.0"
REFUSED = " (refused)"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """Return a running server."""
    with serving_redis(tmp_path) as server:
        yield server


async def test_a_window_is_used_up_and_not_exceeded(redis: Redis) -> None:
    """Two gateways admit 99 to 100 % of a day, and one that comes later admits nothing."""
    async with two_replicas(redis.url, q=Limit(amount=500, period="day")) as gateways:
        assert 495 <= await count(gateways, 6) <= 500
        async with replica(redis.url, q=Limit(amount=500, period="day")) as late:
            assert await count([late], 0.3) <= 5


async def test_a_rate_is_kept_by_all(redis: Redis) -> None:
    """Two gateways admit the burst and the rate, and hardly more; a busy machine may ask for less."""
    async with two_replicas(redis.url, q=Limit(amount=200, period="s", burst=200)) as gateways:
        started = time.monotonic()
        total = await count(gateways, 5)
        elapsed = time.monotonic() - started
    assert 700 <= total <= 1.03 * (200 + 200 * elapsed)


async def test_leases_go_back_at_a_stop(redis: Redis) -> None:
    """What a gateway held and has not spent is there for the next one."""
    limit = Limit(amount=100, period="day")
    async with replica(redis.url, q=limit) as first:
        assert 1 <= sum([await admitted(first) for _ in range(3)]) <= 3
    async with replica(redis.url, q=limit) as second:
        assert await count([second], 3) >= 60


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_a_killed_gateway_held_comes_back(redis: Redis, tmp_path: Path, workers: str) -> None:
    """Two gateways are killed with their leases; another one spends all that they did not."""
    budget = 160
    more = f'quotas: {{q: {{limit: {budget}/day, by: none}}}}\nquota_store: {{url: "{redis.url}"}}'

    def spend(gateway: Running, calls: int) -> int:
        """Make calls until so many are admitted, for a minute at most."""
        found, deadline = 0, time.monotonic() + 60
        with closing(connect(gateway)) as connection:
            while found < calls and time.monotonic() < deadline:
                found += ask(connection) == 200
        return found

    held = 0.0
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with two_workers(tmp_path / name, "--workers", workers, more=more) as gateway:
            assert spend(gateway, 10) == 10
            held = unspent(redis)
            gateway.stop(signal.SIGKILL)
    assert held > 0.03 * budget
    (tmp_path / "three").mkdir()
    with two_workers(tmp_path / "three", "--workers", workers, more=more) as gateway:
        least = budget * 97 // 100 - 20
        found = spend(gateway, least)
        assert found == least
        with closing(connect(gateway)) as connection:
            found += sum(ask(connection) == 200 for _ in range(50))
    # Calls of the last second before a kill may be in no report.
    assert 20 + found <= budget + 20


def unspent(redis: Redis) -> float:
    """Return what all gateways hold and have not spent, as the store knows it."""
    with Client(unix_socket_path=str(redis.path), decode_responses=True) as client:
        names = list(client.scan_iter("*:quota:*"))
        fields = [field for name in names for field in client.hgetall(name).items()]
    return sum(float(value) for name, value in fields if name.startswith("u:"))


Fault = Callable[[Redis, Any], None]
FAULTS: dict[str, tuple[Fault, Fault]] = {
    "killed": (lambda server, _: server.stop(), lambda server, _: server.start()),
    "paused": (
        lambda server, _: server.signal(signal.SIGSTOP),
        lambda server, _: server.signal(signal.SIGCONT),
    ),
    "read-only": (
        lambda server, _: server.command("REPLICAOF", "127.0.0.1", "1"),
        lambda server, _: server.command("REPLICAOF", "NO", "ONE"),
    ),
    "full": (
        lambda server, _: server.command("CONFIG", "SET", "maxmemory", "1"),
        lambda server, _: server.command("CONFIG", "SET", "maxmemory", "0"),
    ),
    "slow": (
        lambda _, proxy: setattr(proxy, "delay_s", LATE_S),
        lambda _, proxy: setattr(proxy, "delay_s", 0.0),
    ),
    "silent": (
        lambda _, proxy: setattr(proxy, "delay_s", 3600.0),
        lambda _, proxy: setattr(proxy, "delay_s", 0.0),
    ),
    "emptied": (lambda server, _: server.command("FLUSHALL"), lambda _server, _: None),
}
"""What happens to a store, and how it ends."""


@asynccontextmanager
async def sharing(redis: Redis, limit: Limit) -> AsyncIterator[tuple[list[LocalAccounts], Proxy]]:
    """Yield two gateways that share a budget through a proxy."""
    async with proxied(redis) as proxy, two_replicas(f"unix://{proxy.path}", q=limit) as gateways:
        yield gateways, proxy


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_store_in_trouble_spends_nothing_twice(redis: Redis, fault: str) -> None:
    """While it is away, gateways spend shares; with it, the rest: 99 to 100 % of a day in all."""
    begin, end = FAULTS[fault]
    async with sharing(redis, Limit(amount=LIMIT, period="day")) as (gateways, proxy):
        total = await count(gateways, 1, 0.01)
        assert 0 < total < LIMIT / 2
        begin(redis, proxy)
        during = await count(gateways, LATE_S + 1.5 if fault == "slow" else 2, 0.02)
        assert during > 0
        end(redis, proxy)
        total += during
        total += await count(gateways, 20, is_enough=lambda more: total + more >= 0.99 * LIMIT)
        total += await count(gateways, 1.5)
    assert 0.99 * LIMIT <= total <= LIMIT


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_the_share_of_a_gateway_that_came_back_late_was_granted_to_another(
    redis: Redis, is_cut_off: bool
) -> None:
    """After a time without the store the first to ask waits for the others; not for a dead one."""
    key, stores = ("q", "fraud"), {}
    for name in ("early", "late"):
        leases = PoolLeases(2)
        leases.open(key, Limit(amount=100, period="day"))
        stores[name] = leases, QuotaStore(quotas_at(redis.url), leases, name)

    async def held(name: str, need: float) -> tuple[float, float]:
        """Ask the store once; return what the gateway holds then, and its share."""
        leases, store = stores[name]
        leases.need(key, need)
        leases.refresh()
        await store._exchange(leases.questions())
        [(_, pool)] = leases
        return pool.left, pool.share or 0.0

    theirs = (0.0, 0.0)
    for name in [*stores] * 4:
        theirs = await held(name, 1)
    assert min(theirs) > 0
    with Client(unix_socket_path=str(redis.path), decode_responses=True) as client:
        [budget] = client.scan_iter("*:quota:*")
        for field, value in client.hgetall(budget).items():
            if field.startswith(("t:late", "heard") if is_cut_off else ("t:", "asked")):
                client.hset(budget, field, float(value) - 20)
        client.zincrby("tensor-gateway:replicas", -20, "late")
    assert (100 if is_cut_off else 100 - sum(theirs)) == (await held("early", 100))[0]
    for _, store in stores.values():
        await store._client.aclose()


@pytest.mark.parametrize("fault", ["killed", "paused"])
async def test_without_the_store_each_gateway_spends_its_share(redis: Redis, fault: str) -> None:
    """Two gateways never spend more than the day, and each one has its half of the rest."""
    begin, _ = FAULTS[fault]
    async with sharing(redis, Limit(amount=LIMIT, period="day")) as (gateways, proxy):
        total = await count(gateways, 1, 0.01)
        begin(redis, proxy)
        first = await count(gateways[:1], 4)
        second = await count(gateways[1:], 4)
        rest = LIMIT - total
        for share in (first, second):
            assert 0.4 * rest <= share <= 0.6 * rest
        assert total + first + second <= LIMIT
        redis.signal(signal.SIGCONT) if fault == "paused" else None


async def test_a_bucket_is_not_filled_twice(redis: Redis) -> None:
    """Gateways that spent alone find no full bucket in the store when it is back."""
    limit = Limit(amount=200, period="s", burst=200)
    async with sharing(redis, limit) as (gateways, _):
        started = time.monotonic()
        total = await count(gateways, 1)
        redis.signal(signal.SIGSTOP)
        total += await count(gateways, 2)
        redis.signal(signal.SIGCONT)
        total += await count(gateways, 4)
        elapsed = time.monotonic() - started
    assert 500 <= total <= 1.03 * (200 + 200 * elapsed)


@pytest.mark.parametrize("fault", ["none", "killed", "full"])
def test_two_gateways_of_two_workers_share_a_budget(
    redis: Redis, tmp_path: Path, fault: str
) -> None:
    """Four processes admit 99 to 100 % of a day, also where the store is away for a while."""
    budget = 400
    more = f'quotas: {{q: {{limit: {budget}/day, by: none}}}}\nquota_store: {{url: "{redis.url}"}}'
    statuses: Counter[int] = Counter()
    is_over, counting = threading.Event(), threading.Lock()
    with ExitStack() as stack:
        ports = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            gateway = stack.enter_context(two_workers(tmp_path / name, more=more))
            ports.append(int(gateway.addresses["main.http"].rpartition(":")[2]))

        def client(port: int) -> None:
            while not is_over.is_set():
                with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                    connection.request("POST", "/v2/models/simple/infer", BODY)
                    response = connection.getresponse()
                    response.read()
                    with counting:
                        statuses[response.status] += 1
                is_over.wait(0.01)

        def admitted_at_least(count: int) -> None:
            eventually(lambda: statuses[200] >= count)

        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(client, port) for port in ports * 2]
            admitted_at_least(budget // 5)
            if fault != "none":
                begin, end = FAULTS[fault]
                begin(redis, None)
                admitted_at_least(budget // 2)
                end(redis, None)
            admitted_at_least(budget * 99 // 100)
            refused = statuses[429]  # no more than the budget is admitted
            eventually(lambda: statuses[429] >= refused + 100)
            is_over.set()
            for each in found:
                each.result()
    assert set(statuses) == {200, 429}
    assert 0.99 * budget <= statuses[200] <= budget


async def test_a_reload_moves_the_counts_to_another_store(tmp_path: Path) -> None:
    """What was spent of a window is spent in the new store, and the old one is asked no more."""
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    with serving_redis(folders[0]) as old, serving_redis(folders[1]) as new:
        leases = PoolLeases(1)
        store = QuotaStore(quotas_at(old.url), leases, "one")
        await store.start()
        limits = {"q": Limit(amount=100, period="day")}
        gateway = LocalAccounts(Budgets(limits, pools=leases), ask=store.ask)
        try:
            spent = await count([gateway], 0.5, 0.01)
            store.change(quotas_at(new.url))
            old.stop()
            await asyncio.sleep(0.1)
            assert leases.is_up
            async with replica(new.url, q=limits["q"]) as other:
                spent += await count([gateway, other], 4)
            assert 90 <= spent <= 100
            store.change(quotas_at("redis://127.0.0.1:1"))
            assert await count([gateway], 0.5) <= 100 - spent
            assert not leases.is_up
        finally:
            await store.stop()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_reload_adds_and_removes_the_store(redis: Redis, tmp_path: Path, workers: str) -> None:
    """The store gets the counts of the gateway, and without it the gateway goes on with its own."""
    quota = "quotas: {q: {limit: 40/day, by: none}}"
    store = f'{quota}\nquota_store: {{url: "{redis.url}", timeout: 1s}}'
    with two_workers(tmp_path, "--workers", workers, more=quota) as gateway:
        file = tmp_path / "workers.yaml"
        text = file.read_text()

        def use(calls: int) -> int:
            found = 0
            for _ in range(calls):
                with closing(connect(gateway)) as connection:
                    found += ask(connection) == 200
            return found

        def has_store(expected: bool) -> bool:
            return (UP in metrics(gateway)) is expected

        used = use(5)
        for more in (store, quota, store):
            file.write_text(text.replace(quota, more))
            status, document = get(gateway.url("/reload", "admin"), {})
            assert (200, "applied") == (status, document["outcome"])
            eventually(partial(has_store, more == store))
            used += use(5)
        deadline = time.monotonic() + 30
        while used < 39 and time.monotonic() < deadline:
            used += use(5)
        used += use(20)
    assert 39 <= used <= 40


LIMIT_CHANGES = {
    "lowered": [("40/day", 20), ("10/day", 0)],
    "lowered-with-room": [("40/day", 4), ("10/day", 6)],
    "raised": [("5/day", 5), ("15/day", 10)],
    "unit": [("1GB/day, unit: bytes", 20), ("5/day", 5), ("1GB/day, unit: bytes", 20)],
    "period": [("40/day", 20), ("5/hour", 5)],
    "rate-and-window": [("1000/s", 20), ("5/day", 5)],
    "removed-and-added": [("10/day", 10), ("", 20), ("10/day", 10)],
    "refused": [("10/day", 10), (f"15/day{REFUSED}", 0)],
    "refused-unit": [("10/day", 10), (f"1GB/day, unit: bytes{REFUSED}", 0)],
}
"""The limits of quotas one after the other, and how many of twenty calls each admits."""


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["alone", "stored"])
def test_a_reload_left_workers_what_they_held_of_an_earlier_limit(
    redis: Redis, tmp_path: Path, is_stored: bool, workers: str
) -> None:
    """After a reload the limits in force decide, and after one that is refused the former ones."""
    store = f'quota_store: {{url: "{redis.url}", timeout: 1s}}' if is_stored else ""
    with two_workers(tmp_path, "--workers", workers, more=store) as gateway:
        file = tmp_path / "workers.yaml"
        text = file.read_text()

        def use(calls: int) -> int:
            with closing(connect(gateway)) as connection:
                return [ask(connection) for _ in range(calls)].count(200)

        for name, steps in LIMIT_CHANGES.items():
            for limit, admitted_calls in steps:
                quota = f"quotas: {{{name}: {{limit: {limit.removesuffix(REFUSED)}, by: none}}}}\n"
                changed = text + (quota if limit else "")
                is_refused = limit.endswith(REFUSED)
                file.write_text(
                    changed.replace("127.0.0.1:0", "127.0.0.2:0") if is_refused else changed
                )
                _, document = get(gateway.url("/reload", "admin"), {})
                assert ("rejected" if is_refused else "applied") == document["outcome"], document
                calls = admitted_calls if name == "lowered-with-room" and limit == "40/day" else 20
                found = sum(use(each) for each in [5] * (calls // 5) + [calls % 5])
                assert admitted_calls == found, (name, limit)
