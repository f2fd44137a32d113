"""One connection of a gRPC server, and the requests that begin on it.

`connection_lifecycle` says how long it lives.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final

from gateway.accelerator import accelerated
from gateway.ir.context import REQUEST_ID, Client
from gateway.ir.errors import GatewayError, InvalidRequest
from gateway.transports.authentication import peer_of
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.client_shares import NO_CLIENT_SHARES, ClientShares, client_shares
from gateway.transports.connection_count import (
    DESCRIPTORS,
    client_address,
    connection_refusal,
)
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.admission import CallAdmission
from gateway.transports.grpc.connection_lifecycle import ConnectionLifecycle, OpenConnections
from gateway.transports.grpc.headers import (
    GrpcRequestHead,
    read_call_block,
    read_request_head,
    trailers_only_block,
)
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_call import ServerCall, new_call
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_body import EMPTY
from gateway.transports.http2 import frames
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.flood_control import FLOOD_TEXT, UNSERVED_COST
from gateway.transports.http2.frames import Http2ConnectionError, Http2StreamError
from gateway.transports.http2.hpack import Field, ReadBlock
from gateway.transports.http2.protocol import Http2Protocol
from gateway.transports.http2.request_head import HttpStreamHead, header_block_bytes, read_http_head
from gateway.transports.http2.request_stream import HttpStream
from gateway.transports.http2.states import HALF_CLOSED_LOCAL
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.net.refused_connection import refuse_connection
from gateway.transports.reservation import Reservation
from gateway.wire.grpc import GrpcStatus
from gateway.wire.heads.metadata import text_metadata
from gateway.wire.heads.request_id import metadata_request_id

_UNSERVED: Final = "no protocol here serves this method"
_NOT_A_CALL: Final = "the request is not a gRPC call; expected POST and application/grpc"
_NO_GRPC: Final = "this address serves HTTP and no gRPC"

_BLOCK_OVERHEAD: Final = 4
"""Header blocks may be that many times the metadata's limit: over it a call is refused by name."""

RequestHead = GrpcRequestHead | HttpStreamHead


@lru_cache(16)  # one for all connections of a listener
def _head_readers(
    limits: ServerLimits, *, is_http: bool
) -> tuple[ReadBlock, Callable[[list[Field]], RequestHead | Http2StreamError], int]:
    """Return what reads header blocks, and how many bytes of fields a block may have.

    The first function reads the blocks of gRPC calls, and the second one the fields of others:
    those of plain requests, or of requests that are refused because they are no calls.
    """
    limit_bytes = limits.grpc_metadata_bytes
    header_bytes = _BLOCK_OVERHEAD * limit_bytes
    read_head: Callable[[list[Field]], RequestHead | Http2StreamError]
    read_head = partial(read_request_head, limit_bytes=limit_bytes)
    if is_http:
        header_bytes = max(header_bytes, header_block_bytes(limits))
        read_head = partial(read_http_head, limits=limits)
    return partial(read_call_block, header_bytes, limit_bytes), read_head, header_bytes


Identify = Callable[["GrpcServerConnection", Http2Stream, GrpcRequestHead, memoryview | None], None]
"""Asks who sends a call, and begins or refuses it; see `identification`."""


