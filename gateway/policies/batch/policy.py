"""Batch: requests of several callers, whatever protocol they speak, as one call of the target.

How requests are joined and answers divided is in `joining`, who goes with whom in `gathering`. When
they go is decided here: as soon as a batch is full or its most impatient request has waited long
enough, while the target has no more calls in hand than it may have.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context
from typing import Protocol, TypeVar, cast

import structlog

from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    Cancelled,
    DeadlineExceeded,
    ErrorCode,
    GatewayError,
    NotOneReply,
)
from gateway.policies.batch.merge import batch_key, merge_requests, row_count, split_reply
from gateway.policies.batch.queue import (
    BatchQueue,
    BatchRules,
    DispatchedBatch,
    DispatchSlot,
    PendingRequest,
)
from gateway.policies.metadata_cache import METADATA_TTL_S, MetadataCache
from gateway.service import Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

_ROWS_UNTOLD = 64
# Nobody waits for others with more than this share of the time that is left to it.
_SHARE_OF_TIME = 0.25
# Timers of uvloop tick in milliseconds: one that rings this early is right.
_GRAIN_S = 0.0005
# The target has looked at the request and will not have it: nothing has run.
_REFUSED = frozenset({ErrorCode.INVALID_ARGUMENT, ErrorCode.TOO_LARGE})


class BatchMeter(Protocol):
    """Told what becomes of batches."""

    def sent(self, *, rows: int, waits_s: Sequence[float]) -> None:
        """Note a call of so many rows, and how long each of its requests waited for it."""

    def rejected(self) -> None:
        """Note a call that the target would not have, so that its requests are asked apart."""


class _NoBatchMeter:
    def sent(self, *, rows: int, waits_s: Sequence[float]) -> None: ...
    def rejected(self) -> None: ...


class Timer(Protocol):
    """What `Later` returns."""

    def cancel(self) -> None:
        """Do not ring."""


Later = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after so many seconds, as `loop.call_later` does."""


def _on_loop(delay_s: float, ring: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay_s, ring)


