"""Cache: answers that were given before to the very same request, and one call for all who ask now.

The key is the content: names, datatypes, shapes, bytes, outputs wanted and parameters. Not in it is
what does not change an answer: ids, deadlines, priority, and the order of inputs.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, InferRequest, InferResponse
from gateway.ir.data import ItemsData, RawData, SharedMemoryData, SlicedData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import Cancelled, DeadlineExceeded, GatewayError
from gateway.ir.tensor import Tensor, as_raw
from gateway.policies.batch.merge import WHOLE, crossing, in_canonical_order, typed
from gateway.service import Service

R = TypeVar("R")

_MIB = 1 << 20
# Longer inputs are hashed on a thread: nobody else waits for that.
_LARGE_BYTES = 256 << 10
# What an entry takes beside its data, about.
_ENTRY_BYTES = 1024
_SIZE = struct.Struct("<Q")
# The name of an enum's member costs more to ask for than all the rest of it.
_NAMES: dict[Datatype | None, str] = {datatype: datatype.name for datatype in Datatype}


class CacheMeter(Protocol):
    """Told what becomes of requests, and of answers that are kept."""

    def looked_up(self, outcome: str) -> None:
        """Note a request: "hit", "miss", or "shared", which waits for another one's call."""

    def stored(self, size_bytes: int) -> None:
        """Note an answer that is kept."""

    def evicted(self, reason: str, size_bytes: int) -> None:
        """Note an answer that is let go: "evicted" for room, "expired" or "cleared"."""


class _NoCacheMeter:
    def looked_up(self, outcome: str) -> None: ...
    def stored(self, size_bytes: int) -> None: ...
    def evicted(self, reason: str, size_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    reply: InferResponse
    size_bytes: int
    until: float


@dataclass(slots=True, eq=False)
class _PendingLookup:
    """A call at the target, and how many wait for its answer."""

    key: bytes
    task: asyncio.Task[InferResponse]
    waiting: int = 0


class Cache:
    """Answers a request from memory when the same was answered before, and not long ago.

    For models whose answer depends on the request alone. Never for streams, sequences, tensors in
    shared memory and errors. Requests that are the same and come at the same time share one call,
    which goes on when the one who caused it leaves, and ends when all have left. Answers are kept
    as copies of their own, so that none holds on to a larger message; the least recently used make
    room.

    Args:
        inner: Answers; shapes are whole here and tensors named, since `Complete` stands outside.
        max_bytes: Of all that is kept.
        max_age_s: How long an answer holds.
        meter: Told what happens; None for nobody.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        inner: Service,
        *,
        max_bytes: int = 64 * _MIB,
        max_age_s: float = 60.0,
        meter: CacheMeter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._meter = _NoCacheMeter() if meter is None else meter
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._flights: dict[bytes, _PendingLookup] = {}
        self._generation = 0
        self.used_bytes = 0

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*."""
        if isinstance(call, InferRequest) and _may_share(call):
            # The answer to an InferRequest is an InferResponse, which is its R.
            return cast("R", await self._infer(call))
        if type(call) in MODEL_CONTROL_CALLS:
            try:
                return await self._inner(call)
            finally:
                self.clear()
        return await self._inner(call)

    def clear(self) -> None:
        """Forget every answer, and keep none of those that are on their way."""
        self._generation += 1
        self._flights.clear()
        for key in list(self._entries):
            self._drop(key, "cleared")

    async def _infer(self, call: InferRequest) -> InferResponse:
        large = sum([tensor.nbytes for tensor in call.inputs]) > _LARGE_BYTES
        key = await asyncio.to_thread(cache_key, call) if large else cache_key(call)
        while True:
            kept = self._kept(key)
            if kept is not None:
                self._meter.looked_up("hit")
                return kept.changed(id=call.id) if call.id else kept
            flight = self._flights.get(key)
            if flight is None:
                self._meter.looked_up("miss")
                return await self._awaited(self._flight(key, call))
            self._meter.looked_up("shared")
            try:
                reply = await self._awaited(flight)
            except (DeadlineExceeded, Cancelled):
                continue  # that was the time of the one who caused the call, not ours
            except GatewayError as error:
                raise error.copy() from error
            return reply.changed(id=call.id)

    def _kept(self, key: bytes) -> InferResponse | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._clock() >= entry.until:
            self._drop(key, "expired")
            return None
        self._entries.move_to_end(key)
        return entry.reply

    def _flight(self, key: bytes, call: InferRequest) -> _PendingLookup:
        # In a context of its own: what is noted about the call is not for one caller.
        task = asyncio.get_running_loop().create_task(self._asked(key, call), context=Context())
        flight = self._flights[key] = _PendingLookup(key, task)

        def landed(task: asyncio.Task[InferResponse]) -> None:
            self._forget(flight)
            if not task.cancelled():
                task.exception()  # known to those who wait, and they may all have left

        task.add_done_callback(landed)
        return flight

    def _forget(self, flight: _PendingLookup) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    async def _awaited(self, flight: _PendingLookup) -> InferResponse:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if flight.task.cancelled() and not (me is not None and me.cancelling()):
                raise Cancelled("the call was given up by its target") from None
            if flight.waiting == 1:
                self._forget(flight)
                flight.task.cancel()
            raise
        finally:
            flight.waiting -= 1

    async def _asked(self, key: bytes, call: InferRequest) -> InferResponse:
        generation = self._generation
        reply = await self._inner(call.with_context(needs=WHOLE))
        if generation == self._generation:
            self._keep(key, reply)
        return reply

    def _keep(self, key: bytes, reply: InferResponse) -> None:
        size_bytes = _ENTRY_BYTES + sum([tensor.nbytes for tensor in reply.outputs])
        if size_bytes > self._max_bytes or key in self._entries or not _is_for_all(reply):
            return
        while self.used_bytes + size_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)), "evicted")
        outputs = tuple(map(_own, reply.outputs))
        until = self._clock() + self._max_age_s
        self._entries[key] = _Entry(reply.changed(outputs=outputs, id=""), size_bytes, until)
        self.used_bytes += size_bytes
        self._meter.stored(size_bytes)

    def _drop(self, key: bytes, reason: str) -> None:
        entry = self._entries.pop(key)
        self.used_bytes -= entry.size_bytes
        self._meter.evicted(reason, entry.size_bytes)


