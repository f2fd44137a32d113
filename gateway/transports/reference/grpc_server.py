"""GrpcServer of the reference implementation: grpcio with raw messages, within the limits.

Handlers have no deserializer, because grpc.aio replies to bytes that it cannot parse with UNKNOWN
and the name of a Python class.  The frontend reads the messages.

grpcio reads a message completely before its size is known, so the memory budget counts it only from
then on.  Until then, `h2_streams`, the limit of concurrent calls and `body_timeout` apply.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from time import monotonic
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
import structlog
from grpc import aio

from gateway.api.access import Peer
from gateway.concurrency.background import start_background
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.timeouts import Timeout
from gateway.ir import errors
from gateway.ir.context import Client
from gateway.transports.authentication import Authentication, client_names, kind_of_name
from gateway.transports.callers import IdentifiedCaller, agent_of
from gateway.transports.client_shares import ClientShares, client_shares
from gateway.transports.contract import GrpcMount, MemoryBudget, ServerLimits, is_probe
from gateway.transports.grpc.address import bound_address, require_free
from gateway.transports.grpc.admission import CallAdmission, GrpcSessionLimits, Slot
from gateway.transports.grpc.headers import cut_message
from gateway.transports.grpc.metadata import sendable
from gateway.transports.net.sockets import normal_address
from gateway.transports.net.tls_files import Authorities, TlsFiles, grpc_server_credentials
from gateway.transports.reference.grpc_values import CODE_OF, keep_log_quiet, plain_metadata
from gateway.wire.errors import GRPC_STATUS
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, Metadata, MethodKind

log = structlog.get_logger(__name__)

Context: TypeAlias = Any
"""An aio.ServicerContext; grpcio is not typed."""


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio is not typed
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
        on_reject: Callable[[errors.GatewayError], str | None] = lambda _error: None,
    ) -> None:
        self.address = address
        self.limits = limits
        self._tls = tls
        if tls is not None:
            tls.add_user(self)
        self._reuse_port = reuse_port
        self._replacing: asyncio.Task[None] | None = None
        self._admission = CallAdmission(budget, limits)
        free = CallAdmission(MemoryBudget(1 << 62), limits, slots=1 << 62)
        self._handlers = {
            path: _Method(path, mount, free if mount in extras else self._admission, self).handler
            for mount in (*extras, *reversed(mounts))
            for path in mount.methods
        }
        self._authentication = authentication
        self._on_reject = on_reject
        self._server: aio.Server | None = None
        self._calls: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError with the address if it is in use or invalid."""
        if not self._reuse_port:
            await require_free(self.address)
        keep_log_quiet()
        await self._listen()

    async def _listen(self) -> None:
        """Start a server, which takes the place of the one before."""
        # 64 calls that need no slot, such as health checks, are served while all slots are in use.
        most = self._admission.slots.limit + self.limits.requests_queued + 64
        server = aio.server(handlers=(self,), options=self._options(), maximum_concurrent_rpcs=most)
        try:
            if self._tls is None:
                port = server.add_insecure_port(self.address)
            else:
                port = server.add_secure_port(self.address, grpc_server_credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self.address}: the address is in use") from error
        before = asyncio.all_tasks()
        await server.start()
        self._server, self.address = server, bound_address(self.address, port)
        for task in asyncio.all_tasks() - before:
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        """Start another server if *task* was grpcio's, and a path that is not text has ended it.

        From 1.84 on, grpc.aio decodes the path of each call in the task that accepts calls.
        """
        if not task.cancelled() and isinstance(task.exception(), UnicodeDecodeError):
            log.warning("grpcio stopped accepting calls", address=self.address, action="restart")
            # Its task that closes the server ends with the same error, which nobody asks for.
            kind = type(task.get_coro())
            for other in [each for each in asyncio.all_tasks() if type(each.get_coro()) is kind]:
                other.add_done_callback(lambda each: each.cancelled() or each.exception())
            self._replacing = start_background(self._replace(self._server, None), "grpcio")

    def tls_renewed(self, authorities: Authorities | None) -> None:
        """Close all connections after their calls if other authorities verify clients now.

        grpcio tells nothing of single connections, so another server takes over within 30 s.
        """
        if authorities is not None:
            self._replacing = start_background(self._replace(self._server, 30.0), "grpcio")

    async def _replace(self, old: aio.Server | None, grace_s: float | None) -> None:
        if old is not None:
            if grace_s is None:  # a server that ends removes the path of its unix socket
                await old.stop(None)
            await self._listen()
            await old.stop(grace_s)

    def authenticate(self, authentication: Authentication) -> None:
        """Ask *authentication* who sends each call from now on."""
        self._authentication = authentication

    def announce_close(self) -> None:
        """Do nothing: grpcio sends GOAWAY only when it stops, which `drain` does."""

    async def drain(self, timeout_s: float) -> None:
        """Send GOAWAY, wait for the calls in progress, then cancel the rest and close."""
        server, self._server = self._server, None
        if server is None:
            return
        stopping = asyncio.ensure_future(server.stop(timeout_s))
        with contextlib.suppress(TimeoutError):
            # A call that the C core received before GOAWAY reaches its handler within 0.25 s.
            await asyncio.wait_for(self._admission.quiet(0.25), timeout_s)
        # Time to write the last response, and to end open health watches.
        await server.stop(0.5)
        await stopping
        await self.stop()

    async def stop(self) -> None:
        """Close at once. A second call does nothing."""
        if self._replacing is not None:
            self._replacing.cancel()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        if self._calls:  # grpcio has cancelled their handlers, and does not wait for them
            await asyncio.wait(self._calls)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of a path."""
        unknown = grpc.stream_stream_rpc_method_handler(self._answer_unknown)
        return self._handlers.get(details.method, unknown)

    async def client(self, context: Context, path: str) -> tuple[Client, Metadata]:
        """Return the client of a call, and its metadata without credentials.

        Raises:
            GatewayError: The client is refused.
        """
        if (call := asyncio.current_task()) is not None and call not in self._calls:
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        metadata = plain_metadata(context.invocation_metadata())
        known = Client(_address(context), agent_of(metadata))
        if self._authentication is None:
            return known, metadata
        caller = IdentifiedCaller(Peer(known.address, tuple(certificate_names(context))))
        found = self._authentication.client(caller, metadata, path)
        client = found if isinstance(found, Client) else await found
        return client, self._authentication.visible(caller, metadata)

    async def _answer_unknown(self, _requests: object, context: Context) -> None:
        """Reply to a call of an unknown method, after asking for its client."""
        status, text = GrpcStatus.UNIMPLEMENTED, "no protocol here serves this method"
        try:
            await self.client(context, "")
        except errors.GatewayError as error:
            status, text = GRPC_STATUS[error.code], error.message
            error.wire_status = status
            self._on_reject(error)
        _finished(GrpcResponse(status=status, details=text), context)

    def _options(self) -> list[tuple[str, Any]]:
        """Return the limits as arguments of the C core."""
        limits = self.limits
        return [
            # A server that takes the place of another listens before that one stops.
            ("grpc.so_reuseport", 1),
            # Limits a compressed message twice: as received and decompressed.
            ("grpc.max_receive_message_length", limits.message_bytes),
            # Checked by `CallAdmission.check`, so that the error has the protocol's form.
            ("grpc.max_send_message_length", -1),
            # The core rejects at random between the soft and the hard limit, so both are equal.
            ("grpc.max_metadata_size", limits.grpc_metadata_bytes),
            ("grpc.absolute_max_metadata_size", limits.grpc_metadata_bytes),
            ("grpc.max_concurrent_streams", limits.h2_streams),
            # The core buffers messages before the memory budget knows of them: each stream gets a
            # small window, which does not grow.
            ("grpc.http2.lookahead_bytes", 16 * 1024),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_connection_age_ms", round(limits.connection_age_s * 1000)),
            ("grpc.max_connection_idle_ms", round(limits.keepalive_s * 1000)),
            ("grpc.server_handshake_timeout_ms", round(limits.tls_handshake_s * 1000)),
            # Clients may send PINGs, and the core sends some to learn of those that have vanished.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]


class _Method:
    """Runs a frontend for the calls of one path."""

    def __init__(
        self, path: str, mount: GrpcMount, admission: CallAdmission, server: GrpcServer
    ) -> None:
        self._path = path
        self._frontend = mount.frontend
        self._admission = admission
        self._server = server
        # Requests are declared as streams: grpc.aio never calls the handler of a unary request that
        # ends without a message, and the client would wait for ever.
        self.handler = grpc.stream_stream_rpc_method_handler(
            self._bidirectional if mount.methods[path] is MethodKind.BIDIRECTIONAL else self._answer
        )

    async def _answer(self, _requests: object, context: Context) -> None:
        """Handle a call with one request; grpcio sends one response as it sends a stream."""
        await self._send_all(self._responses(context), context)

    async def _bidirectional(self, _requests: object, context: Context) -> None:
        """Handle a bidirectional stream; see `ServerFrontend.session`."""
        limits = GrpcSessionLimits(self._admission, self._shares(context))
        try:
            async with contextlib.aclosing(self._read(context)) as wires:
                await self._send_all(self._frontend.session(wires, limits), context)
        except errors.GatewayError as error:  # of the first message, or of a later one
            await self._send(self._frontend.reject(error), context)

    async def _read(self, context: Context) -> AsyncGenerator[GrpcRequest, None]:
        """Yield the messages of a stream, whose client is asked for again with each."""
        caller, is_first = await self._server.client(context, self._path), True
        while (message := await context.read()) is not aio.EOF:
            if not is_first:
                caller = await self._server.client(context, self._path)
            is_first = False
            yield self._request(message, caller, context)

    async def _responses(self, context: Context) -> AsyncGenerator[GrpcResponse, None]:
        """Yield the responses to the first message, which must arrive in time."""
        try:
            caller = await self._server.client(context, self._path)
            message = await self._message(context)
        except errors.GatewayError as error:
            yield self._frontend.reject(error)
            return
        request = self._request(message, caller, context)
        try:
            async with (
                self._slot(request, len(message), context),
                contextlib.aclosing(self._frontend(request)) as responses,
            ):
                async for response in responses:
                    yield self._admission.checked(response, request, self._frontend)
        except errors.GatewayError as error:
            yield self._frontend.reject_message(request, error)

    async def _message(self, context: Context) -> bytes:
        """Return the first message. Raises DeadlineExceeded or MalformedMessage without one."""
        timeout_s = self._server.limits.body_timeout_s
        self._admission.begin()  # a drain waits for the rest of the message
        try:
            with Timeout(timeout_s):
                message: Any = await context.read()
        except TimeoutError:
            text = f"no complete message arrived within {timeout_s:g} s"
            raise errors.DeadlineExceeded(text, limit="body_timeout") from None
        finally:
            self._admission.leave()
        if message is aio.EOF:
            raise errors.MalformedMessage("the call ended without a message")
        if context.time_remaining() == 0:  # the timer of the core may be late
            raise errors.DeadlineExceeded("deadline exceeded before the call was complete")
        return message  # type: ignore[no-any-return]  # grpcio is not typed

    def _request(
        self, message: bytes, caller: tuple[Client, Metadata], context: Context
    ) -> GrpcRequest:
        left_s, (client, metadata), body = context.time_remaining(), caller, (memoryview(message),)
        deadline = None if left_s is None else monotonic() + left_s
        return GrpcRequest(self._path, body, metadata, deadline, client=client)

    def _slot(self, request: GrpcRequest, size: int, context: Context) -> Slot:
        """Return the slot and memory of a message; a health check needs neither."""
        admission = self._admission
        free = not admission.has_room and is_probe(self._frontend, request, size)
        return Slot(admission, size, self._shares(context), deadline=request.deadline, free=free)

    def _shares(self, context: Context) -> ClientShares:
        """Return the client's shares of slots and memory."""
        shares = client_shares(_address(context), self._admission.slots, self._admission.budget)
        CLIENT_MEMORY.set(shares.memory)
        return shares

    async def _send_all(self, found: AsyncGenerator[GrpcResponse, None], context: Context) -> None:
        """Send the responses of a stream, each when the client has room for it."""
        async with contextlib.aclosing(found) as responses:
            async for response in responses:
                await self._send(response, context)
                if response.status is not GrpcStatus.OK:
                    break

    async def _send(self, response: GrpcResponse, context: Context) -> None:
        """Send one message of a stream, or its last status.

        Raises:
            CancelledError: The client has left, or does not read.  grpc.aio has other errors for
                that, and logs them with a traceback if they are raised.
        """
        message = _finished(response, context)
        if response.status is GrpcStatus.OK:
            try:
                with Timeout(self._server.limits.write_idle_timeout_s):
                    await context.write(message)
            except (TimeoutError, aio.InternalError, asyncio.InvalidStateError):
                raise asyncio.CancelledError("the client left, or does not read") from None


def certificate_names(context: Context) -> Iterator[str]:
    """Yield the names in the certificate of a client: URIs, DNS names, common names."""
    names, common = (
        [str(one, "utf-8", "replace") for one in context.auth_context().get(f"x509_{kind}", ())]
        for kind in ("subject_alternative_name", "common_name")
    )
    return client_names([(kind_of_name(each), each) for each in names], common)


def _address(context: Context) -> str:
    """Return the address of the client; "" for a unix socket."""
    kind, _, rest = unquote(context.peer()).partition(":")
    host = rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else ""
    return normal_address(host.removeprefix("[").removesuffix("]"))


def _finished(response: GrpcResponse, context: Context) -> bytes:
    """Set status and trailing metadata; return the message in one piece, as grpcio needs it."""
    if response.metadata:
        context.set_trailing_metadata(sendable(response.metadata))
    if response.status is not GrpcStatus.OK:
        context.set_code(CODE_OF[response.status])
        context.set_details(cut_message(response.details.encode("utf-8", "replace").decode()))
        return b""
    return b"".join(response.message)
