"""Connects the frontends with the shadow process, which records their calls."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace  # noqa: TID251  # a record has no wire origin

from gateway.api.tap import TappedCall
from gateway.ir.bodies.teed_body import TeeBudget, tee_body
from gateway.ir.calls import Call, InferRequest, OpaqueCall, inference_of
from gateway.ir.context import NO_CLIENT, Context
from gateway.ir.errors import GatewayError
from gateway.ir.unread import unread_call
from gateway.migration import names
from gateway.migration.captures.sampling import (
    CaptureCounts,
    CaptureOptions,
    CaptureSampler,
    is_shadow_call,
)
from gateway.migration.mirror.outbox import Outbox
from gateway.migration.replay.wire_messages import READING_HEADERS, messages_of, row_of
from gateway.shadow.draw import sequence_key
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import FORWARDED, Recordable
from gateway.shadow.sender import FinishedCalls, RecordSender, with_version
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics

GATHER_S: Final = 0.02
"""Calls wait for others for this time, which belongs to the 0.25 s that a crash may lose."""

CLOSE_S: Final = 5.0
"""A shadow process that does not confirm the last calls delays a stop for this time."""


class Capturing:
    """One capture of one serving process: it chooses calls, and sends them.

    Args:
        options: What to record.
        sock: To the shadow process.
    """

    def __init__(self, options: CaptureOptions, sock: socket.socket) -> None:
        self._sampler = CaptureSampler(options)
        self.outbox = Outbox(sock, self._sampler, GATHER_S)
        self._sender = RecordSender(self.outbox, lambda: self.options.privacy)

    @property
    def options(self) -> CaptureOptions:
        """What is recorded now."""
        return self._sampler.options

    @property
    def counts(self) -> CaptureCounts:
        """What became of the calls."""
        return self._sampler.counts

    def chooses(self, request: InferRequest, context: Context) -> bool:
        """Return whether to record a call, if its route is recorded. It is not counted yet."""
        model = "" if request.model is None else request.model.name
        key = context.request_id if request.sequence is None else sequence_key(request)
        if not self._sampler.chooses(model, key):
            return False
        return not self.options.route or not is_shadow_call(context)

    def samples_rejected(self) -> bool:
        """Return whether to record a message that has no route, and count it if so."""
        return not self.options.route and self._sampler.samples("", f"{time.monotonic_ns()}")

    def admit(self, route: str) -> bool:
        """Return whether to send a call that has ended; count it if its route is recorded."""
        sampler = self._sampler
        if sampler.options.route not in {"", route}:
            return False
        sampler.counts.sampled += 1
        return self.outbox.admit()

    def put(self, call: Recordable) -> None:
        """Send a call, or count why not."""
        if call.is_refused:
            self.counts.unread["refused"] += 1
        elif call.kind == FORWARDED:
            self.counts.unread["forwarded"] += 1
        reason = self._sampler.reason_to_skip(call)
        if reason:
            self.outbox.skip(reason)
        else:
            self._sender.send(call, None)

    def start(self) -> None:
        """Begin to send calls to the shadow process."""
        self.outbox.start()

    def change(self, options: CaptureOptions) -> None:
        """Choose calls by other options from now on. Limits and files stay as they are."""
        self._sampler.change(options)

    async def close(self) -> None:
        """Wait until all calls are written; idempotent."""
        await self._sender.close()
        await self.outbox.close(CLOSE_S)


def watch_captures(metrics: Metrics, captures: Sequence[Capturing]) -> None:
    """Publish the counts of all captures together."""

    def total(count: Callable[[CaptureCounts], int]) -> Callable[[], dict[tuple[str, ...], int]]:
        return lambda: {(): sum(count(each.counts) for each in captures)}

    def by_reason(
        counter: Callable[[CaptureCounts], Mapping[str, int]],
    ) -> dict[tuple[str, ...], int]:
        found: Counter[str] = Counter()
        for each in captures:
            found.update(counter(each.counts))
        return {(reason,): count for reason, count in found.items()}

    metrics.watch_counter(names.CAPTURE_CALLS, total(lambda counts: counts.recorded))
    metrics.watch_counter(names.CAPTURE_BYTES, total(lambda counts: counts.nbytes))
    metrics.watch_counter(names.CAPTURE_DROPPED, lambda: by_reason(lambda each: each.left_out))
    metrics.watch_counter(names.CAPTURE_UNREAD, lambda: by_reason(lambda each: each.unread))
    metrics.watch_counter(names.CAPTURE_SAMPLED, total(lambda counts: counts.sampled))
    metrics.watch(
        names.CAPTURE_OUTBOX_BYTES,
        lambda: sum(each.outbox.used_bytes for each in captures),
    )


class CapturedCall(TappedCall):
    """A call that is recorded, if its route is.

    Attributes:
        captures: Those that chose it.
    """

    captures: Sequence[Capturing] = ()


class CaptureTap:
    """Passes the inferences of all frontends to the shadow process, which records them.

    Args:
        captures: Each chooses calls for itself.
        new_path: Makes the record of a call's path.
    """

    def __init__(
        self, captures: Sequence[Capturing], new_path: Callable[[], CallPath] = CallPath
    ) -> None:
        self._captures = captures
        self._new_path = new_path
        self._finished = FinishedCalls(self._send)
        self._tee_budget = TeeBudget(sum(each.options.outbox_bytes for each in captures))

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        """Return the exchange of an inference that is sampled, else None."""
        request = call if type(call) is InferRequest else inference_of(call)
        if type(call) is OpaqueCall:
            request = InferRequest(model=call.model, context=call.context)
        if request is None:
            return None
        captures: list[Capturing] = []
        for each in self._captures:  # mostly none: a comprehension costs more
            if each.chooses(request, call.context):
                captures.append(each)  # noqa: PERF401
        if not captures:
            return None
        started, path, teed = time.monotonic(), self._new_path(), None
        reads_elements = any(each.options.privacy.reads_elements for each in captures)
        if reads_elements and type(call) is InferRequest:
            call, teed = tee_body(call, self._tee_budget)
        return CapturedCall(call, started, path, teed=teed, captures=captures)

    def end(self, exchange: TappedCall, /) -> None:
        """Pass a finished exchange to the shadow process, after the response is written."""
        self._finished.put(exchange)

    def send_all(self) -> None:
        """Pass on what has finished, before the captures close."""
        self._finished.send_all()

    def _send(self, exchange: TappedCall) -> None:
        assert isinstance(exchange, CapturedCall)  # noqa: S101  # `begin` made it
        route = exchange.path.route
        captures = [each for each in exchange.captures if each.admit(route)]
        if not captures:
            return
        found = self._finished.recordable(exchange)
        if found is None:
            for each in captures:
                each.outbox.skip("arriving")
            return
        recordable, kept = found
        recordable.request = with_version(recordable.request, exchange.path.model)
        for each in captures:
            own, privacy = recordable, each.options.privacy
            # A forwarded call has no tensors: its messages are its payload.
            is_payload = own.kind == FORWARDED and privacy.payload == "full" and not privacy.tensors
            if privacy.wire or is_payload:
                own = replace(own, wire=messages_of(exchange, kept, _headers(privacy)))
            each.put(own)

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        """Record a message that could not be decoded."""
        for capture in self._captures:
            if capture.samples_rejected():
                capture.put(self._rejected_call(codec, wire, error, response, capture))

    def _rejected_call(
        self, codec: str, wire: Any, error: GatewayError, response: Any, capture: Capturing
    ) -> Recordable:
        privacy, rows = capture.options.privacy, []
        if privacy.wire:
            rows = [
                row_of("request", 0, wire, _headers(privacy)),
                row_of("reply", 0, response, _headers(privacy)),
            ]
        client = NO_CLIENT if error.client is None else error.client
        call = unread_call(codec, wire, client, error.request_id, error.model)
        return Recordable(
            started_us=self._finished.started_us(time.monotonic()),
            request=InferRequest(model=call.model, context=call.context),
            kind="",
            context=call.context,
            agent=client.agent[:256],
            client=client.address,
            code=error.code.value,
            error=error.message,
            wire=rows,
            is_refused=True,
        )


def _headers(privacy: Privacy) -> frozenset[str]:
    """Return the headers of messages that are listed or that a reader of the body needs."""
    return READING_HEADERS | frozenset(privacy.headers)
