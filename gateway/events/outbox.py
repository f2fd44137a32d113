"""EventOutbox: sends calls to the sinks of events in the shadow process, and keeps their books.

Each sink has bytes of its own: they are used from the moment when a call is sent until the shadow
process is done with it. So a sink that takes nothing fills its own room only.
"""

import asyncio
import socket
from collections.abc import Iterable, Mapping
from typing import Final

import structlog
from msgspec import Struct

from gateway.concurrency.timeouts import is_set_within
from gateway.events.choice import ServingSink, count_of
from gateway.events.messages import (
    CALL_BYTES,
    EventNote,
    EventResults,
    decode_results,
    encode_call,
    encode_definitions,
    encode_note,
)
from gateway.shadow.packet_sender import PacketSender
from gateway.shadow.records.records import RecordedCall

log = structlog.get_logger(__name__)

_GATHER_S: Final = 0.02
_LAST_RESULTS_S: Final = 1.0
"""The shadow process drops events within this time when it is told to."""


class ChosenCall(Struct, frozen=True):
    """What the sinks of a call get of it.

    Attributes:
        events: The events for each sink, as bits.
        ce_id: The name of the events.
        version: The version of the model, as its server replied.
    """

    events: tuple[tuple[ServingSink, int], ...]
    ce_id: str
    version: str


class EventOutbox(PacketSender):
    """One end of a socket to the shadow process; used by one event loop.

    Args:
        sock: Non-blocking; it keeps the bounds of packets. It is not closed.
        sinks: All sinks that there ever were, by name.
    """

    def __init__(self, sock: socket.socket, sinks: Mapping[str, ServingSink]) -> None:
        super().__init__(sock, _GATHER_S)
        self._sinks = sinks
        self._in_force: tuple[ServingSink, ...] = ()
        # Events and bytes that each sink had sent when a question was asked, by its number.
        self._marks: dict[int, dict[str, tuple[int, int]]] = {}
        self._questions = 0
        self._sent: dict[str, tuple[int, int]] = {}
        self._resolved: dict[str, tuple[int, int]] = {}
        self._is_closing = False
        self._all_resolved: asyncio.Event | None = None

    def start(self) -> None:
        """Begin to send and to receive, on the running event loop."""
        super().start()
        self._announce()

    def change(self, sinks: Iterable[ServingSink]) -> None:
        """Send to these sinks from now on."""
        self._in_force = tuple(sinks)
        if self.is_started:
            self._announce()

    def put(self, record: RecordedCall, call: ChosenCall) -> bool:
        """Send a call to its sinks, or drop and count it; never waits.

        Elements are not copied, and must not change.

        Returns:
            Whether it will be sent.
        """
        if self._is_closing:
            self._drop(call, "shutdown")
            return False
        buffers = encode_call(record)
        size = sum(map(len, buffers)) + CALL_BYTES
        events: dict[str, int] = {}
        for sink, bits in call.events:
            count = count_of(bits)
            if sink.used_bytes + size > sink.limit_bytes:
                sink.books.dropped["outbox"] += count
                continue
            sink.used_bytes += size
            self._add(self._sent, sink.definition.name, count, size)
            events[sink.id] = bits
        if not events:
            return False
        self._queue([encode_note(EventNote(events, call.ce_id, call.version)), *buffers])
        return True

    def skip(self, _reason: str, call: ChosenCall) -> None:
        """Count a call that has no record."""
        self._drop(call, "outbox")

    def _drop(self, call: ChosenCall, reason: str) -> None:
        for sink, bits in call.events:
            sink.books.dropped[reason] += count_of(bits)

    @staticmethod
    def _add(totals: dict[str, tuple[int, int]], name: str, events: int, nbytes: int) -> None:
        before = totals.get(name, (0, 0))
        totals[name] = before[0] + events, before[1] + nbytes

    def _announce(self) -> None:
        """Tell the shadow process the sinks, and ask what it has."""
        self._ask(encode_definitions([each.definition for each in self._in_force]))

    def _ask(
        self, definitions: bytes | None = None, *, flush: bool = False, ends: bool = False
    ) -> None:
        self._questions += 1
        self._marks[self._questions] = dict(self._sent)
        number = self._questions
        note = EventNote(definitions=definitions, question=number, flush=flush, ends=ends)
        self._queue([encode_note(note)])
        self._schedule()

    async def close(self, timeout_s: float) -> None:
        """Wait for results, and drop what then has none; idempotent."""
        if not self.is_started:
            return
        self._is_closing = True
        self._all_resolved = asyncio.Event()
        self._ask(flush=True)
        if not await self._wait_resolved(timeout_s):
            self._ask(ends=True)
            await self._wait_resolved(_LAST_RESULTS_S)
        for name, sink in self._sinks.items():
            events, nbytes = self._waiting(self._sent, name)
            self._lose(sink, events, nbytes, "shutdown")
        self._stop()

    async def _wait_resolved(self, timeout_s: float) -> bool:
        assert self._all_resolved is not None  # noqa: S101  # `close` sets it
        self._check_resolved()
        return await is_set_within(self._all_resolved, timeout_s)

    # -- receiving

    def _on_packet(self, packet: bytes) -> None:
        results = decode_results(packet)
        if not results.epoch:  # a new process: what the old one had is lost
            self._announce()
        elif results.epoch == self.epoch:
            self._apply(results)

    def _apply(self, results: EventResults) -> None:
        """Count results, and as lost what was sent before a question and is nowhere any more."""
        for name, result in results.sinks.items():
            sink = self._sinks.get(name)
            if sink is None:
                continue
            sink.books.delivered += result.delivered
            sink.books.dropped.update(result.dropped)
            sink.used_bytes -= result.nbytes
            self._add(self._resolved, name, result.events, result.nbytes)
        mark = self._marks.pop(results.question, {})
        for name in mark:
            events, nbytes = self._waiting(mark, name)
            held = results.held.get(name)
            if held is not None:
                events, nbytes = events - held.events, nbytes - held.nbytes
            self._lose(self._sinks[name], events, nbytes, "worker_died")
        self._check_resolved()

    def _waiting(self, sent: Mapping[str, tuple[int, int]], name: str) -> tuple[int, int]:
        sent_events, sent_bytes = sent.get(name, (0, 0))
        events, nbytes = self._resolved.get(name, (0, 0))
        return sent_events - events, sent_bytes - nbytes

    def _lose(self, sink: ServingSink, events: int, nbytes: int, reason: str) -> None:
        if events <= 0 and nbytes <= 0:
            return
        sink.books.dropped[reason] += events
        sink.used_bytes -= nbytes
        self._add(self._resolved, sink.definition.name, events, nbytes)
        log.warning("events lost", sink=sink.definition.name, events=events, reason=reason)

    def _check_resolved(self) -> None:
        if self._all_resolved is not None and self._sent == self._resolved:
            self._all_resolved.set()
