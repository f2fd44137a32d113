"""One connection of a gRPC server: its calls, its age and its patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Final

from gateway.ir.errors import GatewayError, InvalidRequest
from gateway.transports.admission import (
    DESCRIPTORS,
    NOBODY,
    ConnectionCount,
    Reservation,
    client_address,
    client_shares,
    connection_refusal,
)
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.admission import CallAdmission
from gateway.transports.grpc.headers import GrpcRequestHead, only_block, read_request_head
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_call import ServerCall
from gateway.transports.http2 import frames as h2
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.flood_control import UNSERVED_COST
from gateway.transports.http2.frames import Http2ConnectionError
from gateway.transports.http2.protocol import Http2Protocol
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.net.refused_connection import refuse_connection
from gateway.transports.net.write_drain import write_time
from gateway.wire.grpc import GrpcStatus
from gateway.wire.http import size_of

_AGE_GRACE_S: Final = 30.0
_LAST_CHANCE_S: Final = 0.25
_TICK_S: Final = 1.0
# A connection that was idle meanwhile catches up with so many ticks.
_MAX_TICKS: Final = 16
_BLOCK_OVERHEAD: Final = 2
"""Header blocks may be that many times the metadata's limit: over it a call is refused by name."""


class GrpcServerConnection(Http2Protocol):
    """A connection of a listener.

    Args:
        methods: By path.
        limits: Of the listener.
        count: Of its connections.
        admission: Of its calls.
        refused: Told of what is refused here.
        age_s: When it is to be replaced.

    Attributes:
        final: It takes no new calls, and closes after the last.
    """

    def __init__(  # all of the listener
        self,
        methods: Mapping[str, Method],
        limits: ServerLimits,
        count: ConnectionCount,
        admission: CallAdmission,
        refused: Callable[[GatewayError], None],
        age_s: float,
    ) -> None:
        super().__init__()
        self._methods = methods
        self._limits = limits
        self._count = count
        self._admission = admission
        self._refused = refused
        self.client = NOBODY
        self._unsent = Reservation(admission.budget, 0)
        self._address: str | None = None
        self._born = self._idle_since = monotonic()
        self._last_seen = 0
        self._age_s = age_s
        self._reading_since: float | None = None
        self._ticked = self._born
        self._leaving_since: float | None = None
        self._grace_s: float | None = None
        self.final = False
        self._ended = False
        self.core = Http2Connection(
            self,
            partial(read_request_head, limit_bytes=limits.grpc_metadata_bytes),
            client=False,
            streams=limits.h2_streams,
            header_bytes=_BLOCK_OVERHEAD * limits.grpc_metadata_bytes,
        )

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or close it at once when there are too many."""
        address = client_address(transport)
        refusal = connection_refusal(self._count, transport, address)
        if refusal is not None:
            self._refused(refusal)
            greeting = h2.settings(()) + h2.goaway(0, h2.ENHANCE_YOUR_CALM, refusal.message)
            refuse_connection(transport, greeting, linger=refusal.limit != DESCRIPTORS)
            return
        if self._ended:
            transport.abort()  # type: ignore[attr-defined]  # it is a stream's
            return
        self._address = address
        self._count.enter(address)
        admission = self._admission
        self.client = client_shares(address, admission, admission.budget)
        self._unsent = Reservation(admission.budget, 0, self.client.memory)
        super().connection_made(transport)

    def connection_lost(self, _error: BaseException | None) -> None:
        """Cancel what is still being answered."""
        self.transport = None
        if self._address is not None:
            self._count.leave(self._address)
            self._address = None
        streams = [*self.core.streams.values()]
        self.core.streams.clear()
        for stream in streams:
            self.core.writer.forget(stream)
            if stream.owner is not None:
                stream.owner.on_reset()
        self._unsent.close()
        self.core.close()

    def pause_writing(self) -> None:
        """Count what the kernel does not take."""
        super().pause_writing()
        self._unsent.try_grow_response(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Count it no more."""
        self._unsent.close()
        super().resume_writing()

    def broken(self, fault: Http2ConnectionError) -> None:
        """Count a peer that broke the protocol."""
        self._refused(InvalidRequest(fault.message, limit="h2"))

    # -- what the core tells

    def on_settings(self) -> None:
        """Do nothing: the client has its own pace."""

    def on_headers(self, stream: Http2Stream, head: GrpcRequestHead, *, end: bool) -> None:
        """Begin a call, or refuse it by its head."""
        if head.length is not None:
            stream.expected_bytes = head.length
            if end and head.length:
                self.core.reset(stream, h2.PROTOCOL_ERROR)
                return
        method = self._methods.get(head.path)
        if method is None or head.oversized or head.http_status != 200:  # noqa: PLR2004  # OK
            self._turn_away(stream, head)
            return
        call = stream.owner = ServerCall(self, stream, head, method)
        call.begin()
        if end and stream.owner is not None:
            call.on_data(memoryview(b""), end=True)

    def on_complete_stream(
        self, stream: Http2Stream, head: GrpcRequestHead, view: memoryview, _tail: object
    ) -> None:
        """Begin a call whose one message is here."""
        method = self._methods.get(head.path)
        if method is None or head.oversized or head.http_status != 200:  # noqa: PLR2004  # OK
            self._turn_away(stream, head)
        elif head.length is not None and head.length != len(view):
            self.core.refuse(stream, h2.PROTOCOL_ERROR)
        else:
            call = stream.owner = ServerCall(self, stream, head, method)
            call.on_complete_stream(view)

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """Give a call what came of it."""
        if stream.owner is not None:
            stream.owner.on_data(view, end=end)
        else:
            self.core.consume(stream, len(view))

    def on_data_batch(self, stream: Http2Stream, views: Sequence[memoryview]) -> None:
        """Give a call what came of it in several frames."""
        if stream.owner is not None:
            stream.owner.on_data_batch(views)
        else:
            self.core.consume(stream, size_of(views))

    def on_reset(self, stream: Http2Stream, _code: int) -> None:
        """End a call whose client left it."""
        if stream.owner is not None:
            stream.owner.on_reset()

    def on_writable(self, stream: Http2Stream) -> None:
        """Let a call go on."""
        if stream.owner is not None:
            stream.owner.on_writable()
        if self.final and not self.core.streams:
            self.left()

    def on_goaway(self, _code: int, _message: str) -> None:
        """Ignore GOAWAY: a client opens no more streams, and open ones go on."""

    # -- life

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What answers on this connection."""
        owners = [stream.owner for stream in self.core.streams.values() if stream.owner]
        return [call.task for call in owners if call.task is not None]

    def left(self) -> None:
        """Close the connection after its last call."""
        self.loop.call_soon(self._close_if_idle)

    def leave(self, grace_s: float | None = None) -> None:
        """Take no new calls, and close after the last, or after *grace_s*; harmless again."""
        if self._leaving_since is None:
            self._leaving_since = monotonic()
            self._grace_s = grace_s
            self.core.goaway(final=False)
            self.flush_soon()
            # Calls on their way when GOAWAY left are still taken.
            self.loop.call_later(_LAST_CHANCE_S, self._leave_now)

    def cancel_calls(self) -> None:
        """End every call with a status."""
        self._leave_now()
        for stream in list(self.core.streams.values()):
            if stream.owner is not None:
                stream.owner.cancel()

    def end(self) -> None:
        """Cancel every call, and close after what was written; before it is made, too."""
        self._ended = True
        self.close()
        for stream in list(self.core.streams.values()):
            if stream.owner is not None:
                stream.owner.on_reset()

    def is_idle(self) -> bool:
        """Return whether no call is answered or read, and the connection is not being closed."""
        core = self.core
        return not core.streams and not core.reading_block and self._leaving_since is None

    def sweep(self, now: float) -> None:
        """End what takes too long. To be called often enough for the shortest limit."""
        if self.transport is None:
            return
        limits = self._limits
        self._refill(now)
        if self._too_slow(now):
            self.abort()
            return
        for stream in list(self.core.streams.values()):
            if stream.owner is not None:
                stream.owner.overdue(now)
            still_s, waits_s = stream.stalled(now)
            if still_s > limits.write_idle_timeout_s or waits_s > write_time(
                stream.written, limits
            ):
                self.core.reset(stream, h2.CANCEL)
                self.flush_soon()
                if stream.owner is not None:
                    stream.owner.on_reset()
        if self.core.streams or self.core.last != self._last_seen:
            self._idle_since, self._last_seen = now, self.core.last
        if now - self._born > self._age_s or now - self._idle_since > limits.keepalive_s:
            self.leave(_AGE_GRACE_S)

    def _refill(self, now: float) -> None:
        ticks = min(int((now - self._ticked) / _TICK_S), _MAX_TICKS)
        if ticks:
            self._ticked = now
            for _ in range(ticks):
                self.core.flood_budget.refill()

    def _too_slow(self, now: float) -> bool:
        limits = self._limits
        if not self.core.reading_block:
            self._reading_since = None
        elif self._reading_since is None:
            self._reading_since = now
        stuck, reading = self.stuck_since, self._reading_since
        leaving, grace = self._leaving_since, self._grace_s
        return (
            (stuck is not None and now - stuck > limits.write_idle_timeout_s)
            or self.paused_s(now) > write_time(self.drained_bytes, limits)
            or (reading is not None and now - reading > limits.header_timeout_s)
            or (leaving is not None and grace is not None and now - leaving > grace)
        )

    def _leave_now(self) -> None:
        if not self.final and self.transport is not None:
            self.final = True
            self.core.goaway(final=True)
            self.flush_soon()
            self.loop.call_soon(self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self.core.streams:
            self.close()

    def _turn_away(self, stream: Http2Stream, head: GrpcRequestHead) -> None:
        status, details, http = GrpcStatus.UNIMPLEMENTED, "no protocol here serves this method", 200
        if head.http_status != 200:  # noqa: PLR2004  # OK
            status, details, http = GrpcStatus.INTERNAL, "this is no gRPC call", head.http_status
        elif head.oversized:
            status = GrpcStatus.RESOURCE_EXHAUSTED
            details = f"the metadata is too large, at most {head.oversized} bytes are allowed"
        self._refused(
            InvalidRequest(details, limit="grpc_metadata_bytes" if head.oversized else None)
        )
        self.core.flood_budget.charge(UNSERVED_COST)
        self.core.writer.head(stream, only_block(status, details, (), http_status=http), end=True)
        if not stream.remote_closed:
            self.core.reset(stream, h2.NO_ERROR)
        self.flush_soon()
