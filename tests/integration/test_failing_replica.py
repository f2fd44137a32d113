"""One of three servers fails in each of several ways, and recovers, before a whole gateway."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np
import pytest

from gateway.app import Gateway
from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from tests.chaos.faulty_server import FaultyServer
from tests.integration.asking_kit import running
from tests.integration.http_kit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
lifecycle: {{pre_stop: 0s}}
telemetry: {{log: {{calls_per_second: 0}}}}
upstreams: {{servers: {{urls: [{urls}], options: {{dialect: mlserver}}}}}}
routes:
  - name: all
    timeout: {timeout}
    targets: [{{upstream: servers}}]
"""
RETRY = """
    retry:
      on: [unsent, reset_before_answer, unavailable, timeout]
      attempts: 3
      per_try_timeout: 1s
      idempotent: true
      min_retries: 20
"""
CLIENTS = 6
CONSECUTIVE_FAILURES = 5
"""That eject an endpoint by default."""
BETWEEN_TRIALS_S = 2.5
"""The shortest time between two trials of an endpoint."""


@asynccontextmanager
async def gateway_before_three(
    retry: str = RETRY, route_timeout: str = "30s"
) -> AsyncIterator[tuple[Gateway, list[FaultyServer]]]:
    """Run three servers, and a gateway with the retry settings of *retry*."""
    found = [FaultyServer(random.Random(1)) for _ in range(3)]  # noqa: S311  # repeatable
    async with AsyncExitStack() as stack:
        for server in found:
            await server.start()
            stack.push_async_callback(server.stop)
        urls = ", ".join(f'"oip+http://127.0.0.1:{server.port}"' for server in found)
        text = CONFIG.format(urls=urls, timeout=route_timeout) + retry
        yield await stack.enter_async_context(running(text)), found


class Clients:
    """Six clients that send one call after another; a wrong reply ends them.

    Args:
        gateway: The gateway.
        may_fail: Whether they go on after a call that failed.

    Attributes:
        answered: Replies.
        failed: Calls that failed.
    """

    def __init__(self, gateway: Gateway, *, may_fail: bool = False) -> None:
        self._gateway = gateway
        self._may_fail = may_fail
        self._numbers = itertools.count()
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(CLIENTS)]
        self.answered = self.failed = 0

    async def _ask(self) -> None:
        while True:
            number = next(self._numbers)
            values = np.array([number, number + 7], np.int32)
            call = InferRequest(model=ModelRef("add"), inputs=(array_tensor("IN", values),))
            try:
                reply = await self._gateway.service(call)
            except GatewayError:
                if not self._may_fail:
                    raise
                self.failed += 1
                continue
            assert [number + 1, number + 8] == as_numpy(reply.outputs[0]).tolist()
            self.answered += 1

    async def until_replied(self, count: int) -> None:
        """Wait for a number of further replies."""
        total = self.answered + count
        await eventually(lambda: self.answered >= total or any(each.done() for each in self._tasks))
        assert not any(each.done() for each in self._tasks), await self.stop()

    async def stop(self) -> list[str]:
        """Stop; return the errors."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        return [repr(each) for each in results if not isinstance(each, asyncio.CancelledError)]


@pytest.mark.parametrize("fault", ["hung", "resetting", "failing", "slow", "dead"])
async def test_failing_replica_is_hidden_from_clients(fault: str) -> None:
    """The other two reply, and the replica gets calls again once it has recovered."""
    async with gateway_before_three() as (gateway, servers):
        bad = servers[0]
        clients = Clients(gateway)
        await clients.until_replied(100)
        assert bad.answered
        await bad.set(fault)
        await clients.until_replied(600)
        await bad.set(None)
        answered = bad.answered
        await eventually(lambda: bad.answered > answered + 20)
        await clients.until_replied(20)
        assert [] == await clients.stop()


async def test_two_dead_replicas_of_three_fail_no_call() -> None:
    """The third replica serves all calls."""
    async with gateway_before_three() as (gateway, servers):
        clients = Clients(gateway)
        await clients.until_replied(100)
        for server in servers[:2]:
            await server.set("dead")
            await clients.until_replied(300)
        assert [] == await clients.stop()


@pytest.mark.parametrize(
    ("fault", "most"),
    [
        ("slow", 0),
        ("dead", CLIENTS),
        ("resetting", CONSECUTIVE_FAILURES + CLIENTS),
        ("failing", CONSECUTIVE_FAILURES + CLIENTS),
        ("hung", CONSECUTIVE_FAILURES + CLIENTS),
    ],
)
async def test_without_retries_few_calls_fail(fault: str, most: int) -> None:
    """Calls in flight fail, then those that eject the replica, and its trials."""
    # Without a shorter timeout the test would take half a minute; others are for slow machines.
    route_timeout = "3s" if fault == "hung" else "30s"
    async with gateway_before_three("", route_timeout) as (gateway, servers):
        clients = Clients(gateway, may_fail=True)
        await clients.until_replied(100)
        assert 0 == clients.failed
        started = time.monotonic()
        await servers[0].set(fault)
        await clients.until_replied(600)
        trials = 1 + int((time.monotonic() - started) / BETWEEN_TRIALS_S)
        assert clients.failed <= most + (trials if most else 0)
        assert [] == await clients.stop()
