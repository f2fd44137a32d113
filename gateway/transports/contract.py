"""The contract of every transport: servers, clients, limits, deadlines, cancellation.

Deadlines are absolute, on the clock of `time.monotonic`. Cancellation: when the client leaves, the
server cancels the task that answers it, which closes the iterator it reads from; a client whose
`send` is cancelled resets the exchange on the wire, so that the server at the far end learns of
it, and does not reuse the connection.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from gateway.ir.errors import GatewayError
from gateway.session import SessionLimits as SessionLimits  # noqa: PLC0414  # part of the contract
from gateway.transports.admission import MemoryBudget as MemoryBudget  # noqa: PLC0414  # part of the contract
from gateway.wire.grpc import GrpcRequest, GrpcResponse, MethodKind
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.stream import Frame

Q = TypeVar("Q")
A = TypeVar("A")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of one listener; times in seconds, sizes in bytes. Keys are those of YAML.

    Attributes:
        cut_through_bytes: So much must be missing of a body to be passed on as it comes; 0: never.
            Passing on holds about half a MiB itself, so that less saves nothing.
    """

    message_bytes: int = 64 * _MIB
    decompressed_ratio: int = 200
    decompressed_ratio_floor_bytes: int = _MIB
    header_line_bytes: int = 8190
    header_field_bytes: int = 64 * 1024
    header_total_bytes: int = 96 * 1024
    header_count: int = 100
    grpc_metadata_bytes: int = 16 * 1024
    body_chunks: int = 65_536
    connections: int = 1024
    connections_per_address: int = 256
    requests_in_flight: int = 256
    requests_queued: int = 256
    queue_wait_s: float = 0.1
    h2_streams: int = 100
    connection_age_s: float = 3600.0
    header_timeout_s: float = 10.0
    body_idle_timeout_s: float = 30.0
    body_min_rate_bytes_s: int = 1024
    body_min_rate_grace_s: float = 10.0
    body_timeout_s: float = 300.0
    write_idle_timeout_s: float = 30.0
    keepalive_s: float = 75.0
    tls_handshake_s: float = 10.0
    pipelined_requests: int = 16
    stream_requests: int = 64
    cut_through_bytes: int = _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of one upstream; times in seconds, sizes in bytes. Keys are those of YAML."""

    message_bytes: int = 64 * _MIB
    connections: int = 100
    in_flight: int = 256
    pending: int = 64
    connect_timeout_s: float = 5.0
    keepalive_s: float = 60.0
    connection_age_s: float = 300.0
    resolve_floor_s: float = 5.0
    resolve_cap_s: float = 30.0


class ServerFrontend(Protocol[Q_contra, A_co]):
    """What a server transport hands its messages to.

    One that mostly gives single answers may have `ask` too, as `gateway.frontend` has: a generator
    around one answer costs more than many an answer.  One whose clients know answers by their ids
    may have `refuse_wire`, for messages that were read whole: see `refuse` below.  One that can
    begin before a large body has come has `head_bytes` and `ask_early`.  One that answers
    several messages of a bidirectional stream at a time has `session`: see below.
    """

    def __call__(self, wire: Q_contra, /) -> AsyncGenerator[A_co, None]:
        """Answer *wire* once, or many times for a stream; never raises `GatewayError`."""
        ...

    def refuse(self, error: GatewayError, /) -> A_co:
        """Say *error* in the protocol's form, for a message that was never read whole."""
        ...


async def ask(frontend: ServerFrontend[Q, A], wire: Q) -> A | AsyncGenerator[A, None]:
    """Return the one answer to *wire*, or a generator of its answers: whichever is at hand."""
    single: Any = getattr(frontend, "ask", None)
    if single is None:
        return frontend(wire)
    found: A | AsyncGenerator[A, None] = await single(wire)
    return found


def asking(
    frontend: ServerFrontend[Q, A],
) -> Callable[[Q], Awaitable[A | AsyncGenerator[A, None]]]:
    """Return what asks *frontend* as `ask` does, for a server to keep."""
    single: Any = getattr(frontend, "ask", None)
    return partial(ask, frontend) if single is None else single


def head_bytes(frontend: ServerFrontend[Q, A], wire: Q) -> int | None:
    """Return how much of a body is enough to ask `ask_early`; None for all of it.

    Args:
        frontend: Says so in `head_bytes`, if it has that and `ask_early`.
        wire: Without its body.
    """
    knowing: Any = getattr(frontend, "head_bytes", None)
    found: int | None = None if knowing is None else knowing(wire)
    return found


