"""GrpcClient of the reference implementation: one channel of grpcio with raw messages.

A status that the server sent is a response, which the codec interprets.  Only failures of this side
of the connection are raised; `local_failure` distinguishes them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import grpc
from grpc import aio

from gateway.concurrency.background import start_background
from gateway.ir import errors
from gateway.transports.contract import ClientLimits, Decode, accepted
from gateway.transports.grpc.metadata import sendable
from gateway.transports.net.tls_files import Authorities, TlsFiles, grpc_channel_credentials
from gateway.transports.net.wrong_port import SERVES_HTTP
from gateway.transports.reference.grpc_values import STATUS_OF, keep_log_quiet, plain_metadata
from gateway.transports.slots import upstream_slots
from gateway.wire.grpc import GrpcRequest, GrpcResponse

# grpcio and the event loop round time differently.
_CLOCK_SLACK_S = 0.002
_MAX_METADATA = 16 * 1024
# Calls on a channel whose TLS files were renewed end within this time.
_CLOSE_GRACE_S = 300.0

# Texts of the C core, 1.66 to 1.85.  Without them a failure is a reply of the server, which is
# never sent again.
_NOT_CONNECTED = (
    "failed to connect to all addresses",
    "errors resolving ",
    "DNS resolution failed",
)
_BROKEN_OFF = "Stream removed ("
_TOO_LARGE = ("CLIENT: Received message larger than max", "Decompressed message larger")


class GrpcClient:
    """Sends raw messages to one upstream.

    Args:
        target: "host:port" or "unix:/path".
        limits: The limits of this upstream.
        tls: The TLS files; None for plain text.
    """

    def __init__(self, target: str, limits: ClientLimits, *, tls: TlsFiles | None = None) -> None:
        self._target = target
        self._limits = limits
        self._tls = tls
        if tls is not None:
            tls.add_user(self)
        self._slots = upstream_slots("in_flight", limits.most_in_flight, limits, target)
        self._channel: aio.Channel | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def send(
        self,
        wire: GrpcRequest,
        /,
        *,
        deadline: float | None,
        decode: Decode[GrpcResponse] | None = None,
    ) -> Any:
        """Send one message and return its only response, or the status that replaces it.

        Metadata that gRPC cannot carry is omitted.  A message of several buffers, and any view, is
        copied once.
        """
        async with self._call(wire, deadline, streams=False) as call:
            try:
                message = await call
                metadata = plain_metadata(await call.trailing_metadata())
                answer = GrpcResponse((message,), metadata=metadata)
            except aio.AioRpcError as error:
                answer = self._status(error, deadline)
        return answer if decode is None else await accepted(answer, decode)

    async def stream(
        self, wire: GrpcRequest, /, *, deadline: float | None
    ) -> AsyncGenerator[GrpcResponse, None]:
        """Send one message and yield its responses; a status other than OK is the last."""
        async with self._call(wire, deadline, streams=True) as call:
            try:
                while (message := await call.read()) is not aio.EOF:
                    yield GrpcResponse((message,))
            except aio.AioRpcError as error:
                yield self._status(error, deadline)

    async def close(self) -> None:
        """Close the connection and break off the calls on it; harmless the second time."""
        self._closed.set()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def tls_renewed(self, _authorities: Authorities | None) -> None:
        """Use another channel from now on; close this one after its calls."""
        channel, self._channel = self._channel, None
        if channel is not None:
            self._closing = start_background(channel.close(_CLOSE_GRACE_S), "renewed channel")

    @asynccontextmanager
    async def _call(
        self, wire: GrpcRequest, deadline: float | None, *, streams: bool
    ) -> AsyncIterator[Any]:
        """Yield a call with raw bytes that has begun; cancel it if it has not ended."""
        if self._closed.is_set():
            raise errors.NotSent(f"the client of {self._target} is closed")
        if deadline is not None and deadline <= monotonic():
            raise errors.DeadlineExceeded(f"deadline exceeded before {self._target} was called")
        if not self._slots.try_acquire():
            await self._slots.wait(None, deadline=deadline)
        call = None
        try:
            channel = self._channel = self._channel or self._open()
            begin = (channel.unary_stream if streams else channel.unary_unary)(wire.method)
            left_s = None if deadline is None else max(0.0, deadline - monotonic())
            message, metadata = b"".join(wire.message), sendable(wire.metadata)
            call = begin(message, timeout=left_s, metadata=metadata)
            yield call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed.is_set() and (task is None or not task.cancelling()):
                text = f"the client of {self._target} was closed during the call"
                raise errors.Unavailable(text) from None
            raise
        finally:
            if call is not None:
                call.cancel()
            self._slots.release()

    def _open(self) -> aio.Channel:
        keep_log_quiet()
        options = _options(self._limits)
        if self._tls is None:
            return aio.insecure_channel(self._target, options=options)
        credentials = grpc_channel_credentials(self._tls)
        return aio.secure_channel(self._target, credentials, options=options)

    def _status(self, error: aio.AioRpcError, deadline: float | None) -> GrpcResponse:
        """Return the server's status. Raises a failure of this side of the connection."""
        code, details, channel = error.code(), error.details() or "", self._channel
        is_connected = channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY
        is_late = deadline is not None and monotonic() >= deadline - _CLOCK_SLACK_S
        failure = local_failure(self._target, code, details, connected=is_connected, late=is_late)
        if failure is not None:
            raise failure from error
        metadata = plain_metadata(error.trailing_metadata())
        return GrpcResponse(status=STATUS_OF[code], details=details, metadata=metadata)


def local_failure(
    target: str, code: grpc.StatusCode, details: str, *, connected: bool, late: bool
) -> errors.GatewayError | None:
    """Return the error of a call that this side ended; None if the server replied.

    grpcio raises the same exception for both.  In case of doubt it was the server, because a call
    that the server has seen must not be repeated.

    Args:
        target: The upstream.
        code: The code of the exception.
        details: The details of the exception.
        connected: The channel has a working connection at this moment.
        late: The deadline of this side has passed.
    """
    shown = details.removeprefix(_BROKEN_OFF)[:200]
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and late:
        return errors.DeadlineExceeded(f"no response from {target} in time")
    if code is grpc.StatusCode.UNAVAILABLE and not connected and details.startswith(_NOT_CONNECTED):
        why = SERVES_HTTP if "Trying to connect an http1" in details else shown
        return errors.ConnectFailure(f"cannot connect to {target}: {why}")
    if code is grpc.StatusCode.UNAVAILABLE and (details.startswith(_BROKEN_OFF) or not connected):
        return errors.Unavailable(f"{target} broke the connection before it replied: {shown}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(text in details for text in _TOO_LARGE):
        text = f"the response of {target} is too large: {shown}"
        return errors.TooLarge(text, limit="message_bytes")
    return None


def _options(limits: ClientLimits) -> list[tuple[str, Any]]:
    """Return the limits as arguments of the C core.

    There are no keepalive pings: a server with default settings replies to them with GOAWAY.
    """
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        # The size of the caller's message was checked when it arrived.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _MAX_METADATA),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA),
        # By default the window grows with the estimated bandwidth and latency, up to tens of MiB on
        # a slow host.  A server then runs that far ahead of a client that reads slowly.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
        # Retries, routes and proxies are the gateway's to decide.
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        # The core's name of the connect timeout.
        ("grpc.min_reconnect_backoff_ms", round(limits.connect_timeout_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
