"""An event loop whose connections are memory: a whole gateway, without a kernel's sockets.

Both ends live in one process and what one writes the other is given in the next turn of the loop,
so that what is timed is the program alone. A gateway started on it listens nowhere; `connect` is
its client, and what it connects to is a canned server.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import uvloop

Make = Callable[[], asyncio.BaseProtocol]


class Wire(asyncio.Transport):
    """One end of a connection: what is written here, the far end receives.

    Args:
        loop: Of both ends.
        owner: The protocol of this end.

    Attributes:
        receive: Takes what is written; set once both ends are there.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._owner = owner
        self._closing = False
        self.receive: Callable[[bytes], object] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand on a copy, as a kernel would have made one."""
        if self.receive is not None and not self._closing:
            self._loop.call_soon(self.receive, bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Hand on several buffers as one."""
        self.write(b"".join(list_of_data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return where the peer is; there is no socket."""
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: whatever is written is taken."""

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing waits."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: what is sent here is small."""

    def resume_reading(self) -> None:
        """Do nothing, as above."""

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self._closing

    def close(self) -> None:
        """Take no more, and tell this end; harmless the second time."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._owner.connection_lost, None)

    def abort(self) -> None:
        """Close: nothing waits here."""
        self.close()


class _Listening:
    """What the loop gives for a server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class MemoryLoop(uvloop.Loop):
    """An event loop on which nothing is sent.

    Attributes:
        upstream: Makes the protocol of the server that is connected to, whatever the address.
        listening: Protocols of servers started here, by port.
    """

    upstream: Make

    def __init__(self) -> None:
        super().__init__()
        self.listening: dict[int, Make] = {}

    async def create_server(  # type: ignore[override]  # no address and no options matter here
        self, make: Make, *_where: Any, **_options: Any
    ) -> Any:
        """Note who would be connected to."""
        port = 1 + len(self.listening)
        self.listening[port] = make
        return _Listening(port)

    async def create_connection(  # type: ignore[override]  # as above
        self, make: Make, *_where: Any, **_options: Any
    ) -> Any:
        """Connect to the canned server."""
        client, server = make(), self.upstream()
        near, far = Wire(self, client), Wire(self, server)
        near.receive, far.receive = _receiver(server), _receiver(client)
        server.connection_made(far)
        client.connection_made(near)
        return near, client

    def connect(self, port: int, received: Callable[[bytes], object]) -> Callable[[bytes], object]:
        """Connect to what listens here; return what sends to it.

        Args:
            port: By `listening`.
            received: Is given what it writes.
        """
        return self.join(self.listening[port], received)

    def join(self, make: Make, received: Callable[[bytes], object]) -> Callable[[bytes], object]:
        """Connect to the protocol that *make* makes; as `connect` otherwise."""
        protocol = make()
        wire = Wire(self, protocol)
        wire.receive = received
        protocol.connection_made(wire)
        return _receiver(protocol)


def _receiver(protocol: asyncio.BaseProtocol) -> Callable[[bytes], object]:
    """Return what gives bytes to *protocol* as a loop does."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        return cast("asyncio.Protocol", protocol).data_received

    def fill(data: bytes) -> None:
        while data:
            buffer = memoryview(protocol.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]

    return fill
