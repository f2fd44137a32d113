"""Server-sent events: bounded listeners, and the events they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.admin.event_hub import EventHub, TooManyListeners


class Documents:
    """Counts the readings; the document changes with each of them."""

    def __init__(self) -> None:
        self.readings = 0

    async def __call__(self) -> Mapping[str, Any]:
        self.readings += 1
        return {"status": {"reading": self.readings}, "migrations": []}


async def test_listeners_receive_only_changed_documents() -> None:
    """Unchanged parts of the document are not sent again."""
    hub = EventHub(Documents(), interval_s=0.0)
    events = hub.listen()
    found = [await anext(events) for _ in range(4)]
    await events.aclose()
    assert [
        b"retry: 3000\n\n",
        b'event: status\ndata: {"reading":1}\n\n',
        b"event: migrations\ndata: []\n\n",
        b'event: status\ndata: {"reading":2}\n\n',
    ] == found


async def test_documents_are_read_only_while_clients_listen() -> None:
    """Reading stops when the last listener leaves."""
    documents = Documents()
    hub = EventHub(documents, interval_s=0.0)
    events = hub.listen()
    await anext(events)
    await anext(events)
    await events.aclose()
    before = documents.readings
    for _ in range(50):
        await asyncio.sleep(0)
    assert (0, before) == (hub.listeners, documents.readings)


async def test_listeners_are_bounded() -> None:
    """A listener that leaves makes room."""
    hub = EventHub(Documents(), interval_s=3600.0, max_listeners=2)
    first, second = hub.listen(), hub.listen()
    await anext(first)
    await anext(second)
    with pytest.raises(TooManyListeners, match="2 listeners; at most 2 are admitted"):
        hub.listen()
    await first.aclose()
    third = hub.listen()
    await anext(third)
    assert 2 == hub.listeners
    await second.aclose()
    await third.aclose()


async def test_slow_listeners_are_dropped() -> None:
    """The queue of a listener is bounded; the listener is dropped when it is full."""
    hub = EventHub(Documents(), interval_s=0.0)
    slow = hub.listen()
    await anext(slow)
    for _ in range(100):
        await asyncio.sleep(0)
    assert 0 == hub.listeners
    with pytest.raises(StopAsyncIteration):
        await anext(slow)


async def test_failed_readings_are_retried() -> None:
    """The stream stays open, and the next reading may succeed."""
    readings = 0

    async def read() -> Mapping[str, Any]:
        nonlocal readings
        readings += 1
        if readings == 1:
            raise RuntimeError("no status")
        return {"status": {}}

    hub = EventHub(read, interval_s=0.0)
    events = hub.listen()
    await anext(events)
    assert b"event: status\ndata: {}\n\n" == await anext(events)
    await events.aclose()
