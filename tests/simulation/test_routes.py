"""Two routes of one upstream in virtual time: a busy one costs a quiet one no call."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from gateway.ir.calls import Call
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.transports.contract import ClientLimits
from gateway.transports.slots import upstream_slots
from tests.simulation.virtual_time import ModelServer, Traffic, good, percentile, simulate

pytestmark = pytest.mark.slow

WORKERS, SERVICE_S = 8, 0.04
SHARE = WORKERS / SERVICE_S / 2
"""Calls in a second that the upstream can do for each of two routes."""


class SharedUpstream:
    """A server with the limits of an upstream, which all routes share."""

    def __init__(self, draw: random.Random) -> None:
        self._server = ModelServer(WORKERS, SERVICE_S, draw)
        self._slots = upstream_slots("in_flight", WORKERS, ClientLimits(), "server")

    async def __call__(self, call: Call[Any], /) -> Any:
        """Reply when a slot was free and the server is done."""
        await self._slots.wait(1.0)
        try:
            return await self._server(call)
        finally:
            self._slots.release()


class RouteOf:
    """Calls *upstream* as a route does, with its own record of each call."""

    def __init__(self, upstream: SharedUpstream, name: str) -> None:
        self._upstream = upstream
        self._name = name

    async def __call__(self, call: Call[Any], /) -> Any:
        """Call the upstream."""
        CALL_PATH.set(CallPath(route=self._name, model="m"))  # each call is a task
        return await self._upstream(call)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_route_at_five_times_its_share_spares_a_quiet_one(seed: int) -> None:
    """The quiet route, at a tenth of its share, loses no call; its p99 at most doubles."""
    draw = random.Random(seed)  # noqa: S311

    async def run(busy_rate: float) -> tuple[Traffic, Traffic]:
        upstream = SharedUpstream(draw)
        busy = Traffic(RouteOf(upstream, "busy"), draw)
        quiet = Traffic(RouteOf(upstream, "quiet"), draw)
        async with asyncio.TaskGroup() as group:
            group.create_task(busy.run(busy_rate, 40))
            group.create_task(quiet.run(0.1 * SHARE, 40))
        return busy, quiet

    _, alone = simulate(lambda: run(0.1 * SHARE))
    busy, beside = simulate(lambda: run(5 * SHARE))
    assert good(beside.outcomes) == beside.outcomes
    assert len(beside.outcomes) > 300
    assert percentile(beside.outcomes, 99) < 2 * percentile(alone.outcomes, 99)
    assert any(each.error == "overloaded" for each in busy.outcomes)
    assert len(good(busy.outcomes)) > 0.9 * 40 * (2 - 0.1) * SHARE
