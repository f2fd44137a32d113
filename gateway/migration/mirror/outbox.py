"""Outbox: sends sampled calls to the shadow process, and never waits for it.

What the socket does not take stays here, up to a limit; further calls are dropped and counted.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import structlog

from gateway.concurrency.timeouts import is_set_within
from gateway.migration.captures.sampling import CaptureCounts
from gateway.shadow.packet_sender import PacketSender
from gateway.shadow.records.records import RecordedCall
from gateway.shadow.records.transfer import (
    Confirmation,
    SampleMessage,
    ShadowRequest,
    decode_confirmation,
    encode_message,
)

log = structlog.get_logger(__name__)


class OutboxLimits(Protocol):
    """What may wait in an outbox.

    Attributes:
        outbox_bytes: Elements and messages of all calls.
        outbox_calls: Number of calls.
        sample_bytes: Largest call.
    """

    @property
    def outbox_bytes(self) -> int: ...  # noqa: D102
    @property
    def outbox_calls(self) -> int: ...  # noqa: D102
    @property
    def sample_bytes(self) -> int: ...  # noqa: D102


class OutboxSampler(Protocol):
    """Chose the calls of an outbox.

    Attributes:
        options: The limits; they may be replaced.
        counts: What became of the calls.
        percent: Share of the calls that are chosen now.
    """

    @property
    def options(self) -> OutboxLimits: ...  # noqa: D102
    @property
    def counts(self) -> CaptureCounts: ...  # noqa: D102
    @property
    def percent(self) -> float: ...  # noqa: D102


class Outbox(PacketSender):
    """One end of a socket to the shadow process; used by one event loop.

    Args:
        sock: Non-blocking; it keeps the bounds of packets. It is not closed.
        sampler: Has the limits and the counts.
        gather_s: Time that calls may wait until a packet is full.

    Attributes:
        stopped: Why the capture has stopped; "" while it runs.
        used_bytes: Bytes that wait for the socket.
    """

    def __init__(self, sock: socket.socket, sampler: OutboxSampler, gather_s: float = 0.0) -> None:
        super().__init__(sock, gather_s)
        self._sampler = sampler
        self._counts = sampler.counts
        self._confirmed = 0
        self._flushes: set[int] = set()  # numbers that are no calls
        # Calls without a message since the last one.
        self._skipped: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._all_confirmed: asyncio.Event | None = None
        self.stopped = ""

    def put(self, record: RecordedCall, shadow: ShadowRequest | None = None) -> bool:
        """Send a sampled call, or drop and count it; never waits.

        Elements and messages are not copied, and must not change.

        Returns:
            Whether it will be sent.
        """
        if not self.admit():
            return False
        buffers = self._encode(record, shadow)
        size, options = sum(map(len, buffers)), self._sampler.options
        if size <= options.sample_bytes and self.used_bytes + size <= options.outbox_bytes:
            self._send(buffers)
            return True
        self.drop("too_large" if size > options.sample_bytes else "queue")
        return False

    def admit(self) -> bool:
        """Return whether there is room for a sampled call; else drop and count it.

        A caller that asks before it makes the record saves that work.
        """
        options = self._sampler.options
        if self.stopped:
            self.drop("stopped")
        elif self.waiting >= options.outbox_calls or self.used_bytes >= options.outbox_bytes:
            self.drop("queue")
        else:
            return True
        return False

    def skip(self, reason: str, _shadow: ShadowRequest | None = None) -> None:
        """Count a sampled call that cannot be recorded or compared."""
        self._counts.skipped[reason] += 1
        self._skipped[reason] += 1

    def drop(self, reason: str, count: int = 1) -> None:
        """Count sampled calls that are lost."""
        self._counts.dropped[reason] += count
        self._dropped[reason] += count

    def _encode(
        self, record: RecordedCall | None, shadow: ShadowRequest | None = None
    ) -> Sequence[bytes]:
        """Return a message as buffers. Raises for text that is not Unicode."""
        message = SampleMessage(record, shadow=shadow, percent=self._sampler.percent)
        if self._skipped or self._dropped:
            message.skipped, message.dropped = dict(self._skipped), dict(self._dropped)
        return encode_message(message)

    def _send(self, buffers: Sequence[bytes]) -> None:
        """Queue the message that was encoded last."""
        if self._skipped or self._dropped:
            self._skipped.clear()
            self._dropped.clear()
        self._queue(buffers)

    def tell(self, shadow: ShadowRequest | None = None) -> None:
        """Send a message without a call, which has everything before it confirmed."""
        self._send(self._encode(None, shadow))
        self._flushes.add(self.last_number)
        self._schedule()

    async def close(self, timeout_s: float) -> None:
        """Wait until everything is written, and stop; what then has no result is dropped."""
        if not self.is_started:
            return
        self._all_confirmed = asyncio.Event()
        self.tell()
        if not await is_set_within(self._all_confirmed, timeout_s):
            log.warning("calls not recorded", reason="the shadow process did not confirm them")
        self._stop()
        self._resolve(Confirmation(self.epoch, self.last_number))

    def _on_packet(self, packet: bytes) -> None:
        confirmation = decode_confirmation(packet)
        if not confirmation.epoch:  # a new process: what the old one had read is lost
            self.tell()
        elif confirmation.epoch == self.epoch:
            self._resolve(confirmation)

    def _resolve(self, confirmation: Confirmation) -> None:
        """Count what became of all calls up to the confirmed number."""
        flushes = {each for each in self._flushes if each <= confirmation.done}
        self._flushes -= flushes
        calls = confirmation.done - self._confirmed - len(flushes)
        self._confirmed = max(self._confirmed, confirmation.done)
        self._counts.recorded += confirmation.recorded
        self._counts.nbytes += confirmation.nbytes
        self._counts.outcomes.update(confirmation.outcomes)
        self._counts.dropped.update(confirmation.lost)
        self._counts.skipped.update(confirmation.skipped)
        found = confirmation.recorded + sum(confirmation.lost.values())
        lost = calls - found - sum(confirmation.skipped.values())
        if lost > 0:
            self.drop("shadow_down", lost)
        self.stopped = confirmation.stopped
        if self._all_confirmed is not None and self._confirmed == self.last_number:
            self._all_confirmed.set()
