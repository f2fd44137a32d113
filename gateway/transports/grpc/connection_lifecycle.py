"""GrpcConnectionLifecycle: the age, the patience and the end of one connection of a gRPC server."""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from gateway.ir.errors import GatewayError, InvalidRequest
from gateway.transports.client_shares import NO_CLIENT_SHARES, ClientShares
from gateway.transports.connection_count import (
    ConnectionCount,
)
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.admission import CallAdmission
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.states import (
    CONNECTION_TRANSITIONS,
    FINAL,
    IDLE,
    OPEN,
    GrpcConnectionEvent,
    GrpcConnectionState,
)
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import FLOOD_TEXT
from gateway.transports.http2.frames import Http2ConnectionError
from gateway.transports.http2.protocol import Http2Protocol
from gateway.transports.net.write_drain import write_time
from gateway.transports.reservation import Reservation

_LAST_CHANCE_S: Final = 0.25

# A connection without calls for so long is not swept until its client sends.
_IDLE_AFTER_S: Final = 5.0


class OpenConnections:
    """The open connections of a server.

    Args:
        count: Counts them.

    Attributes:
        count: Counts the connections.
        members: The connections.
        active: Those that may have calls. The others are idle, and there may be 10,000.
        is_closed: New ones are aborted, because the server has stopped.
    """

    def __init__(self, count: ConnectionCount) -> None:
        self.count = count
        self.members: set[GrpcConnectionLifecycle] = set()
        self.active: set[GrpcConnectionLifecycle] = set()
        self.is_closed = False


