"""Connects the frontends with the shadow process, and the calls with the stock of callers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.app.shadow.outbox import Outbox
from gateway.app.shadow.sender import FinishedCalls, RecordSender
from gateway.captures.privacy import Privacy
from gateway.captures.records import Recordable, WireRow
from gateway.captures.sampling import CaptureOptions, CaptureSampler
from gateway.config.load import LoadedConfig
from gateway.ir.calls import Call, InferRequest, inference_of
from gateway.ir.context import NO_CLIENT, Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.teed_body import TeeBudget, tee_body
from gateway.migration.stock import SAVE_S, Stock, stock_path
from gateway.migration.wire_messages import READING_HEADERS, Message, body_of, head_of
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.tapped_call import TappedCall

CLOSE_S: Final = 5.0
"""A shadow process that does not confirm the last calls delays a stop for this time."""


class CaptureTap:
    """Passes the inferences of all frontends to the shadow process, which records them.

    Args:
        sampler: Decides which calls are recorded.
        outbox: Sends them.
        new_path: Makes the record of a call's path.
    """

    def __init__(
        self,
        sampler: CaptureSampler,
        outbox: Outbox,
        new_path: Callable[[], CallPath] = CallPath,
    ) -> None:
        self._sampler = sampler
        self._sender = RecordSender(outbox, lambda: self._privacy)
        self._new_path = new_path
        self._finished = FinishedCalls()
        self._tee_budget = TeeBudget(sampler.options.outbox_bytes)

    @property
    def _privacy(self) -> Privacy:
        return self._sampler.options.privacy

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        """Return the exchange of an inference that is sampled, else None."""
        request = inference_of(call)
        if request is None:
            return None
        model = "" if request.model is None else request.model.name
        sequence = request.sequence
        key = call.context.request_id if sequence is None else f"{model}|{sequence.id}"
        if not self._sampler.samples(model, key):
            return None
        started, path = time.monotonic(), self._new_path()
        if not self._privacy.reads_elements or type(call) is not InferRequest:
            return TappedCall(call, started, path)
        teeing, teed = tee_body(call, self._tee_budget)
        return TappedCall(teeing, started, path, teed=teed)

    def end(self, exchange: TappedCall, /) -> None:
        """Pass a finished exchange to the shadow process."""
        found = self._finished.recordable(exchange)
        if found is None:
            self._sender.outbox.skip("arriving")
            return
        recordable, kept = found
        recordable.request = _resolved(recordable.request, exchange.path.model)
        if self._privacy.wire:
            origin = exchange.call.context.origin
            if origin is not None:
                row = _wire_row("request", 0, origin.wire, self._privacy)
                recordable.wire.append(
                    WireRow(row.side, row.place, row.head, row.body + kept.tobytes())
                )
            recordable.wire += [
                _wire_row("reply", place, each, self._privacy)
                for place, each in enumerate(exchange.responses)
            ]
        self._put(recordable)

    def _put(self, call: Recordable) -> None:
        """Send a call, or count why not."""
        reason = self._sampler.reason_to_skip(call)
        if reason:
            self._sender.outbox.skip(reason)
        else:
            self._sender.send(call)

    async def close(self) -> None:
        """Wait for the calls that need long work."""
        await self._sender.close()

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        """Record a message that could not be decoded, if messages are recorded."""
        if not self._privacy.wire or not self._sampler.samples("", f"{time.monotonic_ns()}"):
            return
        rows = [
            _wire_row("request", 0, wire, self._privacy),
            _wire_row("reply", 0, response, self._privacy),
        ]
        client = NO_CLIENT if error.client is None else error.client
        context = Context(protocol=codec, request_id=error.request_id, client=client)
        recordable = Recordable(
            started_us=self._finished.started_us(time.monotonic()),
            request=None,
            kind="",
            context=context,
            agent=client.agent[:256],
            client=client.address,
            wire=rows,
        )
        recordable.fail(error)
        self._put(recordable)


def _resolved(request: InferRequest | None, name: str) -> InferRequest | None:
    """Return *request* with the name of its model, where the client sent "name-version"."""
    model = None if request is None else request.model
    if request is None or model is None or not name or not model.name.startswith(f"{name}-"):
        return request
    return request.changed(model=ModelRef(name, model.name[len(name) + 1 :]))


def _wire_row(side: str, place: int, message: Message, privacy: Privacy) -> WireRow:
    """Return a message with the headers that are listed or that a reader of the body needs."""
    head = head_of(message, READING_HEADERS | frozenset(privacy.headers))
    return WireRow(side, place, orjson.dumps(head).decode(), body_of(message))


class StockKeeper:
    """Writes the stock of one process every 10 seconds.

    Args:
        stock: What to write.
    """

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, loaded: LoadedConfig, worker: int) -> StockKeeper | None:
        """Return the keeper of a configuration; None if stock-taking is off."""
        config = loaded.config
        if config.stock is None or config.state is None:
            return None
        path = stock_path(loaded.directory / config.state.directory, worker)
        return cls(Stock(path, config.stock.clients))

    def start(self) -> None:
        """Continue earlier counts, and begin to write."""
        self.stock.load()
        self.stock.save()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write a last time, and stop; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(self.stock.save)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            await asyncio.to_thread(self.stock.save)


class Capturing:
    """The capture of one serving process.

    Args:
        options: What to record.
        sock: To the shadow process.
        metrics: Gets the counts.
        new_path: Makes the record of a call's path.
    """

    def __init__(
        self,
        options: CaptureOptions,
        sock: socket.socket,
        metrics: Metrics,
        new_path: Callable[[], CallPath],
    ) -> None:
        self._sampler = CaptureSampler(options)
        self._outbox = Outbox(sock, self._sampler)
        self.tap = CaptureTap(self._sampler, self._outbox, new_path)
        watch_capture(metrics, self._sampler, self._outbox)

    def start(self) -> None:
        """Begin to send calls to the shadow process."""
        self._outbox.start()

    def change(self, options: CaptureOptions) -> None:
        """Choose calls by other options from now on. Limits and files stay as they are."""
        self._sampler.change(options)

    async def close(self) -> None:
        """Wait until all calls are written; idempotent."""
        await self.tap.close()
        await self._outbox.close(CLOSE_S)


def watch_capture(metrics: Metrics, sampler: CaptureSampler, outbox: Outbox) -> None:
    """Publish the counts of a capture."""
    counts = sampler.counts
    metrics.watch_counter(
        "gateway_capture_calls", "Calls that the capture recorded.", lambda: {(): counts.recorded}
    )
    metrics.watch_counter(
        "gateway_capture_bytes",
        "Bytes of elements and messages that the capture recorded.",
        lambda: {(): counts.nbytes},
    )
    metrics.watch_counter(
        "gateway_capture_dropped",
        "Sampled calls that the capture did not record, by reason.",
        lambda: {(reason,): count for reason, count in counts.left_out.items()},
        ("reason",),
    )
    metrics.watch_counter(
        "gateway_capture_sampled", "Calls to record.", lambda: {(): counts.sampled}
    )
    metrics.watch(
        "gateway_capture_outbox_bytes",
        "Bytes of sampled calls that wait for the shadow process.",
        lambda: outbox.used_bytes,
    )