class Batch:
    """Joins requests for a model that batches, and gives each caller its own rows of the answer.

    Only plain inferences are joined. Streams, sequences, requests that fill a batch by themselves
    or whose shapes tell no batch axis, and models that do not batch, are asked as they come.
    Tensors are named here and shapes whole: `Complete` stands outside.

    An error is given to all whose request was part of the call, unless it says that the target has
    refused to look at it: then the halves are asked apart, down to the one that is wrong. Nothing
    is sent twice that may have run. Who leaves is forgotten; when all have left, the call is
    cancelled. What waits holds no more memory than it came with; a joined call holds its inputs a
    second time, so that there is at most `in_flight` times `max_bytes` of that.

    Args:
        inner: Answers; it takes calls from several tasks at a time.
        rules: When and how many.
        metadata: Says how the model batches; None for a cache over *inner*.
        meter: Told of each call; None for nobody.
        clock: Monotonic seconds, that of deadlines.
        later: Rings after a time.
    """

    def __init__(
        self,
        inner: Service,
        rules: BatchRules,
        *,
        metadata: MetadataCache | None = None,
        meter: BatchMeter | None = None,
        clock: Callable[[], float] = time.monotonic,
        later: Later = _on_loop,
    ) -> None:
        self._inner = inner
        self._rules = rules
        self._meter = _NoBatchMeter() if meter is None else meter
        self._clock = clock
        self._later = later
        self._metadata = (
            MetadataCache(inner, ttl_s=METADATA_TTL_S, clock=clock)
            if metadata is None
            else metadata
        )
        self._groups: dict[Hashable, BatchQueue] = {}
        self._free = rules.in_flight
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None
        self._rings_at = math.inf

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*, perhaps together with others.

        Raises:
            DeadlineExceeded: Its deadline passed before it went.
            UpstreamProtocolError: The answer cannot be divided.
            GatewayError: What the target answered.
        """
        if not isinstance(call, InferRequest):
            try:
                return await self._inner(call)
            finally:
                if type(call) in MODEL_CONTROL_CALLS:
                    self._metadata.forget(call.model)
        rows = row_count(call)
        size_bytes = sum([tensor.nbytes for tensor in call.inputs]) if rows else 0
        # The answer to an InferRequest is an InferResponse, which is its R.
        if rows == 0 or size_bytes > self._rules.max_bytes:
            return cast("R", await self._inner(call))
        most = await self._most(call.model or ModelRef(""))
        if rows >= most:
            return cast("R", await self._inner(call))
        return cast("R", await self._enqueue(call, rows, size_bytes, most))

    async def _most(self, model: ModelRef) -> int:
        """Return how many rows a call may have; 1 where requests must not be joined."""
        metadata = await self._metadata.get_or_none(model, batching=True)
        if metadata is None or not metadata.supports_batching:
            return 1
        wanted = self._rules.max_batch_size or metadata.max_batch_size or _ROWS_UNTOLD
        return min(wanted, metadata.max_batch_size or wanted)

    async def _enqueue(
        self, call: InferRequest, rows: int, size_bytes: int, most: int
    ) -> InferResponse:
        now = self._clock()
        deadline = math.inf if call.context.deadline is None else call.context.deadline
        patience_s = min(self._rules.max_delay_s, (deadline - now) * _SHARE_OF_TIME)
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        member = PendingRequest(call, rows, size_bytes, now, now + patience_s, deadline, answer)
        key = batch_key(call)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = BatchQueue(key, most, self._rules)
        group.add(member)
        self._dispatch_ready()
        try:
            return await answer
        except asyncio.CancelledError:
            self._left(member, group)
            raise

    def _left(self, member: PendingRequest, group: BatchQueue) -> None:
        """Forget a caller that has left."""
        if member.asked is None:
            group.replace([each for each in group.members if each is not member])
            self._forget_if_empty(group)
        elif member.asked.left():
            member.asked.task.cancel()

    def _forget_if_empty(self, group: BatchQueue) -> None:
        # Another of the same key may have taken its place.
        if not group.members and self._groups.get(group.key) is group:
            del self._groups[group.key]

    def _dispatch_ready(self) -> None:
        """Send what may go, and see to it that the rest goes in time."""
        now = self._clock()
        for group in list(self._groups.values()):
            for member in group.pop_expired(now):
                member.reject(_exceeded(member.call))
            self._forget_if_empty(group)
        while self._free:
            ready = [
                group
                for group in self._groups.values()
                if group.due <= now + _GRAIN_S or group.full()
            ]
            if not ready:
                break
            group = min(ready, key=lambda each: each.due)
            self._send(group.pop_batch(), now)
            self._forget_if_empty(group)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        rings_at = math.inf
        for group in self._groups.values():
            rings_at = min(rings_at, group.deadline, group.due if self._free else math.inf)
        if rings_at >= self._rings_at:
            return  # it rings before that, and looks again
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = rings_at
        self._timer = self._later(max(0.0, rings_at - now), self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, math.inf
        self._dispatch_ready()

    def _send(self, members: Sequence[PendingRequest], now: float) -> None:
        self._free -= 1
        self._meter.sent(
            rows=sum([member.rows for member in members]),
            waits_s=[now - member.arrived for member in members],
        )
        turn = DispatchSlot(self._ended)
        self._task(members, turn).add_done_callback(lambda _task: turn.end())

    def _ended(self) -> None:
        self._free += 1
        self._dispatch_ready()

    def _task(self, members: Sequence[PendingRequest], turn: DispatchSlot) -> asyncio.Task[None]:
        # In a context of its own: what is noted about a call is not for whoever came last.
        answering = self._answer(members, turn)
        task = asyncio.get_running_loop().create_task(answering, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        asked = DispatchedBatch(members, task)
        for member in members:
            member.asked = asked
        return task

    async def _answer(self, members: Sequence[PendingRequest], turn: DispatchSlot) -> None:
        """Ask for *members*, and give each its answer or its error."""
        try:
            waiting = [member for member in members if not member.answer.done()]
            if len(waiting) == 1:
                await self._ask_alone(waiting[0], turn)
            elif waiting:
                await self._ask_joined(waiting, turn)
        finally:
            for member in members:
                model = member.call.model
                member.reject(Cancelled("the call was given up with its batch", model=model))

    async def _ask_alone(self, member: PendingRequest, turn: DispatchSlot) -> None:
        try:
            reply = await self._inner(member.call)
        except Exception as error:  # noqa: BLE001  # it is raised to the caller
            member.reject(error)
        else:
            turn.end()
            member.resolve(reply)

    async def _ask_joined(self, members: Sequence[PendingRequest], turn: DispatchSlot) -> None:
        try:
            reply = await self._inner(merge_requests([member.call for member in members]))
            # The target is free: the next call goes before these callers are answered.
            turn.end()
            outputs = split_reply(reply, [member.rows for member in members])
        except GatewayError as error:
            if _is_refusal(error):
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

    async def _bisect(self, members: Sequence[PendingRequest], error: GatewayError) -> None:
        """Ask for the halves of *members*, one after the other."""
        self._meter.rejected()
        model = str(members[0].call.model)
        log.debug("batch refused", model=model, requests=len(members), reason=error.message)
        middle = len(members) // 2
        for half in (members[:middle], members[middle:]):
            await asyncio.wait([self._task(half, DispatchSlot())])


def _is_refusal(error: GatewayError) -> bool:
    """Return whether nothing has run, because the call was refused for what is in it."""
    if error.code is ErrorCode.UNSUPPORTED:
        # Not carried on the way there: one request's infinity, where the target reads JSON. What
        # the target itself does not support it may have noticed late.
        return error.origin is None and not isinstance(error, NotOneReply)
    return error.code in _REFUSED


def _exceeded(call: InferRequest) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the deadline passed while the request waited to go to model {str(call.model)!r}",
        model=call.model,
    )
