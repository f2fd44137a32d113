"""Waiting on a peer, within limits: until it has taken what was written, until a deadline."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from gateway.concurrency.timeouts import Timeout
from gateway.ir.errors import DeadlineExceeded


class SlowReaderError(ConnectionError):
    """The client does not read its answer."""


async def drain_writes(
    transport: asyncio.Transport | None, taken: asyncio.Event, idle_timeout_s: float
) -> None:
    """Wait until the kernel has taken everything that was written.

    Args:
        transport: Of the connection; None once it is lost.
        taken: Set while nothing waits to be written.
        idle_timeout_s: How long the reader may take nothing.

    Raises:
        NotTaken: The reader took nothing for so long; the connection is cut.
        ConnectionError: The client has left.
    """
    if transport is None:
        raise ConnectionResetError("the client has left")
    left = transport.get_write_buffer_size()
    while not taken.is_set():
        try:
            async with asyncio.timeout(idle_timeout_s):
                await taken.wait()
        except TimeoutError:
            now_left = transport.get_write_buffer_size()
            if now_left >= left:
                transport.abort()
                raise SlowReaderError(
                    f"the client took nothing for {idle_timeout_s} s, {now_left} bytes are left"
                ) from None
            left = now_left


def deadline_scope(deadline: float | None, name: str) -> AbstractAsyncContextManager[None]:
    """Raise DeadlineExceeded at *deadline*, or now if it is past; *name* is the upstream's."""
    return _DeadlineScope(deadline, name)


class _DeadlineScope:
    """A class, since a generator made into a context manager costs twice as much."""

    __slots__ = ("_deadline", "_name", "_timeout")

    def __init__(self, deadline: float | None, name: str) -> None:
        self._deadline = deadline
        self._name = name
        self._timeout: Timeout | None = None

    async def __aenter__(self) -> None:
        if self._deadline is None:
            return
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._passed()
        self._timeout = Timeout(left)
        self._timeout.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timeout is None:
            return
        try:
            self._timeout.__exit__(kind, error, traceback)
        except TimeoutError:
            raise self._passed() from None
        if isinstance(error, TimeoutError):
            raise self._passed() from None

    def _passed(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"the deadline passed while upstream {self._name} was asked")
