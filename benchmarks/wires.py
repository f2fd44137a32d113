"""An event loop with connections in memory: a whole gateway without sockets of the kernel.

Both ends are in one process. Bytes that one end writes reach the other in the next turn of the
loop, so a benchmark measures the program alone. A gateway on this loop listens nowhere. `connect`
is its client, and it connects to a canned server.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import uvloop

Make = Callable[[], asyncio.BaseProtocol]


class Wire(asyncio.Transport):
    """One end of a connection. The other end receives what is written here.

    Args:
        loop: The event loop of both ends.
        owner: The protocol of this end.
        sock: A socket that is open and sends nothing, where the end of a client looks at it.

    Attributes:
        receive: Receives written bytes; set when both ends exist.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: asyncio.BaseProtocol,
        sock: socket.socket | None = None,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._owner = owner
        self._socket = sock
        self._closing = False
        self.receive: Callable[[bytes], object] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Pass on a copy, as a kernel would."""
        if self.receive is not None and not self._closing:
            self._loop.call_soon(self.receive, bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Pass on several buffers as one."""
        self.write(b"".join(list_of_data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the peer, or the socket."""
        if name == "socket" and self._socket is not None:
            return self._socket
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: every write succeeds."""

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing is buffered."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: messages are small."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass bytes to *protocol* from now on, as servers ask for when a connection is idle."""
        self._owner = protocol

    def deliver(self, data: bytes) -> None:
        """Pass received bytes to the protocol of this end."""
        owner = self._owner
        if isinstance(owner, asyncio.BufferedProtocol):
            _fill(owner, data)
        else:
            cast("asyncio.Protocol", owner).data_received(data)

    def is_closing(self) -> bool:
        """Return whether this end is closed."""
        return self._closing

    def close(self) -> None:
        """Refuse further bytes and notify this end. A second call has no effect."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._owner.connection_lost, None)

    def abort(self) -> None:
        """Close, because nothing is buffered."""
        self.close()


class _Listening:
    """The server object of the loop. Its socket does not listen, so its accept queue is empty."""

    family = socket.AF_INET

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.socket()
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    async def wait_closed(self) -> None: ...


class MemoryLoop(uvloop.Loop):
    """An event loop that sends nothing.

    Attributes:
        upstream: Creates the protocol of the server, for any address.
        listening: Protocol factories of the servers of this loop, by port.
        timer_factor: How much longer than asked a timer waits.
    """

    upstream: Make
    timer_factor = 1

    def __init__(self) -> None:
        super().__init__()
        self.listening: dict[int, Make] = {}
        self._clients: dict[Callable[[bytes], object], Wire] = {}
        self._pair = socket.socketpair()

    def close(self) -> None:
        """Close the sockets, too."""
        for each in self._pair:
            each.close()
        super().close()

    def call_later(  # type: ignore[override]  # the stubs have type variables for the arguments
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Start a timer; `call_at` calls this, too."""
        delay *= self.timer_factor
        return super().call_later(delay, callback, *args, context=context)

    async def create_server(  # type: ignore[override]  # no address and no options matter here
        self, make: Make, *_where: Any, sock: socket.socket | None = None, **_options: Any
    ) -> Any:
        """Record the protocol factory of a server; no socket is needed."""
        if sock is not None:
            sock.close()
        port = 1 + len(self.listening)
        self.listening[port] = make
        return _Listening(port)

    async def create_connection(  # type: ignore[override]  # as above
        self, make: Make, *_where: Any, **_options: Any
    ) -> Any:
        """Connect to the canned server."""
        client, server = make(), self.upstream()
        near, far = Wire(self, client, self._pair[0]), Wire(self, server)
        near.receive, far.receive = _receiver(far, server), _receiver(near, client)
        server.connection_made(far)
        client.connection_made(near)
        return near, client

    def connect(self, port: int, received: Callable[[bytes], object]) -> Callable[[bytes], object]:
        """Connect to a server of this loop, and return a function that sends to it.

        Args:
            port: The port that the server listens on.
            received: Receives the bytes of the server.
        """
        return self.join(self.listening[port], received)

    def join(self, make: Make, received: Callable[[bytes], object]) -> Callable[[bytes], object]:
        """Connect to the protocol that *make* creates, as in `connect`."""
        protocol = make()
        wire = self._clients[received] = Wire(self, protocol)
        wire.receive = received
        protocol.connection_made(wire)
        return _receiver(wire, protocol)

    def disconnect(self, received: Callable[[bytes], object]) -> None:
        """Close the connection whose bytes *received* gets, as its client."""
        self._clients.pop(received).close()


def _receiver(wire: Wire, protocol: asyncio.BaseProtocol) -> Callable[[bytes], object]:
    """Return a function that passes bytes to *protocol*, the one of *wire*, as a loop does."""
    if isinstance(protocol, asyncio.BufferedProtocol):
        return partial(_fill, protocol)
    return wire.deliver


def _fill(protocol: asyncio.BufferedProtocol, received: bytes) -> None:
    """Copy received bytes to where *protocol* wants them, each byte once as a kernel does."""
    data = memoryview(received)
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
