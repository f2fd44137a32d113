"""Waits with limits: until the peer has read what was written, and until a deadline."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from gateway.concurrency.timeouts import Timeout
from gateway.ir.errors import DeadlineExceeded
from gateway.transports.contract import ServerLimits


class SlowReaderError(ConnectionError):
    """The client does not read its response, or reads too slowly.

    Attributes:
        limit: The YAML name of the limit.
    """

    def __init__(self, message: str, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


async def drain_writes(
    transport: asyncio.Transport | None, drained: asyncio.Event, limits: ServerLimits
) -> None:
    """Wait until the write buffer is empty.

    Args:
        transport: The transport of the connection; None once it is lost.
        drained: Set while the write buffer is empty.
        limits: The limits of the listener: how long a client may read nothing, and its minimum
            rate.

    Raises:
        SlowReaderError: The client reads too slowly; the connection is closed.
        ConnectionError: The client has left.
    """
    if transport is None:
        raise ConnectionResetError("the client has left")
    now = asyncio.get_running_loop().time
    total = remaining = transport.get_write_buffer_size()
    started = moved = now()
    while not drained.is_set():
        idle_until = moved + limits.write_idle_timeout_s
        rate_until = started + write_time(total - remaining, limits)
        try:
            async with asyncio.timeout(max(0.0, min(idle_until, rate_until) - now())):
                await drained.wait()
        except TimeoutError:
            remaining, before = transport.get_write_buffer_size(), remaining
            if remaining < before:
                moved = now()
                if moved < started + write_time(total - remaining, limits):
                    continue
            elif now() < min(idle_until, rate_until):
                continue  # the timer expired early
            transport.abort()
            limit = (
                "write_min_rate_bytes_s"
                if remaining < before or rate_until < idle_until
                else ("write_idle_timeout_s")
            )
            raise SlowReaderError(
                f"the client read {total - remaining} bytes in {now() - started:.1f} s, "
                f"{remaining} bytes are left ({limit})",
                limit,
            ) from None


class WriteStall:
    """A full write buffer of a connection, until it is empty.

    Args:
        transport: The transport of the connection; None once it is lost.
    """

    __slots__ = ("_began_at", "_left", "_moved_at", "_total", "_transport")

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self._transport = transport
        self._began_at = self._moved_at = time.monotonic()
        self._total = self._left = self._remaining()

    def _remaining(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def idle_s(self, now: float) -> float:
        """Return for how long the peer has read nothing, measured from one call to the next."""
        remaining = self._remaining()
        if remaining < self._left:
            self._moved_at, self._left = time.monotonic(), remaining
        return now - self._moved_at

    def is_too_long(self, now: float, limits: ServerLimits) -> bool:
        """Return whether a client reads nothing, or too slowly."""
        is_idle = self.idle_s(now) > limits.write_idle_timeout_s
        read_bytes = self._total - self._remaining()
        return is_idle or now - self._began_at > write_time(read_bytes, limits)


def write_time(size: int, limits: ServerLimits) -> float:
    """Return how many seconds a client may take to read *size* bytes."""
    return limits.write_min_rate_grace_s + size / limits.write_min_rate_bytes_s


def deadline_scope(deadline: float | None, name: str) -> AbstractAsyncContextManager[None]:
    """Return a scope that raises DeadlineExceeded at *deadline*; *name* is that of the upstream."""
    return _DeadlineScope(deadline, name)


class _DeadlineScope:
    """Implements `deadline_scope`: a generator as context manager would cost twice as much."""

    __slots__ = ("_deadline", "_name", "_timeout")

    def __init__(self, deadline: float | None, name: str) -> None:
        self._deadline = deadline
        self._name = name
        self._timeout: Timeout | None = None

    async def __aenter__(self) -> None:
        if self._deadline is None:
            return
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise self._passed()
        self._timeout = Timeout(remaining)
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
        return DeadlineExceeded(f"the deadline expired during the request to upstream {self._name}")
