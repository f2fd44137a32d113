"""GrpcServer of the reference implementation: grpcio with raw messages, within the limits.

Handlers have no deserializer, because grpc.aio replies to bytes that it cannot parse with UNKNOWN
and the name of a Python class.  The frontend reads the messages.

grpcio reads a message completely before its size is known, so the memory budget counts it only from
then on.  Until then, `h2_streams`, the limit of concurrent calls and `body_timeout` apply.  The C
core cannot count connections, require a minimum rate or time out a client that does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any

import grpc
import structlog
from grpc import aio
from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.api.access import Peer
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.timeouts import Timeout
from gateway.ir import errors
from gateway.ir.context import Client
from gateway.transports.authentication import Authentication
from gateway.transports.callers import IdentifiedCaller, agent_of
from gateway.transports.client_shares import ClientShares, client_shares
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
from gateway.transports.net.tls_files import Authorities, TlsFiles, grpc_server_credentials
from gateway.transports.reference.grpc_guard import answer_unknown, guarded_server
from gateway.transports.reference.grpc_metadata import CODE_OF, plain_metadata
from gateway.transports.reference.grpc_quirks import Context, keep_log_quiet, write
from gateway.wire.errors import GRPC_STATUS
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, Metadata, MethodKind

log = structlog.get_logger(__name__)


def _ignore(_error: errors.GatewayError) -> None: ...


# Calls that need no slot, such as health checks, are served while all slots are in use.
_SPARE_CALLS = 64
_UNBOUNDED = 1 << 62
# Connections of clients that the authorities verify no more end after this time.
_DRAIN_S = 30.0
_UNLIMITED_MS = 0x7FFF_FFFF
_WINDOW_BYTES = 16 * 1024
_KEEPALIVE_MS = 60_000
_KEEPALIVE_TIMEOUT_MS = 20_000
_MIN_PING_INTERVAL_MS = 10_000
# After the last call: time to write its response, and to end open health watches.
_CLOSE_GRACE_S = 0.5
# A call that the C core received before GOAWAY reaches its handler within this time.
_QUIET_S = 0.25


class GrpcServer:
    """Serves mounts on one address.

    Args:
        address: "host:port", "[v6]:port" or "unix:/path"; port 0 takes a free one.
        mounts: The frontends and their methods; the first mount with a method gets its calls.
        limits: The limits of this listener.
        budget: The memory budget of the process.
        tls: The TLS files; None for plain text.
        extras: Mounts whose calls need no slot and no memory: health, reflection.
        reuse_port: Whether other processes listen on the same port too.
        authentication: Asks who sends each call; None if nobody asks.
        on_reject: Called for calls of unknown methods that are refused for their credentials.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first four
        self,
        address: str,
        mounts: Sequence[GrpcMount],
        limits: ServerLimits,
        budget: MemoryBudget,
        *,
        tls: TlsFiles | None = None,
        extras: Sequence[GrpcMount] = (),
        reuse_port: bool = False,
        authentication: Authentication | None = None,
        on_reject: Callable[[errors.GatewayError], str | None] = _ignore,
    ) -> None:
        self._address = address
        self._access = None if authentication is None else _Access(authentication, on_reject)
        self._reuse_port = reuse_port
        self._limits = limits
        self._tls = tls
        if tls is not None:
            tls.add_user(self)
        # Another server takes over when the authorities of clients change.
        self._shares_port = reuse_port or (tls is not None and tls.tls.ca is not None)
        self._replacing: set[asyncio.Task[None]] = set()
        self._admission = CallAdmission(budget, limits)
        free = CallAdmission(MemoryBudget(_UNBOUNDED), limits, slots=_UNBOUNDED)
        self._mounts = [*((mount, free) for mount in extras)]
        self._mounts += [(mount, self._admission) for mount in reversed(mounts)]
        self._server: aio.Server | None = None

    @property
    def address(self) -> str:
        """The address, with the real port."""
        return self._address

    async def start(self) -> None:
        """Listen. Raises OSError with the address if it is in use or invalid."""
        if not self._reuse_port:
            await require_free(self._address)
        keep_log_quiet()
        self._server, self._address = await self._started()

    async def _started(self) -> tuple[aio.Server, str]:
        """Return a server that listens, and its address with the real port."""
        handlers: dict[str, grpc.RpcMethodHandler] = {}
        for mount, admission in self._mounts:
            handlers.update(_handlers(mount, admission, self._access))
        server = guarded_server(
            handlers,
            _options(self._limits, reuse_port=self._shares_port),
            self._admission.limit + self._limits.requests_queued + _SPARE_CALLS,
            None if self._access is None else _unknown_handler(self._access),
        )
        try:
            if self._tls is None:
                port = server.add_insecure_port(self._address)
            else:
                port = server.add_secure_port(self._address, grpc_server_credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._address}: the address is in use") from error
        await server.start()
        return server, bound_address(self._address, port)

    def tls_renewed(self, authorities: Authorities | None) -> None:
        """Close all connections after their calls if other authorities verify clients now.

        grpcio tells nothing of single connections, so another server takes over.
        """
        if authorities is not None and self._server is not None:
            task = asyncio.ensure_future(self._replace(self._server))
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)

    async def _replace(self, old: aio.Server) -> None:
        try:
            self._server, _ = await self._started()
        except OSError as error:
            log.error("connections not drained", address=self._address, reason=str(error))  # noqa: TRY400
            return
        await old.stop(_DRAIN_S)

    def authenticate(self, authentication: Authentication) -> None:
        """Ask *authentication* who sends each call from now on.

        grpcio tells nothing of single connections, so a server must have asked from its start.
        """
        if self._access is None:
            raise RuntimeError("a server of grpcio cannot begin to ask who calls")
        self._access.authentication = authentication

    def announce_close(self) -> None:
        """Do nothing: grpcio sends GOAWAY only when it stops, which `drain` does."""

    async def drain(self, timeout_s: float) -> None:
        """Send GOAWAY, wait for the calls in progress, then cancel the rest and close."""
        if self._server is None:
            return
        stopping = asyncio.ensure_future(self._server.stop(timeout_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._admission.quiet(_QUIET_S)
        await self._server.stop(_CLOSE_GRACE_S)
        await stopping

    async def stop(self) -> None:
        """Close at once. A second call does nothing."""
        for task in list(self._replacing):
            task.cancel()
        if self._server is not None:
            await self._server.stop(None)


def _options(limits: ServerLimits, *, reuse_port: bool) -> list[tuple[str, Any]]:
    """Return the limits as arguments of the C core."""
    return [
        # By default, two servers on one port would share its connections without a warning.
        ("grpc.so_reuseport", int(reuse_port)),
        # Limits a compressed message twice: as received and decompressed.
        ("grpc.max_receive_message_length", limits.message_bytes),
        # Checked by `CallAdmission.check`, so that the error has the protocol's form.
        ("grpc.max_send_message_length", -1),
        # The core rejects at random between the soft and the hard limit, so both are equal.
        ("grpc.max_metadata_size", limits.grpc_metadata_bytes),
        ("grpc.absolute_max_metadata_size", limits.grpc_metadata_bytes),
        ("grpc.max_concurrent_streams", limits.h2_streams),
        # The core buffers messages before the memory budget knows of them: each stream gets a small
        # window, which does not grow.
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_connection_age_ms", _ms(limits.connection_age_s)),
        ("grpc.max_connection_age_grace_ms", _UNLIMITED_MS),
        ("grpc.max_connection_idle_ms", _ms(limits.keepalive_s)),
        ("grpc.server_handshake_timeout_ms", _ms(limits.tls_handshake_s)),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _handlers(
    mount: GrpcMount, admission: CallAdmission, access: _Access | None
) -> dict[str, grpc.RpcMethodHandler]:
    return {
        path: _handler(
            _Method(path, mount.frontend, admission)
            if access is None
            else _AuthenticatedMethod(path, mount.frontend, admission, access),
            kind,
        )
        for path, kind in mount.methods.items()
    }


def _handler(method: _Method, kind: MethodKind) -> grpc.RpcMethodHandler:
    # Requests are declared as streams: grpc.aio never calls the handler of a unary request that
    # ends without a message, and the client would wait for ever.
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
        """Handle a unary call."""
        try:
            message = await self._message(context)
            request = self._request(message, context)
            async with self._slot(request, len(message), context):
                response = await self._single(request)
        except errors.GatewayError as error:
            response = self._frontend.reject(error)
        return _finished(response, context)

    def _request(self, message: bytes, context: Context) -> GrpcRequest:
        left_s = context.time_remaining()
        metadata = plain_metadata(context.invocation_metadata())
        return GrpcRequest(
            self._path,
            (memoryview(message),),
            metadata,
            None if left_s is None else monotonic() + left_s,
            client=self._sender(context, metadata),
        )

    def _sender(self, context: Context, metadata: Metadata) -> Client:
        return Client(_address(context), agent_of(metadata))

    def _slot(self, request: GrpcRequest, size: int, context: Context) -> Slot:
        """Return the slot and memory of a message; a health check needs neither."""
        admission = self._admission
        free = not admission.has_room and is_probe(self._frontend, request, size)
        client = self._client(context)
        return Slot(admission, size, client, deadline=request.deadline, free=free)

    def _client(self, context: Context) -> ClientShares:
        """Return the client's shares of slots and memory."""
        shares = client_shares(_address(context), self._admission, self._admission.budget)
        CLIENT_MEMORY.set(shares.memory)
        return shares

    async def _single(self, request: GrpcRequest) -> GrpcResponse:
        found = await self._frontend.handle(request)
        if isinstance(found, GrpcResponse):
            return self._checked(found, request)
        async with aclosing(found) as responses:
            async for response in responses:
                return self._checked(response, request)
        raise errors.InternalError(f"{self._path} has no response")

    async def _message(self, context: Context) -> bytes:
        """Return the first message. Raises DeadlineExceeded or MalformedMessage without one."""
        timeout_s = self._admission.message_timeout_s
        self._admission.begin()  # a drain waits for the rest of the message
        try:
            with Timeout(timeout_s):
                message: Any = await context.read()
        except TimeoutError:
            raise errors.DeadlineExceeded(
                f"no complete message arrived within {timeout_s:g} s", limit="body_timeout"
            ) from None
        finally:
            self._admission.leave()
        if message is aio.EOF:
            raise errors.MalformedMessage("the call ended without a message")
        return message  # type: ignore[no-any-return]  # grpcio is not typed

    async def server_stream(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Handle a call with one request and a stream of responses."""
        async with aclosing(self._responses(context)) as responses:
            async for response in responses:
                if not await _write(response, context):
                    return

    async def bidirectional(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Handle a bidirectional stream; see `ServerFrontend.session`."""
        wires = self._read(context)
        limits = GrpcSessionLimits(self._admission, self._client(context))
        session = self._frontend.session(wires, limits)
        async with aclosing(wires), aclosing(session) as responses:
            async for response in responses:
                if not await _write(response, context):
                    return

    async def _read(self, context: Context) -> AsyncGenerator[GrpcRequest, None]:
        while (message := await context.read()) is not aio.EOF:
            yield self._request(message, context)

    async def _responses(self, context: Context) -> AsyncGenerator[GrpcResponse, None]:
        """Yield the responses to the first message, which must arrive in time."""
        try:
            message = await self._message(context)
        except errors.GatewayError as error:
            yield self._frontend.reject(error)
            return
        request = self._request(message, context)
        try:
            async with (
                self._slot(request, len(message), context),
                aclosing(self._frontend(request)) as responses,
            ):
                async for response in responses:
                    yield self._checked(response, request)
        except errors.GatewayError as error:
            yield self._frontend.reject_message(request, error)

    def _checked(self, response: GrpcResponse, request: GrpcRequest) -> GrpcResponse:
        """Return *response*, or an error if it is too large."""
        try:
            self._admission.check(response)
        except errors.TooLarge as error:
            return self._frontend.reject_message(request, error)
        return response


class _Access:
    """What asks for the clients of calls.

    Args:
        authentication: Names them.
        on_reject: Called for calls of unknown methods that are refused.
    """

    def __init__(
        self,
        authentication: Authentication,
        on_reject: Callable[[errors.GatewayError], str | None],
    ) -> None:
        self.authentication = authentication
        self.on_reject = on_reject

    async def client(self, context: Context, path: str) -> Client:
        """Return the client of a call. Raises GatewayError."""
        metadata = plain_metadata(context.invocation_metadata())
        found = self.authentication.client(self._caller(context), metadata, path)
        return found if isinstance(found, Client) else await found

    def visible(self, context: Context, metadata: Metadata) -> Metadata:
        """Return the metadata of a call without credentials."""
        return self.authentication.visible(self._caller(context), metadata)

    @staticmethod
    def _caller(context: Context) -> IdentifiedCaller:
        return IdentifiedCaller(Peer(_address(context), tuple(_names(context))))


class _IdentifiedMethod(_Method):
    """Runs a frontend for one call, whose client is known."""

    def __init__(
        self,
        path: str,
        frontend: GrpcFrontend,
        admission: CallAdmission,
        client: Client,
        access: _Access,
    ) -> None:
        super().__init__(path, frontend, admission)
        self.client = client
        self._access = access

    def _request(self, message: bytes, context: Context) -> GrpcRequest:
        request = super()._request(message, context)
        return replace(request, metadata=self._access.visible(context, request.metadata))

    def _sender(self, _context: Context, _metadata: Metadata) -> Client:
        return self.client


class _IdentifiedStream(_IdentifiedMethod):
    """Runs a frontend for one stream, and asks for its client again before each message."""

    async def _read(self, context: Context) -> AsyncGenerator[GrpcRequest, None]:
        is_first = True
        async with aclosing(super()._read(context)) as requests:
            async for request in requests:
                if not is_first:
                    self.client = await self._access.client(context, self._path)
                is_first = False
                yield replace(request, client=self.client)


class _AuthenticatedMethod(_Method):
    """Asks for the client of each call of one path, and then runs a frontend."""

    def __init__(
        self, path: str, frontend: GrpcFrontend, admission: CallAdmission, access: _Access
    ) -> None:
        super().__init__(path, frontend, admission)
        self._access = access

    async def unary(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Handle a unary call."""
        try:
            client = await self._access.client(context, self._path)
        except errors.GatewayError as error:
            return _finished(self._denied(error, context), context)
        method = _IdentifiedMethod(
            self._path, self._frontend, self._admission, client, self._access
        )
        return await method.unary(requests, context)

    async def server_stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Handle a call with one request and a stream of responses."""
        try:
            client = await self._access.client(context, self._path)
        except errors.GatewayError as error:
            await _write(self._denied(error, context), context)
            return
        method = _IdentifiedMethod(
            self._path, self._frontend, self._admission, client, self._access
        )
        await method.server_stream(requests, context)

    async def bidirectional(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Handle a bidirectional stream."""
        try:
            client = await self._access.client(context, self._path)
            method = _IdentifiedStream(
                self._path, self._frontend, self._admission, client, self._access
            )
            await method.bidirectional(requests, context)
        except errors.GatewayError as error:  # of the first message, or of a later one
            await _write(self._denied(error, context), context)

    def _denied(self, error: errors.GatewayError, context: Context) -> GrpcResponse:
        metadata = plain_metadata(context.invocation_metadata())
        error.client = Client(_address(context), agent_of(metadata))
        return self._frontend.reject(error)


def _unknown_handler(access: _Access) -> grpc.RpcMethodHandler:
    """Return what replies to calls of unknown methods, after it asked for their clients."""

    async def reply(_requests: object, context: Context) -> None:
        try:
            await access.client(context, "")
        except errors.GatewayError as error:
            error.wire_status = GRPC_STATUS[error.code]
            access.on_reject(error)
            _finished(GrpcResponse(status=GRPC_STATUS[error.code], details=error.message), context)
        else:
            await answer_unknown(_requests, context)

    return grpc.stream_stream_rpc_method_handler(reply)


def _names(context: Context) -> Iterator[str]:
    """Yield the names in the certificate of a client: URIs, DNS names, common names."""
    found = context.auth_context()
    alternatives = [each.decode() for each in found.get("x509_subject_alternative_name", ())]
    yield from (each for each in alternatives if "://" in each)
    yield from (f"dns:{each}" for each in alternatives if "://" not in each)
    yield from (f"cn:{each.decode()}" for each in found.get("x509_common_name", ()))


def _address(context: Context) -> str:
    """Return the address of the client; "" for a unix socket."""
    kind, _, rest = context.peer().partition(":")
    return rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else ""


async def _write(response: GrpcResponse, context: Context) -> bool:
    """Write one response of a stream; return False after a status that ends it."""
    message = _finished(response, context)
    if response.status is not GrpcStatus.OK:
        return False
    await write(context, message)
    return True


def _finished(response: GrpcResponse, context: Context) -> bytes:
    """Set status and trailing metadata; return the message in one piece, as grpcio needs it."""
    if response.metadata:
        context.set_trailing_metadata(sendable(response.metadata))
    if response.status is not GrpcStatus.OK:
        context.set_code(CODE_OF[response.status])
        context.set_details(response.details.encode("utf-8", "replace").decode())
        return b""
    return b"".join(response.message)
