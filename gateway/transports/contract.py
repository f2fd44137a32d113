"""The contract of every transport: servers, clients, limits, deadlines, cancellation.

Deadlines are absolute, on the clock of `time.monotonic`.  When a client leaves, the server cancels
the task of its request, which closes the iterator that the task reads.  A client whose `send` is
cancelled resets the exchange on the wire, so that the server learns of it, and does not reuse the
connection.
"""

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, Literal, Protocol, TypeVar

from gateway.transports.memory_budget import MemoryBudget as MemoryBudget  # noqa: PLC0414  # part of the contract
from gateway.transports.net.sockets import max_descriptors
from gateway.wire.frontend import ServerFrontend as ServerFrontend  # noqa: PLC0414  # part of the contract
from gateway.wire.frontend import SessionLimits as SessionLimits  # noqa: PLC0414  # part of the contract
from gateway.wire.grpc import GrpcRequest, GrpcResponse, MethodKind
from gateway.wire.heads.path_claims import Passing
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.stream import Frame

Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)

Q = TypeVar("Q")
A = TypeVar("A")

_MIB = 1 << 20
_CONNECTIONS = 100
_PROBE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of one listener; times in seconds, sizes in bytes. The names are those of YAML.

    Attributes:
        connections: 0 for half of the descriptors that upstreams leave.
        connections_per_address: 0 for `connections`, or for seven eighths where that is 0 too.
        requests_in_flight: None for as many as the memory budget allows.
        requests_per_address: Requests in flight of one client address, or of one connection where
            clients have no addresses, that no other client delays; None for a quarter of
            `requests_in_flight`, or for 64 where that is None.
        queue_wait_s: None to wait until the deadline of the request.
        cut_through_bytes: A body is passed on while it arrives if so many bytes are missing; 0 for
            never.  Passing on holds about 768 KiB itself, and costs more CPU time below 2 MiB.
    """

    message_bytes: int = 64 * _MIB
    decompressed_ratio: int = 200
    decompressed_ratio_floor_bytes: int = _MIB
    decompressed_elements: int = 4096
    header_line_bytes: int = 8190
    header_field_bytes: int = 64 * 1024
    header_total_bytes: int = 96 * 1024
    header_count: int = 100
    grpc_metadata_bytes: int = 16 * 1024
    body_chunks: int = 65_536
    connections: int = 0
    connections_per_address: int = 0
    requests_in_flight: int | None = None
    requests_per_address: int | None = None
    requests_queued: int = 2048
    queue_wait_s: float | None = None
    h2_streams: int = 1024
    connection_age_s: float = 3600.0
    header_timeout_s: float = 10.0
    body_idle_timeout_s: float = 30.0
    body_min_rate_bytes_s: int = 1024
    body_min_rate_grace_s: float = 10.0
    body_timeout_s: float = 300.0
    write_idle_timeout_s: float = 30.0
    write_min_rate_bytes_s: int = 1024
    write_min_rate_grace_s: float = 10.0
    keepalive_s: float = 75.0
    tls_handshake_s: float = 10.0
    pipelined_requests: int = 16
    stream_requests: int = 64
    cut_through_bytes: int = 2 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of one upstream; times in seconds, sizes in bytes. Keys are those of YAML.

    Attributes:
        connections: None for a quarter of the file descriptors, and at least 100.
        in_flight: None for no limit.
        reuse_s: Idle time after which a connection of HTTP/1 carries only requests that may be sent
            again; `keepalive` where it is configured. gunicorn closes after 2 s, uvicorn after 5 s.
    """

    message_bytes: int = 64 * _MIB
    connections: int | None = None
    in_flight: int | None = None
    pending: int = 1024
    pending_by: Literal["route", "none"] = "route"
    connect_timeout_s: float = 5.0
    keepalive_s: float = 60.0
    reuse_s: float = 1.5
    connection_age_s: float = 300.0
    resolve_floor_s: float = 5.0
    resolve_cap_s: float = 30.0

    @property
    def most_connections(self) -> int:
        """Largest number of connections to one address."""
        return self.connections or max(_CONNECTIONS, max_descriptors() // 4)

    @property
    def most_in_flight(self) -> int:
        """Largest number of requests in flight to one address."""
        return self.in_flight or sys.maxsize


def is_probe(frontend: ServerFrontend[Q, A], wire: Q, size: int) -> bool:
    """Return whether *wire* is a health check, which needs neither slot nor memory.

    It decodes the request, so it is called only if there is no slot or memory.

    Args:
        frontend: Decodes it.
        wire: The request.
        size: Its size in bytes.
    """
    return size <= _PROBE_BYTES and frontend.is_probe(wire)


class Server(Protocol):
    """A listening server."""

    @property
    def address(self) -> str:
        """Where it listens: "host:port", the real port included, or "unix:/path"."""
        ...

    async def start(self) -> None:
        """Listen. Raises OSError if the address is in use or invalid."""
        ...

    def authenticate(self, authentication: Any) -> None:
        """Ask *authentication* who sends each request from now on; drain earlier connections."""
        ...

    def announce_close(self) -> None:
        """Ask clients to close, and continue to serve them. It may be called again."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Accept no new connections, finish the requests in progress, then cancel and close."""
        ...

    async def stop(self) -> None:
        """Close at once. A second call does nothing."""
        ...


Decode = Callable[[A], Any]
"""Reads a response, or returns a coroutine that does; raises UpstreamProtocolError."""


async def accepted(answer: A, decode: Decode[A]) -> Any:
    """Return the result of *decode* for *answer*."""
    found = decode(answer)
    return await found if type(found) is CoroutineType else found


class Client(Protocol[Q_contra, A_co]):
    """A pool of connections to one upstream.

    `send` and `stream` raise NotSent if the upstream cannot have seen the message, Unavailable if
    the connection broke, DeadlineExceeded at the deadline, TooLarge for a response above the limit,
    UpstreamProtocolError for broken framing, and Overloaded at the limits of the pool.
    """

    async def send(
        self, wire: Q_contra, /, *, deadline: float | None, decode: Decode[Any] | None = None
    ) -> Any:
        """Send one message and return its only response, or what *decode* returns for it.

        If *decode* raises UpstreamProtocolError, the connection is not used again.
        """
        ...

    def stream(self, wire: Q_contra, /, *, deadline: float | None) -> AsyncIterator[A_co]:
        """Send one message and yield its responses."""
        ...

    async def close(self) -> None:
        """Close every connection. A second call does nothing."""
        ...


HttpFrontend = ServerFrontend[HttpRequest, HttpResponse]
HttpAsk = Callable[[HttpRequest], Awaitable[HttpResponse | AsyncGenerator[HttpResponse, None]]]
GrpcFrontend = ServerFrontend[GrpcRequest, GrpcResponse]
StreamFrontend = ServerFrontend[Frame, Frame]
HttpClient = Client[HttpRequest, HttpResponse]
GrpcClient = Client[GrpcRequest, GrpcResponse]


@dataclass(frozen=True, slots=True)
class HttpMount:
    """A frontend and the path prefixes it claims; "/v2" claims "/v2" and "/v2/...".

    Attributes:
        root: It also serves the path "/" itself, unless another mount or a fallback claims it.
        exact: Whole paths that it serves, before all prefixes.
        passes: What the fallback gets of these paths; nothing of those without an entry.
    """

    prefixes: Sequence[str]
    frontend: HttpFrontend
    root: bool = False
    exact: Sequence[str] = ()
    passes: Mapping[str, Passing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GrpcMount:
    """A frontend and the methods it claims, by full path."""

    methods: Mapping[str, MethodKind]
    frontend: GrpcFrontend
