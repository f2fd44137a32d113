"""EventTap: chooses the calls of a serving process that sinks of events get."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import structlog

from gateway.api.tap import TappedCall
from gateway.events.books import EventMetrics
from gateway.events.choice import ServingSink, count_of, privacy_of_all
from gateway.events.definition import SinkDefinition
from gateway.events.outbox import ChosenCall, EventOutbox
from gateway.events.request_completion import RequestCompletion, needs_completion
from gateway.ir.bodies.teed_body import TeeBudget, tee_body
from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.context import Context
from gateway.ir.errors import GatewayError
from gateway.service import Service
from gateway.shadow.draw import sequence_key
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import Recordable
from gateway.shadow.sender import FinishedCalls, RecordSender, with_version
from gateway.telemetry.call_path import CallPath

log = structlog.get_logger(__name__)

_CE_ID: Final = "ce-id"
_MAX_ID: Final = 256
_MAX_COMPLETING: Final = 256
_COMPLETION_S: Final = 2.0
"""Metadata that come later leave a request as the client sent it."""


class ChosenExchange(TappedCall):
    """A call that sinks of events get.

    Attributes:
        sinks: Those that chose it.
    """

    sinks: Sequence[ServingSink] = ()


class EventTap:
    """The sinks of one serving process.

    Args:
        definitions: The sinks.
        sock: To the shadow process.
        workers: Number of serving processes.
        new_path: Makes the record of a call's path.

    Attributes:
        metrics: The books of all sinks.
    """

    def __init__(
        self,
        definitions: Sequence[SinkDefinition],
        sock: socket.socket,
        workers: int,
        new_path: Callable[[], CallPath] = CallPath,
    ) -> None:
        self._workers = workers
        self._new_path = new_path
        self._sinks: dict[str, ServingSink] = {}
        self._active: tuple[ServingSink, ...] = ()
        self.metrics = EventMetrics(
            lambda: {name: each.books for name, each in self._sinks.items()}
        )
        self._privacy = Privacy()
        # Room for bodies that are forwarded while they arrive.
        self._tee_budget = TeeBudget(
            max((each.config.outbox_bytes for each in definitions), default=0)
        )
        self._finished = FinishedCalls(self._send)
        self._outbox = EventOutbox(sock, self._sinks)
        self._sender = RecordSender(self._outbox, lambda: self._privacy)
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
        self._privacy = privacy_of_all([each.definition for each in self._sinks.values()])
        self._outbox.change(self._active)

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        """Return the exchange of an inference that sinks get, else None."""
        request = call if type(call) is InferRequest else inference_of(call)
        sinks = () if request is None else self._choose(request, call.context)
        if not sinks:
            return None
        started, path, teed = monotonic(), self._new_path(), None
        if self._privacy.reads_elements and type(call) is InferRequest:
            call, teed = tee_body(call, self._tee_budget)
        return ChosenExchange(call, started, path, teed=teed, sinks=sinks)

    def end(self, exchange: TappedCall, /) -> None:
        """Pass a finished exchange to the shadow process, after the response is written."""
        self._finished.put(exchange)

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        """Leave out a message that could not be decoded: no sink gets it."""

    def _choose(self, request: InferRequest, context: Context) -> tuple[ServingSink, ...]:
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

    def _send(self, exchange: TappedCall) -> None:
        """Send a call that has ended to the sinks that chose it, or count why not."""
        assert isinstance(exchange, ChosenExchange)  # noqa: S101  # `begin` made it
        found = self._finished.recordable(exchange)
        call = None if found is None else found[0]  # None if its body was not kept
        if call is not None:
            call.request = with_version(call.request, exchange.path.model)
        is_success = _is_success(exchange)
        model = exchange.path.model
        if call is not None and call.request is not None and call.request.model is not None:
            model = call.request.model.name
        events = []
        for sink in exchange.sinks:
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
        self._finished.send_all()
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
