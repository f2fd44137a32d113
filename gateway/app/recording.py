"""Connects the frontends with the shadow process, and the calls with the stock of callers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.app.shadow.keeper import ShadowKeeper
from gateway.app.shadow.outbox import Outbox
from gateway.captures.privacy import Privacy
from gateway.captures.records import Recordable, WireRow, record_of
from gateway.captures.sampling import CaptureOptions, CaptureSampler
from gateway.concurrency.offload import inline, off_loop
from gateway.config.load import LoadedConfig
from gateway.ir.calls import Call, InferRequest, inference_of
from gateway.ir.context import NO_CLIENT, Context, ModelRef
from gateway.ir.data import ArrayData
from gateway.ir.errors import GatewayError
from gateway.ir.teed_body import TeeBudget, tee_body, with_kept_body
from gateway.ir.tensor import Tensor
from gateway.ir.work import LongWork
from gateway.migration.stock import SAVE_S, Stock, stock_path
from gateway.migration.wire_messages import READING_HEADERS, Message, body_of, head_of
from gateway.tapped_frontend import TappedCall
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics

# A shadow process that does not confirm the last calls delays a stop for this time.
_CLOSE_S: Final = 5.0


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
        self._outbox = outbox
        self._new_path = new_path
        self._tasks: set[asyncio.Task[None]] = set()
        # A call has a monotonic time: the difference to UTC is taken once.
        self._epoch_s = time.time() - time.monotonic()  # noqa: TID251  # a time that is written
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
        call, kept = exchange.call, memoryview(b"")
        if exchange.teed is not None and isinstance(call, InferRequest):
            found = exchange.teed.kept()
            if found is None:
                self._outbox.skip("arriving")
                return
            call, kept = with_kept_body(call, exchange.teed.start, found), found
        wire: list[WireRow] = []
        if self._privacy.wire:
            origin = call.context.origin
            if origin is not None:
                row = _wire_row("request", 0, origin.wire, self._privacy)
                wire.append(WireRow(row.side, row.place, row.head, row.body + kept.tobytes()))
            wire += [
                _wire_row("reply", place, each, self._privacy)
                for place, each in enumerate(exchange.responses)
            ]
        recordable = self._recordable(exchange.started, call.context, type(call).__name__, wire)
        recordable.request = _resolved(inference_of(call), exchange.path.model)
        recordable.route, recordable.target = exchange.path.route, exchange.path.target
        recordable.took_us = round(exchange.took_s * 1e6)
        recordable.items = [(round(at * 1e6), item) for at, item in exchange.items]
        if exchange.error is not None:
            code, recordable.error = exchange.error
            recordable.code = code.value
        self._put(recordable)

    def _put(self, call: Recordable) -> None:
        """Send a call, or count why not. Long work goes to the thread for it."""
        reason = self._sampler.reason_to_skip(call)
        if reason:
            self._outbox.skip(reason)
            return
        try:
            self._outbox.put(inline(record_of, call, self._privacy, None))
        except LongWork:
            task = asyncio.create_task(self._put_later(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        except GatewayError:
            self._outbox.skip("invalid")
            return
        except Exception:
            self._outbox.skip("internal")
            raise

    async def close(self) -> None:
        """Wait for the calls that need long work."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _put_later(self, call: Recordable) -> None:
        # A model may write to its arrays again.
        call.items = [
            (at, item.changed(outputs=tuple(map(_own, item.outputs)))) for at, item in call.items
        ]
        try:
            record = await off_loop(record_of, call, self._privacy, None)
        except GatewayError:
            self._outbox.skip("invalid")
        else:
            self._outbox.put(record)

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
        recordable = self._recordable(time.monotonic(), context, "", rows)
        recordable.fail(error)
        self._put(recordable)

    def _recordable(
        self, started: float, context: Context, kind: str, wire: list[WireRow]
    ) -> Recordable:
        client = context.client
        return Recordable(
            started_us=round((self._epoch_s + started) * 1e6),
            request=None,
            kind=kind,
            context=context,
            agent=client.agent[:256],
            client=client.address,
            wire=wire,
        )


def _own(tensor: Tensor) -> Tensor:
    """Return *tensor* with a copy of an array."""
    if not isinstance(tensor.data, ArrayData):
        return tensor
    data = ArrayData(tensor.data.array.copy())
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)


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
        keeper: Keeps the shadow process running; None if the supervisor does.
        new_path: Makes the record of a call's path.
    """

    def __init__(
        self,
        options: CaptureOptions,
        sock: socket.socket,
        metrics: Metrics,
        keeper: ShadowKeeper | None,
        new_path: Callable[[], CallPath],
    ) -> None:
        self._sampler = CaptureSampler(options)
        self._outbox = Outbox(sock, self._sampler)
        self._keeper = keeper
        self.tap = CaptureTap(self._sampler, self._outbox, new_path)
        watch_capture(metrics, self._sampler, self._outbox)

    async def start(self) -> None:
        """Start the shadow process, if it is this one's, and send it calls.

        Raises:
            StartError: The shadow process cannot start.
        """
        if self._keeper is not None:
            await self._keeper.start()
        self._outbox.start()

    def change(self, options: CaptureOptions) -> None:
        """Choose calls by other options from now on. Limits and files stay as they are."""
        self._sampler.change(options)

    async def close(self) -> None:
        """Wait until all calls are written, and end the shadow process; idempotent."""
        await self.tap.close()
        await self._outbox.close(_CLOSE_S)
        if self._keeper is not None:
            await self._keeper.stop()


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