async def ask_early(
    frontend: ServerFrontend[Q, A], wire: Q, whole: Callable[[], Awaitable[Q]]
) -> A | AsyncGenerator[A, None]:
    """Return what answers *wire*, of which `head_bytes` have come, as `ask` does.

    Args:
        frontend: May have all of the request first.
        wire: What has come, and what is still to come.
        whole: Returns the whole request when it has come.
    """
    early: Any = frontend
    found: A | AsyncGenerator[A, None] = await early.ask_early(wire, whole)
    return found


def refuse(frontend: ServerFrontend[Q, A], wire: Q, error: GatewayError) -> A:
    """Return *error* as the answer to *wire*, with its id where the frontend can tell it."""
    knowing: Any = getattr(frontend, "refuse_wire", None)
    if knowing is None:
        return frontend.refuse(error)
    found: A = knowing(wire, error)
    return found


async def session(
    frontend: ServerFrontend[Q, A], wires: AsyncIterator[Q], gate: SessionLimits[Q, A]
) -> AsyncGenerator[A, None]:
    """Answer the messages of one bidirectional stream; what its server transport runs.

    The transport reads, and writes; in which order messages are answered is the frontend's affair.

    - *wires* gives each message as it comes, waiting for it, and ends when the client closes its
      half. It is asked for the next one only while fewer than `stream_requests` are being answered,
      so a client that is not read from is held up by the flow control of the wire.
    - *gate* holds a place and the bytes of a message while that one is answered, and refuses
      answers over the limit. Both refusals are answered in the stream, which goes on.
    - Each answer is to be written before the next one is asked for: what the client does not take
      is not made. An answer with a status that is not OK ends the stream there.
    - When the client leaves, the transport closes this generator, which cancels the calls.

    A frontend without a session of its own is given one message at a time.
    """
    own: Any = getattr(frontend, "session", None)
    answers: AsyncGenerator[A, None] = (
        _one_by_one(frontend, wires, gate) if own is None else own(wires, gate)
    )
    async with aclosing(answers):
        async for answer in answers:
            yield answer


async def _one_by_one(
    frontend: ServerFrontend[Q, A], wires: AsyncIterator[Q], gate: SessionLimits[Q, A]
) -> AsyncGenerator[A, None]:
    async for wire in wires:
        try:
            async with gate.place(wire), aclosing(frontend(wire)) as answers:
                async for answer in answers:
                    gate.check(answer)
                    yield answer
        except GatewayError as error:
            yield refuse(frontend, wire, error)


class Server(Protocol):
    """A listening server."""

    @property
    def address(self) -> str:
        """Where it listens: "host:port", the real port included, or "unix:/path"."""
        ...

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Take no new connections, finish what is in flight, then cancel the rest and close."""
        ...

    async def stop(self) -> None:
        """Close at once; harmless the second time."""
        ...


class Client(Protocol[Q_contra, A_co]):
    """A pool of connections to one upstream.

    `send` and `stream` raise NotSent when the upstream cannot have seen the message, Unavailable
    when the connection broke, DeadlineExceeded at the deadline, TooLarge for an answer over the
    limit, UpstreamProtocolError for broken framing, Overloaded when the pool's own limits are
    reached.
    """

    async def send(self, wire: Q_contra, /, *, deadline: float | None) -> A_co:
        """Send one message and return its one answer."""
        ...

    def stream(self, wire: Q_contra, /, *, deadline: float | None) -> AsyncIterator[A_co]:
        """Send one message and iterate over its answers."""
        ...

    async def close(self) -> None:
        """Close every connection; harmless the second time."""
        ...


HttpFrontend = ServerFrontend[HttpRequest, HttpResponse]
HttpAsk = Callable[[HttpRequest], Awaitable[HttpResponse | AsyncGenerator[HttpResponse, None]]]
GrpcFrontend = ServerFrontend[GrpcRequest, GrpcResponse]
StreamFrontend = ServerFrontend[Frame, Frame]
HttpClient = Client[HttpRequest, HttpResponse]
GrpcClient = Client[GrpcRequest, GrpcResponse]


@dataclass(frozen=True, slots=True)
class HttpMount:
    """A frontend and the path prefixes it claims; "/v2" claims "/v2" and "/v2/..."."""

    prefixes: Sequence[str]
    frontend: HttpFrontend


@dataclass(frozen=True, slots=True)
class GrpcMount:
    """A frontend and the methods it claims, by full path."""

    methods: Mapping[str, MethodKind]
    frontend: GrpcFrontend
