"""Batch: combines requests of several callers, of any protocol, into one call of the target.

It decides when a batch is sent: when it is full or its earliest request is due, if the target has
fewer batches in flight than allowed. `queue` selects the requests of a batch; `merge` merges them
and splits the reply.
"""

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context
from typing import Protocol, TypeVar, cast

import structlog

from gateway.concurrency.call_queue import CallQueue
from gateway.ir import errors
from gateway.ir.attempts import ATTEMPT, CallAttempt
from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.model_info.metadata_cache import METADATA_TTL_S, MetadataCache
from gateway.policies.batch.merge import batch_key, merge_requests, row_count, split_reply_of
from gateway.policies.batch.queue import (
    BatchQueue,
    BatchRules,
    DispatchedBatch,
    DispatchSlot,
    PendingRequest,
)
from gateway.service import Service
from gateway.telemetry.call_path import record_batch
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")

_DEFAULT_ROWS = 64
# A request waits at most this fraction of the time until its deadline.
_MAX_WAIT_FRACTION = 0.25
# Timers of uvloop have millisecond resolution and may fire this early.
_TIMER_TOLERANCE_S = 0.0005
# The target rejected the request: nothing has run.
_REJECTED = frozenset({errors.ErrorCode.INVALID_ARGUMENT, errors.ErrorCode.TOO_LARGE})


class BatchMeter(Protocol):
    """Counts batches."""

    def sent(self, *, rows: int, waits_s: Sequence[float]) -> None:
        """Count a batch, with the waiting time of each of its requests."""

    def rejected(self) -> None:
        """Count a batch that the target rejected; its halves are then sent separately."""


class _NoBatchMeter:
    def sent(self, *, rows: int, waits_s: Sequence[float]) -> None: ...
    def rejected(self) -> None: ...


