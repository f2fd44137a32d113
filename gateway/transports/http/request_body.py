"""Limits of bytes and time for request bodies, for both server implementations.

The checks are in the order of their cost: the announced length before anything is read, then the
received bytes and their rate, then the content coding.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gateway.ir.errors import TooLarge
from gateway.transports.contract import ServerLimits
from gateway.transports.http.content_coding import Inflater, coding_of, inflate
from gateway.transports.http.faults import HttpError
from gateway.transports.reservation import Reservation

EMPTY = memoryview(b"")


def check_declared(length: int | None, limits: ServerLimits) -> None:
    """Refuse a body by its Content-Length, before a byte of it is read.

    Raises:
        TooLarge: It exceeds the limit.
    """
    if length is not None and length > limits.message_bytes:
        raise TooLarge(
            f"request body has {length} bytes, at most {limits.message_bytes} are allowed",
            limit="message_bytes",
        )


class TransferRateLimit:
    """How long to wait for more of one body: idle, total and by the least rate.

    Args:
        limits: The limits that the listener has.
        loop: Its clock.
    """

    def __init__(self, limits: ServerLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._limits = limits
        self._loop = loop
        self._start = self._last = loop.time()
        self._received = 0

    def received(self, size: int) -> None:
        """Note that *size* bytes have arrived."""
        self._received += size
        self._last = self._loop.time()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out of account a time in which nothing is read."""
        begun = self._loop.time()
        try:
            yield
        finally:
            self.exclude_time(self._loop.time() - begun)

    def exclude_time(self, seconds: float) -> None:
        """Leave out of account a time in which nothing was read."""
        self._start += seconds
        self._last += seconds

    def time_left(self) -> tuple[float, str]:
        """Return how many seconds to wait for the next bytes, and the name of the limit."""
        limits = self._limits
        now = self._loop.time()
        by_rate = limits.body_min_rate_grace_s + self._received / limits.body_min_rate_bytes_s
        return min(
            (self._last + limits.body_idle_timeout_s - now, "body_idle_timeout_s"),
            (self._start + limits.body_timeout_s - now, "body_timeout_s"),
            (self._start + by_rate - now, "body_min_rate_bytes_s"),
        )

    def fault(self, limit: str) -> HttpError:
        """Return the error for a wait that has reached *limit*."""
        return HttpError(
            408,
            f"request body arrived too slowly: {self._received} bytes in "
            f"{self._loop.time() - self._start:.1f} s",
            limit=limit,
            close=True,
        )


async def wait_for_body(
    wanted: asyncio.Future[None],
    received_bytes: Callable[[], int],
    pace: TransferRateLimit,
    resume_reading: Callable[[], None],
) -> None:
    """Wait until *wanted* is done: more of a body has arrived, or no more will.

    Args:
        wanted: Done when the caller must continue.
        received_bytes: Returns how many bytes have arrived.
        pace: The timeouts and the minimum rate.
        resume_reading: Continues to read the body.

    Raises:
        HttpError: The body arrives too slowly.
    """
    received = received_bytes()
    resume_reading()
    while not wanted.done():
        if received_bytes() != received:
            pace.received(received_bytes() - received)
            received = received_bytes()
        wait_s, limit = pace.time_left()
        await asyncio.wait([wanted], timeout=max(0.0, wait_s))
        # *wanted* is not done for each piece of a large body, so the progress is checked here.
        if received_bytes() == received and not wanted.done():
            raise pace.fault(limit)
    pace.received(received_bytes() - received)


def too_many_bytes(limits: ServerLimits) -> TooLarge:
    """Return the refusal of a body that has grown past the limit."""
    return TooLarge(
        f"request body has more than {limits.message_bytes} bytes", limit="message_bytes"
    )


def too_many_chunks(limits: ServerLimits) -> TooLarge:
    """Return the refusal of a body in too many chunks."""
    return TooLarge(f"request body has more than {limits.body_chunks} chunks", limit="body_chunks")


async def undo_coding(
    body: memoryview, codings: Sequence[str], limits: ServerLimits, held: Reservation
) -> memoryview:
    """Return *body* without its content coding.

    Raises:
        Unsupported: The coding is unknown.
        MalformedMessage: The content is not of its coding.
        TooLarge: It inflates too far.
        Overloaded: No room in the budget.
    """
    coding = coding_of(codings)
    if coding is None:
        return body
    inflater = Inflater(
        coding,
        body,
        limits.message_bytes,
        limits.decompressed_ratio,
        limits.decompressed_ratio_floor_bytes,
    )
    return await inflate(inflater, held.grow)