class GrpcConnectionLifecycle(Http2Protocol):
    """The times of a connection, with its arguments."""

    __slots__ = (
        "_address",
        "_admission",
        "_age_s",
        "_born",
        "_http",
        "_http_client",
        "_idle_since",
        "_last_chance",
        "_last_seen",
        "_limits",
        "_methods",
        "_on_reject",
        "_open",
        "_reading_since",
        "_refilled",
        "_unsent",
        "client",
        "idle_until",
        "state",
    )

    def __init__(  # all of the listener
        self,
        methods: Mapping[str, Method],
        limits: ServerLimits,
        open_connections: OpenConnections,
        admission: CallAdmission,
        on_reject: Callable[[GatewayError], str | None],
        age_s: float,
        http: ListenerState | None = None,
    ) -> None:
        super().__init__()
        self._methods = methods
        self._limits = limits
        self._open = open_connections
        self._admission = admission
        self._on_reject = on_reject
        self._http = http
        self._http_client: ClientShares | None = None
        self.client = NO_CLIENT_SHARES
        self._unsent = Reservation(admission.budget, 0)
        self._address: str | None = None
        self._born = self._idle_since = monotonic()
        self._last_seen = 0
        self._age_s = age_s
        self._reading_since: float | None = None
        self._refilled = self._born
        self.state: GrpcConnectionState = OPEN
        self.idle_until = 0.0
        self._last_chance: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Count the time during which the write buffer is full."""
        super().pause_writing()
        self._unsent.try_grow_response(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop counting it."""
        self._unsent.close()
        super().resume_writing()

    def broken(self, fault: Http2ConnectionError) -> None:
        """Count a peer that broke the protocol."""
        self._report(fault.message)

    def _on_flood(self) -> None:
        """Accept no new calls: half of the flood budget is spent. Calls in progress go on."""
        self._report(FLOOD_TEXT)
        self._leave_now(FLOOD_TEXT)

    def _report(self, message: str) -> None:
        error = InvalidRequest(message, limit="h2")
        error.client = self.client.caller.client()
        self._on_reject(error)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the calls on this connection."""
        owners = [stream.owner for stream in self.core.streams.values() if stream.owner]
        return [call.task for call in owners if call.task is not None]

    def close_when_idle(self) -> None:
        """Close the connection after its last call."""
        self.loop.call_soon(self._close_if_idle)

    def announce_close(self) -> None:
        """Accept no new calls, and close after the last one."""
        self.become_active()
        if self.state is OPEN:
            self._move(GrpcConnectionEvent.ANNOUNCE)
            self.core.goaway(final=False)
            self.flush_soon()
            # Calls that were sent before GOAWAY arrived are still accepted.
            self._last_chance = self.loop.call_later(_LAST_CHANCE_S, self._leave_now)

    def cancel_calls(self) -> None:
        """End every call with a status."""
        self._leave_now()
        for stream in list(self.core.streams.values()):
            if stream.owner is not None:
                stream.owner.cancel()

    def end(self) -> None:
        """Cancel every call, and close after the output is written."""
        self.close()
        for stream in list(self.core.streams.values()):
            if stream.owner is not None:
                stream.owner.on_reset()

    def is_idle(self) -> bool:
        """Return whether there is no call, and the connection is not being closed."""
        core = self.core
        return not core.streams and not core.is_reading_block and self.state is OPEN

    def sweep(self, now: float) -> None:
        """End everything that takes too long. Call it often enough for the shortest limit."""
        if self.transport is None:
            return
        limits = self._limits
        self._refill(now)
        if self._is_too_slow(now):
            self.abort()
            return
        for stream in list(self.core.streams.values()):
            if stream.owner is not None:
                stream.owner.overdue(now)
            stalled_s, waits_s = stream.stalled(now)
            if stalled_s > limits.write_idle_timeout_s or waits_s > write_time(
                stream.written, limits
            ):
                self.core.reset(stream, frames.CANCEL)
                self.flush_soon()
                if stream.owner is not None:
                    stream.owner.on_reset()
        if self.core.streams or self.core.last != self._last_seen:
            self._idle_since, self._last_seen = now, self.core.last
        if now - self._born > self._age_s or now - self._idle_since > limits.keepalive_s:
            self.announce_close()

    def become_idle(self, now: float) -> None:
        """Become idle, if there was nothing to do for a while. Call it after `sweep`."""
        transport = self.transport
        if (
            now - self._idle_since >= _IDLE_AFTER_S
            and self.is_idle()
            and self.stuck_since is None
            and transport is not None
            and not transport.is_closing()
        ):
            self._move(GrpcConnectionEvent.SILENCE)
            self.idle_until = min(
                self._born + self._age_s, self._idle_since + self._limits.keepalive_s
            )
            self._open.active.discard(self)
            transport.set_protocol(_IdleProtocol(self))

    def become_active(self) -> None:
        """Let the connection be swept again. A second call does nothing."""
        if self.state is IDLE:
            self._move(GrpcConnectionEvent.WAKE)
            if self.transport is not None:
                self._open.active.add(self)
                self.transport.set_protocol(self)

    def _move(self, event: GrpcConnectionEvent) -> None:
        self.state = CONNECTION_TRANSITIONS.get((self.state, event), self.state)

    def _refill(self, now: float) -> None:
        seconds = int(now - self._refilled)
        if seconds:
            self._refilled = now
            self.core.flood_budget.refill(seconds)

    def _is_too_slow(self, now: float) -> bool:
        limits = self._limits
        # A new stream shows that what was incomplete has been completed since.
        if not self.core.is_reading_block or self.core.last != self._last_seen:
            self._reading_since = None
        elif self._reading_since is None:
            self._reading_since = now
        stuck, reading = self.stuck_since, self._reading_since
        return (
            (stuck is not None and now - stuck > limits.write_idle_timeout_s)
            or self.paused_s(now) > write_time(self.drained_bytes, limits)
            or (reading is not None and now - reading > limits.header_timeout_s)
        )

    def _leave_now(self, message: str = "") -> None:
        self.become_active()
        if self.state is not FINAL and self.transport is not None:
            self._move(GrpcConnectionEvent.CLOSE)
            self.core.goaway(final=True, message=message)
            self.flush_soon()
            self.loop.call_soon(self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.core.streams or self.transport is None or self.transport.is_closing():
            return
        if self.core.flood_budget.was_low:
            self.core.goaway(final=True, code=frames.ENHANCE_YOUR_CALM, message=FLOOD_TEXT)
        self.close()


class _IdleProtocol(asyncio.Protocol):
    """Receives for an idle connection, which becomes active when its client sends.

    So the path of a call need not ask whether its connection is idle.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: GrpcConnectionLifecycle) -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        """Pass *data* to the connection, which receives for itself from now on."""
        self._connection.become_active()
        self._connection.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """End the connection."""
        self._connection.connection_lost(error)