def cache_key(call: InferRequest) -> bytes:
    """Return what is equal for two calls that have the same answer, and for no others."""
    inputs = in_canonical_order(call.inputs)
    described = (
        None if call.model is None else (call.model.name, call.model.version),
        [(one.name, _NAMES.get(one.datatype), one.shape, typed(one.parameters)) for one in inputs],
        [(one.name, one.classes, typed(one.parameters)) for one in call.outputs],
        typed(call.parameters),
        crossing(call.context),
    )
    # Processors have instructions for it: 1.8 GB/s where BLAKE2b has 0.9 (measured).
    digest = hashlib.sha256(repr(described).encode("utf-8", "surrogatepass"))
    for tensor in inputs:
        data = tensor.data
        if isinstance(data, ItemsData):
            digest.update(_SIZE.pack(tensor.nbytes))
            for item in data.items:
                digest.update(len(item).to_bytes(4, "little"))
                digest.update(item)
        else:
            view = as_raw(tensor)
            digest.update(_SIZE.pack(view.nbytes))
            digest.update(view)
    return digest.digest()


def _may_share(call: InferRequest) -> bool:
    if call.sequence is not None or call.batch_size is not None:
        return False
    if any(isinstance(tensor.data, SlicedData | SharedMemoryData) for tensor in call.inputs):
        return False
    return all(output.shared is None for output in call.outputs)


def _is_for_all(reply: InferResponse) -> bool:
    """Return whether *reply* is an answer for whoever asks the same."""
    if not reply.final or reply.error is not None or reply.batch_size is not None:
        return False
    return all(
        tensor.datatype is not None
        and tensor.shape is not None
        and not isinstance(tensor.data, SlicedData | SharedMemoryData)
        for tensor in reply.outputs
    )


def _own(tensor: Tensor) -> Tensor:
    data = RawData(memoryview(bytes(as_raw(tensor))))
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)
