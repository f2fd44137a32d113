"""Processes of one machine begin loads at a host one after the other."""

from __future__ import annotations

import asyncio
import sys

import pytest

from gateway.residency.layer import HostTurn


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no abstract sockets")
async def test_turns_at_one_host_exclude_each_other() -> None:
    """The second begins when the first has ended; another host is independent."""
    events: list[str] = []
    entered, leave = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with HostTurn("test-host"):
            entered.set()
            await leave.wait()
            events.append("first")

    async def second() -> None:
        await entered.wait()
        async with HostTurn("test-host"):
            events.append("second")

    tasks = [asyncio.ensure_future(first()), asyncio.ensure_future(second())]
    await entered.wait()
    async with HostTurn("other-test-host"):
        events.append("other")
    leave.set()
    await asyncio.gather(*tasks)
    assert ["other", "first", "second"] == events


async def test_a_turn_ends_with_an_error() -> None:
    """The next one does not wait for it."""
    with pytest.raises(ValueError, match="no"):
        async with HostTurn("test-host-2"):
            raise ValueError("no")
    async with HostTurn("test-host-2"):
        pass
