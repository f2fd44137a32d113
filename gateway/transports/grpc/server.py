"""gRPC server of our own: plain Python on the event loop, raw bytes in, raw bytes out.

The same contract and the same limits as the reference make; beside it, connections are counted,
slow senders are asked for a rate and readers that never read are left.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final
from weakref import WeakSet

from gateway.concurrency.timer_wheel import TimerWheel
from gateway.ir.errors import GatewayError
from gateway.transports.admission import ConnectionCount
from gateway.transports.contract import GrpcMount, MemoryBudget, ServerLimits
from gateway.transports.grpc.address import bound_address, host_and_port, require_free
from gateway.transports.grpc.admission import CallAdmission
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.net.accept_backlog import drain_accept_queue
from gateway.transports.net.unix_socket import PREFIX, UnixSocket

_UNBOUNDED: Final = 1 << 62
_EXTRA_MESSAGE_BYTES: Final = 64 * 1024
_BACKLOG: Final = 1024
_LAST_WORDS_S: Final = 0.5
_QUIET_S: Final = 0.25
_SWEEP_S: Final = 1.0
_IDLE_SWEEP_S: Final = 10.0
_SWEEPS_PER_LIMIT: Final = 5
_SOONEST_S: Final = 0.02
_JITTER: Final = 0.1


def _ignore(_error: GatewayError) -> None: ...


class GrpcServer:
    """Serves mounts on one address.

    Args:
        address: "host:port", "[v6]:port" or "unix:/path"; port 0 takes a free one.
        mounts: Who answers which methods; of a method named twice the first mount answers.
        limits: Of this listener.
        budget: Bytes in flight, of the whole process.
        ssl_context: From `tls.server_context`; None for plain text.
        extras: Further mounts, whose calls take no place and no bytes: health, reflection.
        refused: Told of connections and calls refused before a frontend was asked.
        listens: False for a server that is only handed connections, see `connection`.
        count: Of connections, where others count theirs in it too.
        reuse_port: Share the port with other processes that do so: the kernel spreads connections.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first four
        self,
        address: str,
        mounts: Sequence[GrpcMount],
        limits: ServerLimits,
        budget: MemoryBudget,
        *,
        ssl_context: ssl.SSLContext | None = None,
        extras: Sequence[GrpcMount] = (),
        refused: Callable[[GatewayError], None] = _ignore,
        listens: bool = True,
        count: ConnectionCount | None = None,
        reuse_port: bool = False,
    ) -> None:
        self._address = address
        self._reuse_port = reuse_port
        self._listens = listens
        self._limits = limits
        self._ssl = ssl_context
        self._refused = refused
        self._admission = CallAdmission(budget, limits)
        self._wheel = TimerWheel()
        self._methods: dict[str, Method] = {}
        free = CallAdmission(MemoryBudget(_UNBOUNDED), limits, slots=_UNBOUNDED)
        # They are counted nowhere, so they are short.
        short = replace(limits, message_bytes=min(limits.message_bytes, _EXTRA_MESSAGE_BYTES))
        self._mount(extras, free, short)
        self._mount(mounts, self._admission, limits)
        self._count = count or ConnectionCount(limits.connections, limits.connections_per_address)
        # Some are accepted and not yet connections; those that never will be leave by themselves.
        self._connections: WeakSet[GrpcServerConnection] = WeakSet()
        self._server: asyncio.Server | None = None
        self._running = False
        self._socket: UnixSocket | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._idle_due = 0.0

    @property
    def address(self) -> str:
        """Where it listens, the real port included."""
        return self._address

    async def start(self) -> None:
        """Listen. Raises OSError, naming the address, when it cannot be had."""
        if self._listens:
            await self._listen()
        self._running = True
        self._sweep()

    async def _listen(self) -> None:
        if not self._reuse_port:
            await require_free(self._address)
        loop = asyncio.get_running_loop()
        if self._ssl is not None:
            self._ssl.set_alpn_protocols(["h2"])
        options: dict[str, Any] = {"backlog": _BACKLOG, **self._tls}
        if self._address.startswith(PREFIX):
            self._socket = UnixSocket(self._address.removeprefix(PREFIX))
            sock = self._socket.bind()
            self._server = await loop.create_unix_server(self.connection, sock=sock, **options)
        else:
            host, port = host_and_port(self._address)
            shared = self._reuse_port
            where: dict[str, Any] = {"host": host, "port": port, "reuse_address": True}
            where["reuse_port"] = shared or None
            if host == "::" and socket.has_dualstack_ipv6():  # both families on one port
                bound_to = ("", port)
                where = {
                    "sock": socket.create_server(
                        bound_to, family=socket.AF_INET6, dualstack_ipv6=True, reuse_port=shared
                    )
                }
            self._server = await loop.create_server(self.connection, **where, **options)
            bound = self._server.sockets[0].getsockname()[1]
            self._address = bound_address(self._address, bound)

    def connection(self) -> GrpcServerConnection:
        """Return the protocol of one more connection; it has not been told of a transport."""
        age_s = self._limits.connection_age_s * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        connection = GrpcServerConnection(
            self._methods, self._limits, self._count, self._admission, self._refused, age_s
        )
        self._connections.add(connection)
        return connection

    async def drain(self, timeout_s: float) -> None:
        """Send GOAWAY, finish what is in flight, then cancel the rest and close."""
        if not self._running:
            return
        if self._server is not None and self._reuse_port:
            await drain_accept_queue(self._server, self.connection, self._tls)
        elif self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.leave()
        try:
            async with asyncio.timeout(timeout_s):
                await self._admission.quiet(_QUIET_S)
        except TimeoutError:
            pass
        for connection in list(self._connections):
            connection.cancel_calls()
        tasks = self._tasks()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        await asyncio.sleep(0)  # for the last words to be written
        await self.stop()

    async def stop(self) -> None:
        """Close at once; harmless the second time."""
        if not self._running:
            return
        self._running = False
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._wheel.close()
        tasks = self._tasks()
        for connection in list(self._connections):
            connection.end()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        for connection in list(self._connections):
            connection.abort()
        if self._socket is not None:
            self._socket.remove()

    @property
    def _tls(self) -> dict[str, Any]:
        if self._ssl is None:
            return {}
        return {"ssl": self._ssl, "ssl_handshake_timeout": self._limits.tls_handshake_s}

    def _mount(
        self,
        mounts: Sequence[GrpcMount],
        admission: CallAdmission,
        limits: ServerLimits,
    ) -> None:
        for mount in reversed(mounts):
            for path, kind in mount.methods.items():
                self._methods[path] = Method(
                    path, kind, mount.frontend, admission, limits, self._wheel
                )

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for connection in self._connections for task in connection.tasks]

    def _sweep(self) -> None:
        now = monotonic()
        # Idle connections have long limits only, and there may be 10,000 of them.
        is_full = now >= self._idle_due
        if is_full:
            pause_s = min(_IDLE_SWEEP_S, self._limits.keepalive_s / _SWEEPS_PER_LIMIT)
            self._idle_due = now + pause_s
        for connection in list(self._connections):
            if is_full or not connection.is_idle():
                connection.sweep(now)
        self._sweeper = asyncio.get_running_loop().call_later(self._interval_s, self._sweep)

    @property
    def _interval_s(self) -> float:
        limits = self._limits
        shortest = min(
            limits.header_timeout_s,
            limits.body_idle_timeout_s,
            limits.body_timeout_s,
            limits.body_min_rate_grace_s,
            limits.write_idle_timeout_s,
            limits.write_min_rate_grace_s,
            limits.keepalive_s,
        )
        return max(_SOONEST_S, min(_SWEEP_S, shortest / _SWEEPS_PER_LIMIT))
