"""A serving process and a shadow process in one event loop, with sinks that the test steers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gateway.events.books import DropReason
from gateway.events.choice import ServingSink, count_of
from gateway.events.definition import SinkDefinition
from gateway.events.hub import SinkHub
from gateway.events.messages import (
    CALL_BYTES,
    EventMessage,
    EventResults,
    decode_event_message,
    encode_call,
)
from gateway.events.outbox import ChosenCall, EventOutbox
from gateway.events.settings import EventSinkConfig
from gateway.events.sinks.queue import (
    HeldCall,
    QueuedEvent,
    QueueOptions,
    SendOutcome,
    SinkQueue,
)
from gateway.ir.calls import InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.tensors.tensor import array_tensor
from gateway.shadow.inbox import Inbox
from gateway.shadow.packets import socket_pair
from gateway.shadow.records.privacy import Hasher, Privacy
from gateway.shadow.records.records import RecordedCall, record_of
from tests.simulation.virtual_time import elapse
from tests.unit.shadow.kit import recordable

EVERYTHING = Privacy(payload="full", parameters=True, can_lack_elements=True)
BOTH = 3


def definition(name: str = "audit", **keys: Any) -> SinkDefinition:
    values = {"url": "http://127.0.0.1:1/", "payload": "full", **keys}
    return SinkDefinition(name, EventSinkConfig(**values), Path("/etc/gateway"))


def record(number: int = 0, size: int = 16) -> RecordedCall:
    """Return a call whose reply has a number of bytes."""
    reply = InferResponse(
        model=ModelRef("fraud"), outputs=(array_tensor("y", np.zeros(size, np.uint8)),)
    )
    return record_of(recordable(number, items=[(1400, reply)]), EVERYTHING, None)


def size_of(call: RecordedCall) -> int:
    return sum(map(len, encode_call(call))) + CALL_BYTES


class FakeSink:
    """A sink that does what the test says.

    Attributes:
        mode: "deliver", "refuse", "fail", "unreachable", "hang" or "raise".
        takes_s: Time of each attempt.
        delivered: Events that it took.
        attempts: How often it got each event, by its id and kind.
        most: Most attempts at the same time.
    """

    def __init__(self) -> None:
        self.mode = "deliver"
        self.takes_s = 0.0
        self.delivered = 0
        self.attempts: Counter[tuple[str, int]] = Counter()
        self.batches: list[int] = []
        self.most = self.running = 0
        self.is_closed = False

    async def send(self, events: Sequence[QueuedEvent], /) -> Sequence[tuple[SendOutcome, str]]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self._send(events)
        finally:
            self.running -= 1

    async def _send(self, events: Sequence[QueuedEvent]) -> Sequence[tuple[SendOutcome, str]]:
        self.batches.append(len(events))
        self.attempts.update((each.held.note.ce_id, each.kind) for each in events)
        mode = self.mode
        if self.takes_s:
            await elapse(self.takes_s)
        if mode == "hang":
            await asyncio.Event().wait()
        if mode == "raise":
            raise RuntimeError("a defect of the sink")
        if mode == "deliver":
            self.delivered += len(events)
        outcomes = {
            "deliver": SendOutcome.DELIVERED,
            "refuse": SendOutcome.REFUSED,
            "fail": SendOutcome.FAILED,
            "unreachable": SendOutcome.UNREACHABLE,
        }
        return [(outcomes[mode], "as the test says")] * len(events)

    async def close(self) -> None:
        self.is_closed = True


class Processes:
    """Both processes, with a socket between them.

    Attributes:
        sinks: What the serving process knows of each sink.
        outbox: Sends its calls.
        fakes: What events are sent to, by the name of the sink.
        sampled: Events that were sampled, as the test counts them.
    """

    def __init__(self, *definitions: SinkDefinition, workers: int = 1) -> None:
        self._ours, self._theirs = socket_pair()
        self._definitions = definitions
        self._inbox: Inbox[EventMessage] | None = None
        self._hub: SinkHub | None = None
        self._life = 0
        self.sinks = {each.name: ServingSink(each, workers) for each in definitions}
        self.outbox = EventOutbox(self._ours, self.sinks)
        self.outbox.change(self.sinks.values())
        self.fakes = {each.name: FakeSink() for each in definitions}
        self.sampled: Counter[str] = Counter()
        self._number = 0

    def start(self) -> None:
        self.outbox.start()
        self.start_shadow()

    def start_shadow(self) -> None:
        inbox = Inbox({1: self._theirs}, decode_event_message, EventResults())
        life = self._life

        def confirm(number: int, results: EventResults) -> None:
            if life == self._life:  # a dead process sends nothing
                inbox.confirm(number, results)

        def open_queue(
            made: SinkDefinition,
            _hasher: Hasher,
            on_done: Callable[[HeldCall, DropReason | None], None],
            /,
        ) -> SinkQueue:
            config = made.config
            options = QueueOptions(config.attempts, config.concurrency, config.timeout)
            return SinkQueue(made.name, self.fakes[made.name], options, on_done)

        self._inbox, self._hub = inbox, SinkHub(self._definitions, confirm, open_queue)
        inbox.start(self._hub)

    def kill_shadow(self, *, reads: bool) -> None:
        """End the shadow process at once; before, it reads what the socket holds, or does not."""
        assert self._inbox is not None
        if reads:
            self._inbox.stop()
        asyncio.get_running_loop().remove_reader(self._theirs.fileno())
        self._life += 1

    def change(self, *definitions: SinkDefinition) -> None:
        """Reload with other sinks of the same names."""
        self._definitions = definitions
        for each in definitions:
            self.sinks[each.name].change(each)
        self.outbox.change(self.sinks[each.name] for each in definitions)

    def call(self, *names: str, size: int = 16, events: int = BOTH) -> None:
        """Serve a call that these sinks chose."""
        self._number += 1
        chosen = []
        for name in names or tuple(self.sinks):
            self.sampled[name] += count_of(events)
            if self.sinks[name].admit(count_of(events)):
                chosen.append((self.sinks[name], events))
        if chosen:
            call = ChosenCall(tuple(chosen), f"call-{self._number}", "1")
            self.outbox.put(record(self._number, size), call)

    async def stop_shadow(self) -> None:
        assert self._inbox is not None
        assert self._hub is not None
        self._inbox.stop()
        await self._hub.close()

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
