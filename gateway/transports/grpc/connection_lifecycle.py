"""ConnectionLifecycle: when a connection of a gRPC server is idle, too slow or too old, and ends.

A server calls `sweep` and `become_idle` now and then, and the other methods when it stops.
"""

import asyncio
from time import monotonic
from typing import Final

from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.states import (
    CONNECTION_TRANSITIONS,
    FINAL,
    IDLE,
    LOST,
    OPEN,
    GrpcConnectionEvent,
    GrpcConnectionState,
)
from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import FLOOD_TEXT
from gateway.transports.http2.protocol import Http2Protocol
from gateway.transports.net.write_drain import write_time

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
        self.members: set[ConnectionLifecycle] = set()
        self.active: set[ConnectionLifecycle] = set()
        self.is_closed = False


class ConnectionLifecycle:
    """The life of one connection. Nothing happens to one that is lost.

    Args:
        socket: The connection, whose streams are owned by calls.
        limits: The limits of the listener.
        open_connections: The connections of the server.
        age_s: The age at which the connection is replaced.

    Attributes:
        idle_until: When an idle connection is looked at again.
        socket: The connection, until it is lost.
        state: Which new calls it accepts.
    """

    __slots__ = (
        "_age_s",
        "_born",
        "_idle_since",
        "_last_chance",
        "_last_seen",
        "_limits",
        "_open",
        "_reading_since",
        "_refilled",
        "idle_until",
        "socket",
        "state",
    )

    def __init__(
        self,
        socket: Http2Protocol,
        limits: ServerLimits,
        open_connections: OpenConnections,
        age_s: float,
    ) -> None:
        self.socket = socket
        self._limits = limits
        self._open = open_connections
        self._age_s = age_s
        self._born = self._idle_since = self._refilled = monotonic()
        self._last_seen = 0
        self._reading_since: float | None = None
        self._last_chance: asyncio.TimerHandle | None = None
        self.state: GrpcConnectionState = OPEN
        self.idle_until = 0.0

    def start(self) -> None:
        """Note that the connection is accepted."""
        self._open.members.add(self)
        self._open.active.add(self)

    def lose(self) -> None:
        """Detach the connection, which is lost; a reference cycle otherwise."""
        self._move(GrpcConnectionEvent.LOSE)
        self._open.members.discard(self)
        self._open.active.discard(self)
        if self._last_chance is not None:
            self._last_chance.cancel()
        del self.socket

    def _move(self, event: GrpcConnectionEvent) -> None:
        self.state = CONNECTION_TRANSITIONS.get((self.state, event), self.state)

    # -- ending

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the calls on this connection."""
        owners = [stream.owner for stream in self.socket.core.streams.values() if stream.owner]
        return [call.task for call in owners if call.task is not None]

    def announce_close(self) -> None:
        """Accept no new calls, and close after the last one."""
        self.become_active()
        if self.state is OPEN:
            self._move(GrpcConnectionEvent.ANNOUNCE)
            socket = self.socket
            socket.core.goaway(final=False)
            socket.flush_soon()
            # Calls that were sent before GOAWAY arrived are still accepted.
            self._last_chance = socket.loop.call_later(_LAST_CHANCE_S, self.leave)

    def cancel_calls(self) -> None:
        """End every call with a status."""
        if self.state is LOST:
            return
        self.leave()
        for stream in list(self.socket.core.streams.values()):
            if stream.owner is not None:
                stream.owner.cancel()

    def end(self) -> None:
        """Cancel every call, and close after the output is written."""
        self.socket.close()
        for stream in list(self.socket.core.streams.values()):
            if stream.owner is not None:
                stream.owner.on_reset()

    def leave(self, message: str = "") -> None:
        """Accept no new calls, not even those that were sent, and close after the last one."""
        self.become_active()
        if self.state is not FINAL and self.state is not LOST:
            self._move(GrpcConnectionEvent.CLOSE)
            socket = self.socket
            socket.core.goaway(final=True, message=message)
            socket.flush_soon()
            socket.loop.call_soon(self._close_if_idle)

    def on_call_ended(self) -> None:
        """Close a connection that is leaving after its last call."""
        if self.state is FINAL and not self.socket.core.streams:
            self.socket.loop.call_soon(self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.state is LOST:
            return
        socket = self.socket
        core, transport = socket.core, socket.transport
        if core.streams or transport is None or transport.is_closing():
            return
        if core.flood_budget.was_low:
            core.goaway(final=True, code=frames.ENHANCE_YOUR_CALM, message=FLOOD_TEXT)
        socket.close()

    # -- time

    def is_idle(self) -> bool:
        """Return whether there is no call, and the connection is not being closed."""
        core = self.socket.core
        return self.state is OPEN and not core.streams and not core.reader.is_reading_block

    def sweep(self, now: float) -> None:
        """End everything that takes too long. Call it often enough for the shortest limit."""
        if self.state is LOST:
            return
        socket, limits = self.socket, self._limits
        core = socket.core
        seconds = int(now - self._refilled)
        if seconds:
            self._refilled = now
            core.flood_budget.refill(seconds)
        if self._is_too_slow(now):
            socket.abort()
            return
        for stream in list(core.streams.values()):
            if stream.owner is not None:
                stream.owner.overdue(now)
            stalled_s, waits_s = stream.stalled(now)
            if stalled_s > limits.write_idle_timeout_s or waits_s > write_time(
                stream.written, limits
            ):
                core.reset(stream, frames.CANCEL)
                socket.flush_soon()
                if stream.owner is not None:
                    stream.owner.on_reset()
        if core.streams or core.last != self._last_seen:
            self._idle_since, self._last_seen = now, core.last
        if now - self._born > self._age_s or now - self._idle_since > limits.keepalive_s:
            self.announce_close()

    def _is_too_slow(self, now: float) -> bool:
        core, stall = self.socket.core, self.socket.stall
        # A new stream shows that what was incomplete has been completed since.
        if not core.reader.is_reading_block or core.last != self._last_seen:
            self._reading_since = None
        elif self._reading_since is None:
            self._reading_since = now
        reading = self._reading_since
        return (stall is not None and stall.is_too_long(now, self._limits)) or (
            reading is not None and now - reading > self._limits.header_timeout_s
        )

    def become_idle(self, now: float) -> None:
        """Become idle, if there was nothing to do for a while. Call it after `sweep`."""
        if now - self._idle_since < _IDLE_AFTER_S or not self.is_idle():
            return
        socket = self.socket
        if socket.stall is not None or socket.transport is None or socket.transport.is_closing():
            return
        self._move(GrpcConnectionEvent.SILENCE)
        self.idle_until = min(self._born + self._age_s, self._idle_since + self._limits.keepalive_s)
        self._open.active.discard(self)
        socket.receive_with(_IdleProtocol(self))

    def become_active(self) -> None:
        """Let the connection be swept again. A second call does nothing."""
        if self.state is IDLE:
            self._move(GrpcConnectionEvent.WAKE)
            self._open.active.add(self)
            self.socket.transport.set_protocol(self.socket)


class _IdleProtocol(asyncio.Protocol):
    """Receives for an idle connection, which becomes active when its client sends.

    So the path of a call need not ask whether its connection is idle.
    """

    __slots__ = ("_lifecycle",)

    def __init__(self, lifecycle: ConnectionLifecycle) -> None:
        self._lifecycle = lifecycle

    def data_received(self, data: bytes) -> None:
        """Pass *data* to the connection, which receives for itself from now on."""
        self._lifecycle.become_active()
        self._lifecycle.socket.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """End the connection."""
        self._lifecycle.socket.connection_lost(error)
