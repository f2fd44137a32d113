"""Sequences and regions of shared memory that belong to the client that began them.

For other clients they do not exist: a name or an id of one client is another one's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

from gateway.ir.bodies.streams import MappedStream, on_stream_end
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    StreamInferRequest,
    sequence_of,
)
from gateway.ir.context import CallSequence
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_MAX_SEQUENCES: Final = 65_536
_MAX_INT: Final = 0x7FFF_FFFF
_DIGEST_BYTES: Final = 6
_REGION_CALLS: Final = frozenset(
    {SharedRegisterRequest, SharedUnregisterRequest, SharedStatusRequest}
)


class _OwnKey(NamedTuple):
    """A sequence, as its client names it."""

    model: str
    id: int | str
    client: str


class SequenceIds:
    """The ids that sequences have at their servers.

    Each client has ids of its own, which are the same in all processes: after a restart, at another
    replica, and in the gateway that takes over.

    Args:
        idle_s: Time without a request after which a sequence is forgotten.
        is_divided: Whether this process has only some of the sequences, so that its table cannot
            tell which ids are in use.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        idle_s: float,
        *,
        is_divided: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.idle_s = idle_s
        self._is_divided = is_divided
        self._clock = clock
        # Id at the server and time of the last request, the longest idle first.
        self._open: dict[_OwnKey, tuple[int | str, float]] = {}
        self._clients: dict[tuple[str, int | str], str] = {}

    def find(self, model: str, sequence_id: int | str, client: str) -> int | str:
        """Return the id at the server of a sequence of *client*."""
        if self._is_divided:
            return _derived(sequence_id, client, 0)
        now = self._clock()
        self._forget_idle(now)
        key = _OwnKey(model, sequence_id, client)
        found = self._open.pop(key, None)
        used = _derived(sequence_id, client, 0) if found is None else found[0]
        attempt = 1
        while self._clients.get((model, used), client) != client:
            used = _derived(sequence_id, client, attempt)
            attempt += 1
        self._open[key] = used, now
        self._clients[model, used] = client
        if len(self._open) > _MAX_SEQUENCES:
            self._remove(next(iter(self._open)))
        return used

    def end(self, model: str, sequence_id: int | str, client: str) -> None:
        """Forget a sequence that has ended."""
        key = _OwnKey(model, sequence_id, client)
        if key in self._open:
            self._remove(key)

    def _forget_idle(self, now: float) -> None:
        while self._open:
            key, (_, last_used) = next(iter(self._open.items()))
            if now - last_used < self.idle_s:
                return
            self._remove(key)

    def _remove(self, key: _OwnKey) -> None:
        used, _ = self._open.pop(key)
        self._clients.pop((key.model, used), None)


def _derived(sequence_id: int | str, client: str, attempt: int) -> int | str:
    """Return an id that only *client* has for this sequence."""
    digest = blake2b(
        repr((client, attempt, sequence_id)).encode("utf-8", "backslashreplace"),
        digest_size=_DIGEST_BYTES,
    )
    if isinstance(sequence_id, str):
        return f"{sequence_id}.{digest.hexdigest()}"
    return int.from_bytes(digest.digest(), "big") % _MAX_INT + 1


