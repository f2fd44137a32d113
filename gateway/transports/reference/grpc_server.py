"""gRPC server on grpcio: raw bytes in, raw bytes out, limits in force.

Handlers have no deserializer: grpc.aio answers bytes it cannot parse with UNKNOWN and the name of
a Python class.  What a message means is the frontend's business; what its status is, the codec's.

A message is read whole before its size is known, so the byte budget counts it from then on; until
then `h2_streams`, the bound on concurrent calls and `body_timeout` hold.  The C core gives no way
to count connections, to ask a slow sender for a rate or to time a reader that never reads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any

import grpc
from grpc import aio

from gateway.concurrency.timeouts import Timeout
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    MalformedMessage,
    TooLarge,
)
from gateway.transports.admission import ClientShares, client_shares
from gateway.transports.contract import (
    GrpcFrontend,
    GrpcMount,
    MemoryBudget,
    ServerLimits,
    is_probe,
)
from gateway.transports.grpc.address import bound_address, require_free
from gateway.transports.grpc.admission import CallAdmission, GrpcSessionLimits, Slot
from gateway.transports.grpc.metadata import sendable
from gateway.transports.reference.grpc_guard import guarded_server
from gateway.transports.reference.grpc_metadata import CODE_OF
from gateway.transports.reference.grpc_quirks import Context, keep_log_quiet, write
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind

# Calls that need no place, such as health checks, still go through when all places are taken.
_SPARE_CALLS = 64
_UNBOUNDED = 1 << 62
_AGE_GRACE_MS = 30_000
_KEEPALIVE_MS = 60_000
_KEEPALIVE_TIMEOUT_MS = 20_000
_MIN_PING_INTERVAL_MS = 10_000
# After the last call: for its answer to reach the socket and open health watches to be ended.
_LAST_WORDS_S = 0.5
# A call that the C core took before GOAWAY reaches its handler within this, busy as we may be.
_QUIET_S = 0.25


class GrpcServer:
    """Serves mounts on one address.

    Args:
        address: "host:port", "[v6]:port" or "unix:/path"; port 0 takes a free one.
        mounts: Who answers which methods; of a method named twice the first mount answers.
        limits: Of this listener.
        budget: Bytes in flight, of the whole process.
        credentials: From `tls.grpc_server_credentials`; None for plain text.
        extras: Further mounts, whose calls take no place and no bytes: health, reflection.
        reuse_port: Share the port with other processes that do so: the kernel spreads connections.
    """

    def __init__(
        self,
        address: str,
        mounts: Sequence[GrpcMount],
        limits: ServerLimits,
        budget: MemoryBudget,
        *,
        credentials: grpc.ServerCredentials | None = None,
        extras: Sequence[GrpcMount] = (),
        reuse_port: bool = False,
    ) -> None:
        self._address = address
        self._reuse_port = reuse_port
        self._limits = limits
        self._credentials = credentials
        self._admission = CallAdmission(budget, limits)
        free = CallAdmission(MemoryBudget(_UNBOUNDED), limits, slots=_UNBOUNDED)
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        for mount in extras:
            self._handlers.update(_handlers(mount, free))
        for mount in reversed(mounts):
            self._handlers.update(_handlers(mount, self._admission))
        self._server: aio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens, the real port included."""
        return self._address

    async def start(self) -> None:
        """Listen. Raises OSError, naming the address, when it cannot be had."""
        if not self._reuse_port:
            await require_free(self._address)
        keep_log_quiet()
        server = guarded_server(
            self._handlers,
            _options(self._limits, reuse_port=self._reuse_port),
            self._limits.requests_in_flight + self._limits.requests_queued + _SPARE_CALLS,
        )
        try:
            if self._credentials is None:
                port = server.add_insecure_port(self._address)
            else:
                port = server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._address}: the address is in use") from error
        await server.start()
        self._address = bound_address(self._address, port)
        self._server = server

    async def drain(self, timeout_s: float) -> None:
        """Send GOAWAY, finish what is in flight, then cancel the rest and close."""
        if self._server is None:
            return
        stopping = asyncio.ensure_future(self._server.stop(timeout_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._admission.quiet(_QUIET_S)
        await self._server.stop(_LAST_WORDS_S)
        await stopping

    async def stop(self) -> None:
        """Close at once; harmless the second time."""
        if self._server is not None:
            await self._server.stop(None)


def _options(limits: ServerLimits, *, reuse_port: bool) -> list[tuple[str, Any]]:
    """Write the limits as arguments of the C core."""
    return [
        # Two servers on one port share its connections silently: only where that is wanted.
        ("grpc.so_reuseport", int(reuse_port)),
        # Bounds a compressed message twice: as sent and as inflated.
        ("grpc.max_receive_message_length", limits.message_bytes),
        # Checked here, so that the refusal is the protocol's own.
        ("grpc.max_send_message_length", -1),
        # The core refuses at random between the soft and the hard limit: make them one.
        ("grpc.max_metadata_size", limits.grpc_metadata_bytes),
        ("grpc.absolute_max_metadata_size", limits.grpc_metadata_bytes),
        ("grpc.max_concurrent_streams", limits.h2_streams),
        ("grpc.max_connection_age_ms", _ms(limits.connection_age_s)),
        ("grpc.max_connection_age_grace_ms", _AGE_GRACE_MS),
        ("grpc.max_connection_idle_ms", _ms(limits.keepalive_s)),
        ("grpc.server_handshake_timeout_ms", _ms(limits.tls_handshake_s)),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _handlers(mount: GrpcMount, admission: CallAdmission) -> dict[str, grpc.RpcMethodHandler]:
    return {
        path: _handler(_Method(path, mount.frontend, admission), kind)
        for path, kind in mount.methods.items()
    }


def _handler(method: _Method, kind: MethodKind) -> grpc.RpcMethodHandler:
    # As if requests were streams: of a unary request that ends without a message grpc.aio forgets
    # to tell the handler, and the client waits for an answer for ever.
    if kind is MethodKind.UNARY:
        return grpc.stream_unary_rpc_method_handler(method.unary)
    if kind is MethodKind.SERVER_STREAM:
        return grpc.stream_stream_rpc_method_handler(method.server_stream)
    return grpc.stream_stream_rpc_method_handler(method.bidirectional)


class _Method:
    """Runs a frontend for the calls of one path."""

    def __init__(self, path: str, frontend: GrpcFrontend, admission: CallAdmission) -> None:
        self._path = path
        self._frontend = frontend
        self._admission = admission

    async def unary(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Answer one message with one."""
        try:
            message = await self._message(context)
            request = _request(self._path, message, context)
            async with self._slot(request, len(message), context):
                answer = await self._one(request)
        except GatewayError as error:
            answer = self._frontend.reject(error)
        return _finished(answer, context)

    def _slot(self, request: GrpcRequest, size: int, context: Context) -> Slot:
        """Return the slot and the bytes of one message, which one about health needs none of."""
        admission = self._admission
        free = not admission.has_room and is_probe(self._frontend, request, size)
        return Slot(admission, size, self._client(context), free=free)

    def _client(self, context: Context) -> ClientShares:
        """Return what the client has of slots and memory: "ipv4:192.0.2.1:5000" is its peer."""
        kind, _, rest = context.peer().partition(":")
        address = rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else ""
        return client_shares(address, self._admission, self._admission.budget)

    async def _one(self, request: GrpcRequest) -> GrpcResponse:
        found = await self._frontend.handle(request)
        if isinstance(found, GrpcResponse):
            return self._checked(found, request)
        async with aclosing(found) as answers:
            async for answer in answers:
                return self._checked(answer, request)
        raise InternalError(f"{self._path} was given no answer")

    async def _message(self, context: Context) -> bytes:
        """Return the first message. Raises what to answer when it does not come in time."""
        timeout_s = self._admission.message_timeout_s
        try:
            with Timeout(timeout_s):
                message: Any = await context.read()
        except TimeoutError:
            raise DeadlineExceeded(
                f"no message came whole within {timeout_s:g} s", limit="body_timeout"
            ) from None
        if message is aio.EOF:
            raise MalformedMessage("the call ended without a message")
        return message  # type: ignore[no-any-return]  # grpcio is not typed

    async def server_stream(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Answer one message with many."""
        async with aclosing(self._first(context)) as answers:
            async for answer in answers:
                if not await _written(answer, context):
                    return

    async def bidirectional(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Answer each message as a call of its own, several at a time; see `base.session`."""
        wires = self._read(context)
        gate = GrpcSessionLimits(self._admission, self._client(context))
        async with aclosing(wires), aclosing(self._frontend.session(wires, gate)) as answers:
            async for answer in answers:
                if not await _written(answer, context):
                    return

    async def _read(self, context: Context) -> AsyncGenerator[GrpcRequest, None]:
        while (message := await context.read()) is not aio.EOF:
            yield _request(self._path, message, context)

    async def _first(self, context: Context) -> AsyncGenerator[GrpcResponse, None]:
        """Answer the first message, which must come in time."""
        try:
            message = await self._message(context)
        except GatewayError as error:
            yield self._frontend.reject(error)
            return
        async with aclosing(self._answers(message, context)) as answers:
            async for answer in answers:
                yield answer

    async def _answers(
        self, message: bytes, context: Context
    ) -> AsyncGenerator[GrpcResponse, None]:
        request = _request(self._path, message, context)
        try:
            async with (
                self._slot(request, len(message), context),
                aclosing(self._frontend(request)) as answers,
            ):
                async for answer in answers:
                    yield self._checked(answer, request)
        except GatewayError as error:
            yield self._frontend.reject_message(request, error)

    def _checked(self, answer: GrpcResponse, request: GrpcRequest) -> GrpcResponse:
        """Return *answer*, or the refusal to send so much."""
        try:
            self._admission.check(answer)
        except TooLarge as error:
            return self._frontend.reject_message(request, error)
        return answer


def _request(path: str, message: bytes, context: Context) -> GrpcRequest:
    left_s = context.time_remaining()
    return GrpcRequest(
        path,
        (memoryview(message),),
        tuple(context.invocation_metadata() or ()),
        None if left_s is None else monotonic() + left_s,
    )


async def _written(answer: GrpcResponse, context: Context) -> bool:
    """Write one answer of a stream; False after a status that ends it."""
    message = _finished(answer, context)
    if answer.status is not GrpcStatus.OK:
        return False
    await write(context, message)
    return True


def _finished(answer: GrpcResponse, context: Context) -> bytes:
    """Set status and trailing metadata; return the message, joined as grpcio needs it."""
    if answer.metadata:
        context.set_trailing_metadata(sendable(answer.metadata))
    if answer.status is not GrpcStatus.OK:
        context.set_code(CODE_OF[answer.status])
        context.set_details(answer.details.encode("utf-8", "replace").decode())
        return b""
    return b"".join(answer.message)
