"""SinkHub: receives the calls of all serving processes, and gives each sink its events."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gateway.events.books import DropReason
from gateway.events.definition import SinkDefinition
from gateway.events.messages import (
    REQUEST,
    RESPONSE,
    EventMessage,
    EventResults,
    Held,
    SinkResult,
    decode_definitions,
)
from gateway.events.sinks.queue import HeldCall, SinkQueue
from gateway.shadow.packets import Sender
from gateway.shadow.records.privacy import Hasher

Confirm = Callable[[int, EventResults], None]
"""Sends results to the serving process of a number."""

CONFIRM_S: Final = 0.05
"""Results wait for others for this time, so that serving processes wake up less often."""


class OpenQueue(Protocol):
    """Opens the queue of a sink."""

    def __call__(
        self,
        definition: SinkDefinition,
        hasher: Hasher,
        on_done: Callable[[HeldCall, DropReason | None], None],
        /,
    ) -> SinkQueue:
        """Return the queue."""
        ...


class SinkHub:
    """The sinks of the shadow process.

    Args:
        definitions: The sinks of the configuration that the process began with.
        confirm: Receives what became of events.
        open_queue: Opens the queue of a sink.

    Attributes:
        has_room: Always; serving processes bound what they send.
    """

    has_room: Final = True

    def __init__(
        self, definitions: Iterable[SinkDefinition], confirm: Confirm, open_queue: OpenQueue
    ) -> None:
        self._definitions = {each.id: each for each in definitions}
        self._confirm = confirm
        self._open_queue = open_queue
        self._hasher = Hasher()
        self._queues: dict[str, SinkQueue] = {}
        self._in_force: dict[int, frozenset[str]] = {}  # by the number of the serving process
        self._held: dict[Sender, dict[str, Held]] = {}
        self._results: dict[Sender, dict[str, SinkResult]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def put(self, sender: Sender, _number: int, message: EventMessage, _size: int) -> None:
        """Take a message; never waits and never raises."""
        note = message.note
        if note.definitions is not None:
            self._change(sender[0], decode_definitions(note.definitions))
        for sink_id, events in note.events.items():
            self._put_call(sender, message, sink_id, events)
        if note.flush:
            for queue in self._queues.values():
                queue.flush()
        if note.ends:
            for queue in self._queues.values():
                queue.drop_sender(sender)
        if note.question:
            held = self._held.get(sender, {})
            self._send(sender, note.question, held)

    def _put_call(self, sender: Sender, message: EventMessage, sink_id: str, events: int) -> None:
        kinds = [kind for kind in (REQUEST, RESPONSE) if events & kind]
        held = HeldCall(sender, message.note, message.call, len(kinds))
        definition = self._definitions.get(sink_id)
        if definition is None:  # a reload came between the death of a process and this one
            self._count(sender, sink_id, SinkResult(dropped={"worker_died": len(kinds)}))
            return
        total = self._held.setdefault(sender, {}).setdefault(definition.name, Held())
        total.events += len(kinds)
        total.nbytes += held.nbytes
        queue = self._queues.get(sink_id)
        if queue is None:
            queue = self._queues[sink_id] = self._open(definition)
        queue.put(held, kinds)

    def _open(self, definition: SinkDefinition) -> SinkQueue:
        def on_done(held: HeldCall, reason: DropReason | None) -> None:
            held.events -= 1
            nbytes = 0 if held.events else held.nbytes
            total = self._held[held.sender][definition.name]
            total.events -= 1
            total.nbytes -= nbytes
            dropped = {} if reason is None else {str(reason): 1}
            self._count(
                held.sender, definition.name, SinkResult(int(reason is None), dropped, nbytes)
            )

        return self._open_queue(definition, self._hasher, on_done)

    def _change(self, number: int, definitions: tuple[SinkDefinition, ...]) -> None:
        """Note the sinks that a serving process sends to, and close those that none does."""
        self._definitions |= {each.id: each for each in definitions}
        self._in_force[number] = frozenset(each.id for each in definitions)
        used = frozenset[str]().union(*self._in_force.values())
        for sink_id in [each for each in self._queues if each not in used]:
            if self._queues[sink_id].is_empty:
                task = asyncio.create_task(self._queues.pop(sink_id).close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    # -- results

    def _count(self, sender: Sender, name: str, result: SinkResult) -> None:
        total = self._results.setdefault(sender, {}).setdefault(name, SinkResult())
        total.delivered += result.delivered
        total.nbytes += result.nbytes
        for reason, count in result.dropped.items():
            total.dropped[reason] = total.dropped.get(reason, 0) + count
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CONFIRM_S, self._send_all)

    def _send_all(self) -> None:
        self._timer = None
        for sender in list(self._results):
            self._send(sender)

    def _send(self, sender: Sender, question: int = 0, held: dict[str, Held] | None = None) -> None:
        sinks = self._results.pop(sender, {})
        self._confirm(sender[0], EventResults(sender[1], sinks, question, held or {}))

    async def close(self) -> None:
        """Drop what is not sent, and tell the serving processes; idempotent."""
        queues, self._queues = self._queues, {}
        await asyncio.gather(*(queue.close() for queue in queues.values()), *self._closing)
        if self._timer is not None:
            self._timer.cancel()
        self._send_all()
