"""How long a server waits for a client to read its response."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.transports.contract import ServerLimits
from gateway.transports.net.write_drain import SlowReaderError, drain_writes


class Sink:
    """A transport whose client reads one byte per check of the buffer, or nothing."""

    def __init__(self, *, reads: bool) -> None:
        self.buffered_bytes = 1_000_000
        self.is_aborted = False
        self._reads = reads

    def get_write_buffer_size(self) -> int:
        self.buffered_bytes -= self._reads
        return self.buffered_bytes

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize(
    ("reads", "limits", "limit"),
    [
        (True, {"write_min_rate_grace_s": 0.1}, "write_min_rate_bytes_s"),
        (False, {"write_min_rate_grace_s": 0.01}, "write_min_rate_bytes_s"),
        (False, {"write_min_rate_grace_s": 9.0}, "write_idle_timeout_s"),
    ],
    ids=["slow", "nothing_for_long", "nothing"],
)
async def test_a_slow_reader_is_disconnected(
    reads: bool, limits: dict[str, Any], limit: str
) -> None:
    """The error names the limit and the bytes that the client has read."""
    sink = Sink(reads=reads)
    found = ServerLimits(write_idle_timeout_s=0.02, **limits)
    with pytest.raises(SlowReaderError, match=rf"the client read \d+ bytes in .*{limit}") as caught:
        await drain_writes(cast("asyncio.Transport", sink), asyncio.Event(), found)
    assert (limit, True) == (caught.value.limit, sink.is_aborted)


async def test_draining_waits_until_the_buffer_is_empty() -> None:
    """The connection then stays open."""
    sink, drained = Sink(reads=True), asyncio.Event()
    waiting = asyncio.ensure_future(
        drain_writes(cast("asyncio.Transport", sink), drained, ServerLimits())
    )
    await asyncio.sleep(0)
    assert not waiting.done()
    drained.set()
    await waiting
    assert not sink.is_aborted
