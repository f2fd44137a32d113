"""TlsServer: accepts connections and makes their TLS handshakes, each with the context in force.

The loop's own server keeps its first context, and tells nobody of handshakes that fail.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, Protocol

import structlog

from gateway.transports.net.sockets import normal_address
from gateway.transports.net.tls_files import Authorities, TlsContext

log = structlog.get_logger(__name__)

_BATCH: Final = 64
"""Connections that are accepted before other tasks run."""

_RETRY_S: Final = 1.0
_QUIET_S: Final = 1.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REASONS: Final = {
    "HTTP_REQUEST": "the client sent HTTP without TLS",
    "WRONG_VERSION_NUMBER": "the client sent no TLS",
    "UNSUPPORTED_PROTOCOL": "the client's version of TLS is older than min_version",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client does not accept the certificate: it has expired",
}


class Listening(Protocol):
    """What `TlsServer` and the server of the loop have in common."""

    @property
    def sockets(self) -> Sequence[Any]:
        """The sockets that listen."""
        ...

    def close(self) -> None:
        """Stop to listen."""
        ...


class TlsServer:
    """Accepts the connections of a bound server of the loop, which itself accepts none.

    Args:
        server: Made with `start_serving=False`.
        new: Makes the protocol of a connection.
        tls: The context of each handshake.
        handshake_s: The longest time of a handshake.
        recheck: Drains the connections whose client the authorities do not verify any more.
    """

    def __init__(  # all of them are needed
        self,
        server: asyncio.Server,
        new: Callable[[], asyncio.BaseProtocol],
        tls: TlsContext,
        handshake_s: float,
        recheck: Callable[[Authorities], None],
    ) -> None:
        self._server = server
        self._new = new
        self._tls = tls
        self._handshake_s = handshake_s
        self._recheck = recheck
        self._failures = HandshakeFailures(tls.socket)
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listening: list[socket.socket] = []
        tls.add_user(self)

    def listen(self, backlog: int) -> None:
        """Begin to accept connections. Raises OSError."""
        for each in self._server.sockets:
            # The loop's server owns its descriptor, so this one is another of the same socket.
            own = socket.socket(fileno=os.dup(each.fileno()))
            self._listening.append(own)
            own.setblocking(False)
            own.listen(backlog)
            self._loop.add_reader(own.fileno(), self._accept, own)

    @property
    def sockets(self) -> Sequence[Any]:
        """The sockets that listen."""
        return self._server.sockets

    def close(self) -> None:
        """Stop to listen; handshakes that have begun go on. Harmless the second time."""
        listening, self._listening = self._listening, []
        for each in listening:
            self._loop.remove_reader(each.fileno())
            each.close()
        self._server.close()

    def tls_renewed(self, authorities: Authorities | None) -> None:
        """Drain connections whose client certificate the new authorities do not verify."""
        if authorities is not None:
            self._recheck(authorities)

    async def connect(self, sock: socket.socket) -> None:
        """Make the handshake of an accepted connection, and log why it fails."""
        address = _address_of(sock)
        context = self._tls.current
        try:
            await self._loop.connect_accepted_socket(
                self._new, sock, ssl=context, ssl_handshake_timeout=self._handshake_s
            )
        except OSError as error:  # includes the errors of ssl
            self._failures.note(address, _reason_of(error))
            return
        finally:
            del sock
        if context is not self._tls.current and self._tls.authorities is not None:
            self._recheck(self._tls.authorities)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                sock, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(listening, error)
                return
            sock.setblocking(False)
            task = self._loop.create_task(self.connect(sock))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Accept nothing for a moment, as the loop's server does without descriptors or memory."""
        log.error("connections not accepted", listener=self._tls.socket, reason=error.strerror)
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(_RETRY_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening)


class HandshakeFailures:
    """Logs handshakes that fail: at most one line a second, with their number.

    Args:
        listener: The name for the log.
        clock: Monotonic seconds.
    """

    def __init__(self, listener: str, clock: Callable[[], float] = monotonic) -> None:
        self._listener = listener
        self._clock = clock
        self._next = 0.0
        self._unlogged = 0

    def note(self, address: str, reason: str) -> None:
        """Count a failure, and log it unless the last line is younger than a second."""
        self._unlogged += 1
        now = self._clock()
        if now >= self._next:
            log.warning(
                "TLS handshake failed",
                socket=self._listener,
                address=address,
                reason=reason,
                count=self._unlogged,
            )
            self._next, self._unlogged = now + _QUIET_S, 0


def _reason_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _REASONS.get(reason) or reason.replace("_", " ").lower()
    if isinstance(error, ConnectionAbortedError):
        return f"the client was too slow: {error}"
    return "the client closed the connection" if isinstance(error, ConnectionError) else str(error)


def _address_of(sock: socket.socket) -> str:
    with contextlib.suppress(OSError):  # the client has left
        name = sock.getpeername()
        return f"{normal_address(name[0])}:{name[1]}" if isinstance(name, tuple) else ""
    return ""


async def listening_server(
    create: Callable[..., Any],
    new: Callable[[], asyncio.BaseProtocol],
    tls: TlsContext | None,
    handshake_s: float,
    recheck: Callable[[Authorities], None],
    *,
    backlog: int,
    **where: Any,
) -> Listening:
    """Listen, with TLS or without.

    Args:
        create: `create_server` or `create_unix_server` of the loop.
        new: Makes the protocol of a connection.
        tls: As for `TlsServer`; None for no TLS.
        handshake_s: The longest time of a TLS handshake.
        recheck: Called with the new authorities of client certificates.
        backlog: Length of the queue of connections.
        where: The address, as *create* has it.

    Raises:
        OSError: The address is in use or invalid.
    """
    if tls is None:
        server: asyncio.Server = await create(new, backlog=backlog, **where)
        return server
    server = await create(new, backlog=backlog, start_serving=False, **where)
    found = TlsServer(server, new, tls, handshake_s, recheck)
    try:
        found.listen(backlog)
    except BaseException:
        found.close()
        raise
    return found
