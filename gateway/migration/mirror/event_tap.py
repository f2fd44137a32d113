"""EventTap: chooses the calls of a serving process that sinks of events get."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

import structlog

from gateway.api.tap import TappedCall
from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import Context
from gateway.migration.events.books import EventMetrics
from gateway.migration.events.choice import ServingSink, count_of, privacy_of_all
from gateway.migration.events.definition import SinkDefinition
from gateway.migration.mirror.event_outbox import ChosenCall, EventOutbox
from gateway.migration.mirror.request_completion import RequestCompletion, needs_completion
from gateway.service import Service
from gateway.shadow.draw import sequence_key
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import Recordable
from gateway.shadow.sender import RecordSender

log = structlog.get_logger(__name__)

_CE_ID: Final = "ce-id"
_MAX_ID: Final = 256
_MAX_COMPLETING: Final = 256
_COMPLETION_S: Final = 2.0
"""Metadata that come later leave a request as the client sent it."""


class EventTap:
    """The sinks of one serving process.

    Args:
        definitions: The sinks.
        sock: To the shadow process.
        workers: Number of serving processes.

    Attributes:
        metrics: The books of all sinks.
        tee_bytes: Room for bodies that are forwarded while they arrive, at the start.
        privacy: What records need for all sinks.
    """

    def __init__(
        self, definitions: Sequence[SinkDefinition], sock: socket.socket, workers: int
    ) -> None:
        self._workers = workers
        self._sinks: dict[str, ServingSink] = {}
        self._active: tuple[ServingSink, ...] = ()
        self.metrics = EventMetrics(
            lambda: {name: each.books for name, each in self._sinks.items()}
        )
        self.privacy = Privacy()
        self.tee_bytes = max((each.config.outbox_bytes for each in definitions), default=0)
        self._outbox = EventOutbox(sock, self._sinks)
        self._sender = RecordSender(self._outbox, lambda: self.privacy)
        self._completion = RequestCompletion()
        self._completing: set[asyncio.Task[None]] = set()
        self.change(definitions)

    def change(self, definitions: Sequence[SinkDefinition]) -> None:
        """Follow other sinks from now on; calls under way go to those that chose them."""
        for each in definitions:
            found = self._sinks.get(each.name)
            if found is None:
                self._sinks[each.name] = ServingSink(each, self._workers)
            elif found.id != each.id:
                found.change(each)
        self._active = tuple(self._sinks[each.name] for each in definitions)
        self.privacy = privacy_of_all([each.definition for each in self._sinks.values()])
        self._outbox.change(self._active)

    def choose(self, request: InferRequest, context: Context) -> tuple[ServingSink, ...]:
        """Return the sinks that get a call, if its model is theirs. It is not counted yet."""
        name = "" if request.model is None else request.model.name
        found = []
        for sink in self._active:
            # A client of grps names a model by "name-version"; the router knows where one ends.
            if sink.matches(name) or "-" in name:
                key = context.request_id if request.sequence is None else sequence_key(request)
                if sink.chooses(key):
                    found.append(sink)
        return tuple(found)

    def send(
        self, sinks: Sequence[ServingSink], exchange: TappedCall, call: Recordable | None
    ) -> None:
        """Send a call that has ended to the sinks that chose it, or count why not.

        Args:
            sinks: Those that chose it.
            exchange: The call.
            call: What is sent of it; None if its body was not kept.
        """
        is_success = _is_success(exchange)
        model = exchange.path.model
        if call is not None and call.request is not None and call.request.model is not None:
            model = call.request.model.name
        events = []
        for sink in sinks:
            bits = sink.events(is_success=is_success)
            if bits and sink.matches(model) and sink.admit(count_of(bits)):
                events.append((sink, bits))
        if not events:
            return
        context = exchange.call.context
        version = exchange.items[-1][1].model.version if exchange.items else ""
        chosen = ChosenCall(tuple(events), _event_id(context), version)
        if call is None:
            self._outbox.skip("arriving", chosen)
        elif self._should_complete(call, exchange):
            task = asyncio.create_task(self._send_completed(call, chosen, exchange.service))
            self._completing.add(task)
            task.add_done_callback(self._completing.discard)
        else:
            self._sender.send(call, chosen)

    def _should_complete(self, call: Recordable, exchange: TappedCall) -> bool:
        return (
            call.request is not None
            and exchange.service is not None
            and needs_completion(call.request)
            and len(self._completing) < _MAX_COMPLETING
        )

    async def _send_completed(
        self, call: Recordable, chosen: ChosenCall, service: Service | None
    ) -> None:
        try:
            if call.request is not None and service is not None:
                async with asyncio.timeout(_COMPLETION_S):
                    call.request = await self._completion.complete(call.request, service)
        except TimeoutError:
            pass  # it is sent as the client sent it
        except Exception:  # a defect costs the completion
            log.exception("request not completed")
        self._sender.send(call, chosen)

    def start(self) -> None:
        """Begin to send calls to the shadow process."""
        self._outbox.start()

    async def close(self, timeout_s: float) -> None:
        """Wait for results, and drop what then has none; idempotent."""
        if self._completing:
            await asyncio.wait(self._completing)
        await self._sender.close()
        await self._outbox.close(timeout_s)


def _is_success(exchange: TappedCall) -> bool:
    if exchange.error is not None or not exchange.items:
        return False
    if type(exchange.call) is StreamInferRequest and not exchange.is_complete:
        return False
    return all(item.error is None for _, item in exchange.items)


def _event_id(context: Context) -> str:
    for name, value in context.metadata:
        if name == _CE_ID and 0 < len(value) <= _MAX_ID:
            return value
    return str(uuid4())
