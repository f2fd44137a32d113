"""Calls with a key: they stay at one server, and share a route with those of other keys."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.test_repeated_calls import gateway_before


@pytest.mark.parametrize(
    ("route", "balance"),
    [
        ("{targets: [{upstream: pair}]}", "hash, hash_by: header:user"),
        ("{sticky_by: header:user, targets: [{upstream: first}, {upstream: second}]}", "random"),
    ],
    ids=["endpoints", "targets"],
)
async def test_calls_of_a_user_stay_at_one_server(route: str, balance: str) -> None:
    """All calls of a user reach one server; users are spread over both."""
    async with gateway_before(route, balance=balance) as (replicas, ask, _):
        servers = set()
        for number in range(20):
            before = [replica.read for replica in replicas]
            assert [200] * 3 == await ask(3, user=f"user-{number}")
            reads = [replica.read - read for replica, read in zip(replicas, before, strict=True)]
            assert [0, 3] == sorted(reads)
            servers.add(reads.index(3))
        assert {0, 1} == servers


async def test_tenant_is_limited_to_its_share_of_a_route() -> None:
    """Its second call is rejected although the route has slots; that of another tenant passes."""
    share = "in_flight: 4, share: {by: header:tenant, in_flight: 25%}"
    route = f"{{{share}, targets: [{{upstream: first}}]}}"
    more = "policies: {queue_wait: 100ms}\n"
    async with gateway_before(route, more=more) as (replicas, ask, _):
        replicas[0].hold()
        busy = asyncio.create_task(ask(1, tenant="busy"))
        await replicas[0].until_read(1)
        assert [503] == await ask(1, tenant="busy")
        quiet = asyncio.create_task(ask(1, tenant="quiet"))
        await replicas[0].until_read(2)
        replicas[0].release()
        assert ([200], [200]) == (await busy, await quiet)
        assert [200] == await ask(1, tenant="busy")


async def test_process_over_its_memory_limit_rejects_inferences() -> None:
    """Once its memory is measured, no server gets inferences."""
    more = "policies: {overload: {memory: 1MiB}}\n"
    async with gateway_before("{targets: [{upstream: pair}]}", more=more) as (replicas, ask, _):
        async with asyncio.timeout(45):
            while await ask(1) != [503]:
                continue
        read = [replica.read for replica in replicas]
        assert [503] * 4 == await ask(4)
        assert read == [replica.read for replica in replicas]
