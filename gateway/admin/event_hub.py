"""Server-sent events: what changes is told to a bounded number of listeners.

The documents are read only while somebody listens, once for all listeners.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
import structlog

from gateway.concurrency.background import start_background

log = structlog.get_logger(__name__)

ReadEvents = Callable[[], Awaitable[Mapping[str, Any]]]
"""Returns the documents, by the name of their event."""

MAX_LISTENERS: Final = 16
INTERVAL_S: Final = 2.0
_WAITING: Final = 8


class TooManyListeners(Exception):
    """No further listener is admitted."""


class EventHub:
    """Sends each document to all listeners when it has changed.

    A listener that does not read is dropped when it is eight events late.

    Args:
        read: Returns the documents.
        interval_s: Time between two readings, in seconds.
        max_listeners: Further ones are refused.
    """

    def __init__(
        self,
        read: ReadEvents,
        interval_s: float = INTERVAL_S,
        max_listeners: int = MAX_LISTENERS,
    ) -> None:
        self._read = read
        self._interval_s = interval_s
        self._max_listeners = max_listeners
        self._listeners: set[_Listener] = set()
        self._latest: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def listeners(self) -> int:
        """How many listen now."""
        return len(self._listeners)

    def listen(self) -> AsyncGenerator[bytes, None]:
        """Return the events for one listener, beginning with the latest of each name.

        Raises:
            TooManyListeners: There are too many already.
        """
        if len(self._listeners) >= self._max_listeners:
            raise TooManyListeners(
                f"{len(self._listeners)} listeners; at most {self._max_listeners} are admitted"
            )
        listener = _Listener()
        self._listeners.add(listener)
        for event in self._latest.values():
            listener.put(event)
        if self._task is None:
            self._task = start_background(self._run(), "events of the admin page")
        return self._events(listener)

    async def _events(self, listener: _Listener) -> AsyncGenerator[bytes, None]:
        try:
            yield b"retry: 3000\n\n"
            while (event := await listener.next_event()) is not None:
                yield event
        finally:
            self._remove(listener)

    def _remove(self, listener: _Listener) -> None:
        """End a listener, and the readings with the last one."""
        self._listeners.discard(listener)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None
            self._latest.clear()

    async def _run(self) -> None:
        while self._listeners:
            await self._send_changes()
            await asyncio.sleep(self._interval_s)
        self._task = None
        self._latest.clear()

    async def _send_changes(self) -> None:
        try:
            documents = await self._read()
        except Exception:  # the next reading may succeed; the listeners get nothing meanwhile
            log.exception("internal error", page="events")
            return
        sent = False
        for name, document in documents.items():
            event = _event(name, document)
            if self._latest.get(name) != event:
                self._latest[name] = event
                self._send(event)
                sent = True
        if not sent:
            self._send(b": nothing new\n\n")  # so that a connection that is gone is noticed

    def _send(self, event: bytes) -> None:
        for listener in list(self._listeners):
            if not listener.put(event):
                self._listeners.discard(listener)  # another one may take its place
                log.info("listener dropped", reason=f"it is {_WAITING} events late")


class _Listener:
    """The events that one listener has not read yet."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        self._is_dropped = False

    def put(self, event: bytes) -> bool:
        """Add an event; return False if there is no room, which ends the listener."""
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self._is_dropped = True
        return not self._is_dropped

    async def next_event(self) -> bytes | None:
        """Return the next event; None when it is dropped."""
        return None if self._is_dropped else await self._queue.get()


def _event(name: str, document: Any) -> bytes:
    # JSON of orjson has no line feeds, so it is one line of data.
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(document) + b"\n\n"