class OwnSequences:
    """Keeps the sequences of clients apart.

    Args:
        inner: The service to call.
        ids: The ids at the servers.
    """

    def __init__(self, inner: Service, ids: SequenceIds) -> None:
        self._inner = inner
        self._ids = ids

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* with the id that the sequence has at its server."""
        sequence = sequence_of(call)
        return self._inner(call) if sequence is None else self._call(call, sequence)

    async def _call(self, call: Call[R], sequence: CallSequence) -> R:
        model = "" if call.model is None else call.model.name
        client = call.context.client.identity.name
        used = self._ids.find(model, sequence.id, client)
        changed = call if used == sequence.id else _with_sequence_id(call, sequence, used)
        try:
            reply = await self._inner(changed)
        except GatewayError as error:
            _restore(error, str(used), str(sequence.id))
        if not sequence.end:
            return reply

        def on_end(_error: BaseException | None) -> None:
            self._ids.end(model, sequence.id, client)

        return on_stream_end(call, reply, on_end)


def _with_sequence_id(call: Call[R], sequence: CallSequence, used: int | str) -> Call[R]:
    changed = CallSequence(used, sequence.start, sequence.end)
    if isinstance(call, StreamInferRequest):
        request = call.request.changed(sequence=changed)
        return cast("Call[R]", call.changed(request=request))
    return call.changed(sequence=changed)


def _restore(error: GatewayError, used: str, original: str) -> NoReturn:
    """Raise *error* with the name that the client knows."""
    if used != original and used in error.message:
        error = error.copy()
        error.message = error.message.replace(used, original)
        error.args = (error.message,)
        error.origin = None
    raise error


class OwnRegions:
    """Keeps the regions of shared memory of clients apart: each name is one of its client.

    Args:
        inner: The service to call.
        inference: Handles each InferRequest; None for *inner*.
    """

    def __init__(self, inner: Service, *, inference: Service | None = None) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* with the names that regions have in the gateway."""
        if type(call) is InferRequest:
            return cast("ReplyCoroutine[R]", self.handle_inference(call))
        if isinstance(call, StreamInferRequest) and call.request.shares_memory:
            return cast("ReplyCoroutine[R]", self._stream(call))
        if type(call) in _REGION_CALLS:
            return cast("ReplyCoroutine[R]", self._control(call))
        return self._inner(call)

    def handle_inference(self, call: InferRequest, /) -> ReplyCoroutine[InferResponse]:
        """Handle an inference as `__call__` does."""
        origin = call.context.origin
        has_bytes = origin is not None and origin.has_bytes and not call.outputs
        if has_bytes or not call.shares_memory:
            return self._inference(call)
        return self._infer(call)

    async def _infer(self, call: InferRequest) -> InferResponse:
        prefix = _prefix_of(call)
        try:
            reply = await self._inference(_with_regions(call, prefix))
        except GatewayError as error:
            _restore(error, prefix, "")
        return _without_prefix(reply, prefix)

    async def _stream(self, call: StreamInferRequest) -> MappedStream:
        prefix = _prefix_of(call)

        async def restored(reply: InferResponse) -> InferResponse:
            return _without_prefix(reply, prefix)

        try:
            items = await self._inner(call.changed(request=_with_regions(call.request, prefix)))
        except GatewayError as error:
            _restore(error, prefix, "")
        return MappedStream(items, restored)

    async def _control(self, call: Call[Any]) -> Any:
        prefix = _prefix_of(call)
        try:
            if isinstance(call, SharedRegisterRequest):
                region = replace(call.region, name=prefix + call.region.name)
                return await self._inner(call.changed(region=region))
            if isinstance(call, SharedStatusRequest):
                return await self._own(call, prefix)
            if isinstance(call, SharedUnregisterRequest) and not call.region:
                status = SharedStatusRequest(is_cuda=call.is_cuda, context=call.context)
                for region in await self._own(status, prefix):
                    await self._inner(call.changed(region=prefix + region.name))
                return None
            return await self._inner(call.changed(region=prefix + getattr(call, "region", "")))
        except GatewayError as error:
            _restore(error, prefix, "")

    async def _own(self, call: SharedStatusRequest, prefix: str) -> tuple[SharedRegion, ...]:
        """Return the regions of the client, by its own names."""
        if call.region:
            call = call.changed(region=prefix + call.region)
        return tuple(
            replace(region, name=region.name.removeprefix(prefix))
            for region in await self._inner(call)
            if region.name.startswith(prefix)
        )


def _prefix_of(call: Call[Any]) -> str:
    """Return what the names of regions begin with in the gateway, of the same length for all."""
    name = call.context.client.identity.name
    return f"{blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()}."


def _moved(data: SharedMemoryData, region: str) -> SharedMemoryData:
    return SharedMemoryData(region, data.offset, data.size_bytes)


def _with_regions(call: InferRequest, prefix: str) -> InferRequest:
    inputs = [_renamed(one, lambda name: prefix + name) for one in call.inputs]
    outputs = [_moved_output(one, prefix) for one in call.outputs]
    return call.changed(inputs=tuple(inputs), outputs=tuple(outputs))


def _moved_output(output: RequestedOutput, prefix: str) -> RequestedOutput:
    if output.shared is None:
        return output
    shared = _moved(output.shared, prefix + output.shared.region)
    return RequestedOutput(output.name, output.classes, output.parameters, shared)


def _renamed(tensor: Tensor, rename: Callable[[str], str]) -> Tensor:
    data = tensor.data
    if not isinstance(data, SharedMemoryData):
        return tensor
    moved = _moved(data, rename(data.region))
    return Tensor(tensor.name, tensor.datatype, tensor.shape, moved, tensor.parameters)


def _without_prefix(reply: InferResponse, prefix: str) -> InferResponse:
    if not any(isinstance(each.data, SharedMemoryData) for each in reply.outputs):
        return reply
    outputs = [_renamed(each, lambda name: name.removeprefix(prefix)) for each in reply.outputs]
    return reply.changed(outputs=tuple(outputs))