class Timer(Protocol):
    """The handle of a scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback."""


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after a delay in seconds, like `loop.call_later`."""


def _on_loop(delay_s: float, callback: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay_s, callback)


class Batch:
    """Merges requests for a model that batches, and returns to each caller its rows of the reply.

    Only unary inferences are batched. Streams, sequences, requests that fill a batch alone or have
    no common batch axis, and models that do not batch, are sent unchanged. `Complete` is outside,
    so tensors have names and full shapes.

    All requests of a batch get its error. If the error means that the target rejected the batch,
    its halves are sent separately, recursively, until only the invalid request fails. A request
    that may have run is never sent twice. If all callers of a batch cancel, the batch is cancelled.
    A batch copies its inputs, so the copies use at most `in_flight` times `max_bytes` of memory.

    Args:
        inner: The service to call, from several tasks concurrently.
        rules: Limits and delays.
        metadata: The maximum batch size of the model; None for a cache over *inner*.
        meter: Counts batches; None to count nothing.
        clock: Monotonic seconds, that of deadlines.
        call_later: Schedules a callback.
    """

    def __init__(
        self,
        inner: Service,
        rules: BatchRules,
        *,
        metadata: MetadataCache | None = None,
        meter: BatchMeter | None = None,
        clock: Callable[[], float] = time.monotonic,
        call_later: CallLater = _on_loop,
    ) -> None:
        self._inner = inner
        self._rules = rules
        self._meter = _NoBatchMeter() if meter is None else meter
        self._clock = clock
        self._call_later = call_later
        self._metadata = (
            MetadataCache(inner, ttl_s=METADATA_TTL_S, clock=clock)
            if metadata is None
            else metadata
        )
        self._queues: dict[Hashable, BatchQueue] = {}
        self._free_slots = rules.in_flight
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None
        self._timer_at = math.inf

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*, possibly in a batch with other calls.

        Raises:
            DeadlineExceeded: The deadline passed before the call was sent.
            QueueTimeout: The call's queue timeout passed before it was sent.
            UpstreamProtocolError: The reply of a batch cannot be split.
            GatewayError: The error of the target.
        """
        if not isinstance(call, InferRequest):
            try:
                return await self._inner(call)
            finally:
                if type(call) in MODEL_CONTROL_CALLS:
                    self._metadata.forget(call.model)
        rows = row_count(call)
        size_bytes = sum([tensor.nbytes for tensor in call.inputs]) if rows else 0
        # The R of an InferRequest is InferResponse.
        if rows == 0 or size_bytes > self._rules.max_bytes:
            return cast("R", await self._inner(call))
        max_rows = await self._max_rows(call.model or ModelRef(""))
        if rows >= max_rows:
            return cast("R", await self._inner(call))
        return cast("R", await self._enqueue(call, rows, size_bytes, max_rows))

    async def _max_rows(self, model: ModelRef) -> int:
        """Return the maximum rows of a batch; 1 if requests must not be batched."""
        metadata = await self._metadata.get_or_none(model, batching=True)
        if metadata is None or not metadata.supports_batching:
            return 1
        size = self._rules.max_batch_size or metadata.max_batch_size or _DEFAULT_ROWS
        return min(size, metadata.max_batch_size or size)

    async def _enqueue(
        self, call: InferRequest, rows: int, size_bytes: int, max_rows: int
    ) -> InferResponse:
        now = self._clock()
        deadline = math.inf if call.context.deadline is None else call.context.deadline
        if call.timeout_us is not None:
            deadline = min(deadline, now + call.timeout_us / 1e6)
        delay_s = min(self._rules.max_delay_s, (deadline - now) * _MAX_WAIT_FRACTION)
        reply: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        attempt = ATTEMPT.get()
        avoid = () if attempt is None else attempt.avoid
        member = PendingRequest(call, rows, size_bytes, now, now + delay_s, deadline, reply, avoid)
        key = batch_key(call)
        if self._rules.apart is not None:
            key = key, self._rules.apart(call)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = BatchQueue(key, max_rows, self._rules)
        queue.add(member)
        self._dispatch_ready()
        is_received = True
        try:
            return await reply
        except asyncio.CancelledError:
            self._on_cancel(member, queue)
            raise
        except errors.NotSent:
            is_received = member.is_rejected
            raise
        finally:
            ended = self._clock()
            sent = ended if member.sent is None else member.sent
            is_received = is_received and member.sent is not None
            record_batch(sent - member.arrived, ended - sent, is_received=is_received)

    def _on_cancel(self, member: PendingRequest, queue: BatchQueue) -> None:
        if member.batch is None:
            queue.replace([each for each in queue.members if each is not member])
            self._remove_if_empty(queue)
        elif member.batch.is_abandoned():
            member.batch.task.cancel()

    def _remove_if_empty(self, queue: BatchQueue) -> None:
        # A newer queue may have the same key.
        if not queue.members and self._queues.get(queue.key) is queue:
            del self._queues[queue.key]

    def _dispatch_ready(self) -> None:
        """Send the batches that are ready, and set the timer for the others."""
        now = self._clock()
        for queue in list(self._queues.values()):
            for member in queue.pop_expired(now):
                member.reject(_expiry_error(member.call, now))
            self._remove_if_empty(queue)
        while self._free_slots:
            ready = [
                queue
                for queue in self._queues.values()
                if queue.due <= now + _TIMER_TOLERANCE_S or queue.is_full()
            ]
            if not ready:
                break
            queue = min(ready, key=lambda each: each.due)
            self._send(queue.pop_batch(), now)
            self._remove_if_empty(queue)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        at = math.inf
        for queue in self._queues.values():
            at = min(at, queue.deadline, queue.due if self._free_slots else math.inf)
        if at >= self._timer_at:
            return  # the current timer fires earlier, and then sets the next one
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._call_later(max(0.0, at - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._dispatch_ready()

    def _send(self, members: Sequence[PendingRequest], now: float) -> None:
        self._free_slots -= 1
        for member in members:
            member.sent = now
        self._meter.sent(
            rows=sum([member.rows for member in members]),
            waits_s=[now - member.arrived for member in members],
        )
        slot = DispatchSlot(self._on_release)
        self._start(members, slot).add_done_callback(lambda _task: slot.release())

    def _on_release(self) -> None:
        self._free_slots += 1
        self._dispatch_ready()

    def _start(self, members: Sequence[PendingRequest], slot: DispatchSlot) -> asyncio.Task[None]:
        # A separate context: records of the call path do not belong to the last caller.
        context = Context()
        avoid = dict.fromkeys(name for member in members for name in member.avoid)
        if avoid:
            context.run(ATTEMPT.set, CallAttempt(tuple(avoid)))
        coroutine = self._run(members, slot)
        task = asyncio.get_running_loop().create_task(coroutine, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        batch = DispatchedBatch(members, task)
        for member in members:
            member.batch = batch
        return task

    async def _run(self, members: Sequence[PendingRequest], slot: DispatchSlot) -> None:
        """Call the target, and resolve or reject every member."""
        try:
            waiting = [member for member in members if not member.reply.done()]
            if len(waiting) == 1:
                await self._call_single(waiting[0], slot)
            elif waiting:
                await self._call_merged(waiting, slot)
        finally:
            for member in members:
                model = member.call.model
                member.reject(errors.Cancelled("the batch of this call was cancelled", model=model))

    async def _call_single(self, member: PendingRequest, slot: DispatchSlot) -> None:
        try:
            reply = await self._inner(member.call)
        except Exception as error:  # noqa: BLE001  # it is raised to the caller
            member.reject(error)
        else:
            slot.release()
            member.resolve(reply)

    async def _call_merged(self, members: Sequence[PendingRequest], slot: DispatchSlot) -> None:
        try:
            reply = await self._infer([member.call for member in members])
            # Send the next batch before splitting this reply.
            slot.release()
            outputs = split_reply_of(reply, [member.call for member in members])
        except errors.GatewayError as error:
            if _is_rejection(error):
                await self._bisect(members, error)
                return
            for member in members:
                member.reject(error.copy())
        except Exception as error:  # noqa: BLE001  # it is raised to the callers
            for member in members:
                member.reject(error)
        else:
            for member, own in zip(members, outputs, strict=True):
                member.resolve(reply.changed(id=member.call.id, outputs=own))

    async def _infer(self, calls: Sequence[InferRequest]) -> InferResponse:
        """Send *calls* as one."""
        return await self._inner(merge_requests(calls))

    async def _bisect(self, members: Sequence[PendingRequest], error: errors.GatewayError) -> None:
        """Send the halves of *members*, one after the other."""
        self._meter.rejected()
        model = str(members[0].call.model)
        log.debug("batch rejected", model=model, requests=len(members), reason=error_text(error))
        for member in members:
            member.is_rejected = True
        middle = len(members) // 2
        for half in (members[:middle], members[middle:]):
            await asyncio.wait([self._start(half, DispatchSlot())])


def _is_rejection(error: errors.GatewayError) -> bool:
    """Return whether the call was rejected because of its contents, so that nothing has run."""
    if error.code is errors.ErrorCode.UNSUPPORTED:
        # The gateway could not encode the call, such as an infinity in JSON. An UNSUPPORTED of the
        # target itself may come after the model has run.
        return error.origin is None and not isinstance(error, errors.NotOneReply)
    return error.code in _REJECTED


def _expiry_error(call: InferRequest, now: float) -> errors.GatewayError:
    """Return the error of a call that is no longer in the queue at *now*."""
    deadline = call.context.deadline
    if deadline is None or deadline > now:
        what = f"a batch of model {str(call.model)!r}"
        expired = CallQueue(what, call.model, timeout_us=call.timeout_us).expired()
        if expired is not None:
            return expired
    return errors.DeadlineExceeded(
        f"deadline exceeded while the request waited in the batch queue of model "
        f"{str(call.model)!r}",
        model=call.model,
    )
