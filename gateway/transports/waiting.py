"""Waiting on a peer, within limits: until it has taken what was written, until a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.ir.errors import DeadlineExceeded


class NotTaken(ConnectionError):
    """The client does not read its answer."""


async def flushed(
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
                raise NotTaken(
                    f"the client took nothing for {idle_timeout_s} s, {now_left} bytes are left"
                ) from None
            left = now_left


@asynccontextmanager
async def until(deadline: float | None, name: str) -> AsyncIterator[None]:
    """Raise DeadlineExceeded at *deadline*, or now if it is past."""
    if deadline is None:
        yield
        return
    left = deadline - time.monotonic()
    message = f"the deadline passed while upstream {name} was asked"
    if left <= 0:
        raise DeadlineExceeded(message)
    try:
        async with asyncio.timeout(left):
            yield
    except TimeoutError:
        raise DeadlineExceeded(message) from None