class GrpcServerConnection(Http2Protocol):
    """A connection of a listener.

    Args:
        methods: The methods by path.
        limits: The limits of the listener.
        open_connections: The connections of the server.
        admission: Admits its calls.
        on_reject: Called for each rejection.
        age_s: The age at which it is replaced.
        http: Handles requests that are not gRPC calls; None to reject them.
        identify: Asks who sends each call, and begins it; None if nobody asks.

    Attributes:
        client: What its client has of the slots and the memory.
        lifecycle: When it is idle, too slow or too old, and ends.
    """

    __slots__ = (
        "_address",
        "_admission",
        "_http",
        "_http_client",
        "_identify",
        "_methods",
        "_on_reject",
        "_open",
        "_serves_methods",
        "_unsent",
        "client",
        "lifecycle",
    )

    def __init__(  # noqa: PLR0913  # all of the listener
        self,
        methods: Mapping[str, Method],
        limits: ServerLimits,
        open_connections: OpenConnections,
        admission: CallAdmission,
        on_reject: Callable[[GatewayError], str | None],
        age_s: float,
        *,
        http: ListenerState | None = None,
        identify: Identify | None = None,
    ) -> None:
        super().__init__()
        # Those whose calls begin at once: each call of a server that asks goes to `_serve_other`.
        self._methods = methods if identify is None else {}
        self._identify = identify
        self._serves_methods = bool(methods)
        self._open = open_connections
        self._admission = admission
        self._on_reject = on_reject
        self._http = http
        self._http_client: ClientShares | None = None
        self.client = NO_CLIENT_SHARES
        self._unsent = Reservation(admission.budget, 0)
        self._address: str | None = None
        self.lifecycle = ConnectionLifecycle(self, limits, open_connections, age_s)
        read_block, read_head, header_bytes = _head_readers(limits, is_http=http is not None)
        self.core = Http2Connection(
            self,
            read_head,
            client=False,
            streams=limits.h2_streams,
            header_bytes=header_bytes,
            read_block=read_block,
        )
        self.core.flood_budget.on_low = self._on_flood

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it at once above a limit."""
        address = client_address(transport)
        refusal = connection_refusal(self._open.count, transport, address)
        if refusal is not None:
            self._on_reject(refusal)
            greeting = frames.settings(()) + frames.goaway(
                0, frames.ENHANCE_YOUR_CALM, refusal.message
            )
            refuse_connection(transport, greeting, linger=refusal.limit != DESCRIPTORS)
            return
        if self._open.is_closed:
            transport.abort()  # type: ignore[attr-defined]  # it is a stream's
            return
        self._address = address
        self._open.count.enter(address)
        self.lifecycle.start()
        admission, peer = self._admission, None if self._identify is None else peer_of(transport)
        self.client = client_shares(address, admission.slots, admission.budget, peer)
        self._unsent = Reservation(admission.budget, 0, self.client.memory)
        super().connection_made(transport)

    def connection_lost(self, _error: BaseException | None) -> None:
        """Cancel the calls in progress."""
        self.lifecycle.lose()
        self.transport = None
        if self._address is not None:
            self._open.count.leave(self._address)
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
        """Count the time during which the write buffer is full."""
        super().pause_writing()
        self._unsent.try_grow_response(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop counting it."""
        self._unsent.close()
        super().resume_writing()

    # -- events of the core

    def on_settings(self) -> None:
        """Do nothing: a client may send calls before its SETTINGS."""

    def on_headers(self, stream: Http2Stream, head: GrpcRequestHead, *, end: bool) -> None:
        """Begin a call or a plain request, whose path names no method; or refuse it."""
        if head.length is not None:
            stream.expected_bytes = head.length
            if end and head.length:
                self.core.refuse(stream, frames.PROTOCOL_ERROR)
                return
        method = self._methods.get(head.path)
        if method is None or head.oversized or head.http_status != 200:  # noqa: PLR2004  # OK
            self._serve_other(stream, head, EMPTY if end else None)
            return
        call = stream.owner = new_call(self, stream, head, method)
        call.begin()
        if end and stream.owner is not None:
            call.on_data(memoryview(b""), end=True)

    @accelerated
    def on_complete_stream(
        self, stream: Http2Stream, head: GrpcRequestHead, view: memoryview, _tail: object
    ) -> None:
        """Start a call or a plain request that arrived completely."""
        method = self._methods.get(head.path)
        if method is None or head.oversized or head.http_status != 200:  # noqa: PLR2004  # OK
            self._serve_other(stream, head, view)
        elif head.length is not None and head.length != len(view):
            self.core.refuse(stream, frames.PROTOCOL_ERROR)
        else:
            call = stream.owner = new_call(self, stream, head, method)
            call.on_complete_stream(view)

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """Pass a part of a request to its call."""
        if stream.owner is not None:
            stream.owner.on_data(view, end=end)
        else:
            self.core.windows.consume(stream, len(view))

    def on_reset(self, stream: Http2Stream, _code: int) -> bool:
        """End a call whose client left it."""
        owner: ServerCall | HttpStream | None = stream.owner
        return owner is not None and owner.on_reset()

    def on_writable(self, stream: Http2Stream) -> None:
        """Continue a call: its output is written."""
        if stream.owner is not None:
            stream.owner.on_writable()
        self.lifecycle.on_call_ended()

    def on_goaway(self, _code: int, _message: str) -> None:
        """Ignore GOAWAY: a client opens no more streams, and open ones go on."""

    def broken(self, fault: Http2ConnectionError) -> None:
        """Count a peer that broke the protocol."""
        self._report(fault.message)

    def _on_flood(self) -> None:
        """Accept no new calls: half of the flood budget is spent. Calls in progress go on."""
        self._report(FLOOD_TEXT)
        self.lifecycle.leave(FLOOD_TEXT)

    def _report(self, message: str) -> None:
        error = InvalidRequest(message, limit="h2")
        error.client = self.client.caller.client()
        self._on_reject(error)

    # -- plain requests

    @property
    def http_client(self) -> ClientShares:
        """What its client has of the slots and the memory of the HTTP listener."""
        http = self._http
        assert http is not None  # noqa: S101  # there is a plain request
        if self._http_client is None:
            caller = self.client.caller
            peer = caller.peer if isinstance(caller, IdentifiedCaller) else None
            self._http_client = client_shares(self._address or "", http.slots, http.budget, peer)
        return self._http_client

    def on_http_begin(self) -> None:
        """Count a plain request among the calls that a drain waits for."""
        self._admission.begin()

    def on_http_end(self) -> None:
        """Stop counting it."""
        self._admission.leave()
        self.lifecycle.on_call_ended()

    def _serve_other(self, stream: Http2Stream, head: RequestHead, body: memoryview | None) -> None:
        """Start a plain request, or a call whose client is asked for; or reject a call by its head.

        *body* is None if it has not arrived.
        """
        http = self._http
        if isinstance(head, GrpcRequestHead):
            if self._identify is None:
                self.turn_away(stream, head)
            else:
                self._identify(self, stream, head, body)
        elif http is None:
            self.core.refuse(
                stream, frames.PROTOCOL_ERROR
            )  # such heads are read for a server of them
        elif body is not None and head.length is not None and head.length != len(body):
            self.core.refuse(stream, frames.PROTOCOL_ERROR)
        else:
            stream.owner = HttpStream(self, stream, head, http, body)

    # -- calls that are not served

    def turn_away(
        self, stream: Http2Stream, head: GrpcRequestHead, client: Client | None = None
    ) -> None:
        """End a call that its head rules out: its method, its metadata, or that it is none.

        Args:
            stream: Its stream.
            head: Its header fields.
            client: Who sends it, where clients are asked for.
        """
        status, details, http = GrpcStatus.UNIMPLEMENTED, _UNSERVED, 200
        if not self._serves_methods:
            details = _NO_GRPC
        if head.http_status != 200:  # noqa: PLR2004  # OK
            status, details, http = GrpcStatus.INTERNAL, _NOT_A_CALL, head.http_status
        elif head.oversized:
            status = GrpcStatus.RESOURCE_EXHAUSTED
            details = f"the metadata is too large, at most {head.oversized} bytes are allowed"
        error = InvalidRequest(details, limit="grpc_metadata_bytes" if head.oversized else None)
        error.client = self.client.caller.client(head.metadata) if client is None else client
        error.metadata = text_metadata(head.metadata)
        error.request_id = metadata_request_id(head.metadata)
        self.reject(stream, error, status, http)

    def reject(
        self, stream: Http2Stream, error: GatewayError, status: GrpcStatus, http_status: int = 200
    ) -> None:
        """Report a call that reaches no frontend, and end it with *status*."""
        error.wire_status = status
        request_id = self._on_reject(error)
        metadata = ((REQUEST_ID, request_id),) if request_id else ()
        block = trailers_only_block(status, error.message, metadata, http_status=http_status)
        self.end_unserved(stream, block)

    def end_unserved(self, stream: Http2Stream, block: bytes) -> None:
        """End a call with the trailers in *block*, whatever is left of its request."""
        self.core.flood_budget.charge(UNSERVED_COST)
        self.core.writer.head(stream, block, end=True)
        if stream.state is HALF_CLOSED_LOCAL:
            self.core.reset(stream, frames.NO_ERROR)
        self.flush_soon()
