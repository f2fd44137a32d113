"""One connection of a gRPC server: its calls, its age and its patience."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

from gateway.accelerator import accelerated
from gateway.api.access import Peer
from gateway.ir.context import REQUEST_ID
from gateway.ir.errors import GatewayError, InvalidRequest
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.client_shares import ClientShares, client_shares
from gateway.transports.connection_count import (
    DESCRIPTORS,
    client_address,
    connection_refusal,
)
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.admission import CallAdmission
from gateway.transports.grpc.connection_lifecycle import GrpcConnectionLifecycle, OpenConnections
from gateway.transports.grpc.headers import (
    GrpcRequestHead,
    read_call_block,
    read_request_head,
    trailers_only_block,
)
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_call import ServerCall, new_call
from gateway.transports.grpc.states import (
    FINAL,
    GrpcConnectionEvent,
)
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_body import EMPTY
from gateway.transports.http2 import frames
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.flood_control import UNSERVED_COST
from gateway.transports.http2.frames import Http2StreamError
from gateway.transports.http2.hpack import Field, ReadBlock
from gateway.transports.http2.request_head import HttpStreamHead, header_block_bytes, read_http_head
from gateway.transports.http2.request_stream import HttpStream
from gateway.transports.http2.states import HALF_CLOSED_LOCAL
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.net.refused_connection import refuse_connection
from gateway.transports.reservation import Reservation
from gateway.wire.grpc import GrpcStatus
from gateway.wire.http import size_of
from gateway.wire.metadata import text_metadata
from gateway.wire.request_id import metadata_request_id

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


class GrpcServerConnection(GrpcConnectionLifecycle):
    """A connection of a listener.

    Args:
        methods: The methods by path.
        limits: The limits of the listener.
        open_connections: The connections of the server.
        admission: Admits its calls.
        on_reject: Called for each rejection.
        age_s: The age at which it is replaced.
        http: Handles requests that are not gRPC calls; None to reject them.

    Attributes:
        idle_until: When an idle connection is looked at again.
        state: Which new calls it accepts.
    """

    __slots__ = ()

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
        super().__init__(methods, limits, open_connections, admission, on_reject, age_s, http)
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
        self._open.members.add(self)
        self._open.active.add(self)
        admission = self._admission
        self.client = client_shares(address, admission, admission.budget, self._peer(transport))
        self._unsent = Reservation(admission.budget, 0, self.client.memory)
        super().connection_made(transport)

    @staticmethod
    def _peer(_transport: asyncio.BaseTransport) -> Peer | None:
        """Return the far end of the connection, if its calls name their clients."""
        return None

    def connection_lost(self, _error: BaseException | None) -> None:
        """Cancel the calls in progress."""
        self._move(GrpcConnectionEvent.LOSE)
        self.transport = None
        self._open.members.discard(self)
        self._open.active.discard(self)
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
        if self._last_chance is not None:
            self._last_chance.cancel()
        self.core.close()

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
            self.core.consume(stream, len(view))

    def on_data_batch(self, stream: Http2Stream, views: Sequence[memoryview]) -> None:
        """Pass several parts of a request to its call."""
        if stream.owner is not None:
            stream.owner.on_data_batch(views)
        else:
            self.core.consume(stream, size_of(views))

    def on_reset(self, stream: Http2Stream, _code: int) -> bool:
        """End a call whose client left it."""
        owner: ServerCall | HttpStream | None = stream.owner
        return owner is not None and owner.on_reset()

    def on_writable(self, stream: Http2Stream) -> None:
        """Continue a call: its output is written."""
        if stream.owner is not None:
            stream.owner.on_writable()
        if self.state is FINAL and not self.core.streams:
            self.close_when_idle()

    def on_goaway(self, _code: int, _message: str) -> None:
        """Ignore GOAWAY: a client opens no more streams, and open ones go on."""

    @property
    def _serves_methods(self) -> bool:
        return bool(self._methods)

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
        if self.state is FINAL and not self.core.streams:
            self.close_when_idle()

    def _serve_other(self, stream: Http2Stream, head: RequestHead, body: memoryview | None) -> None:
        """Start a plain request, or reject a call by its head; *body* is None if incomplete."""
        http = self._http
        if isinstance(head, GrpcRequestHead):
            self._turn_away(stream, head)
        elif http is None:
            self.core.refuse(
                stream, frames.PROTOCOL_ERROR
            )  # such heads are read for a server of them
        elif body is not None and head.length is not None and head.length != len(body):
            self.core.refuse(stream, frames.PROTOCOL_ERROR)
        else:
            stream.owner = HttpStream(self, stream, head, http, body)

    def _turn_away(self, stream: Http2Stream, head: GrpcRequestHead) -> None:
        status, details, http = GrpcStatus.UNIMPLEMENTED, _UNSERVED, 200
        if not self._serves_methods:
            details = _NO_GRPC
        if head.http_status != 200:  # noqa: PLR2004  # OK
            status, details, http = GrpcStatus.INTERNAL, _NOT_A_CALL, head.http_status
        elif head.oversized:
            status = GrpcStatus.RESOURCE_EXHAUSTED
            details = f"the metadata is too large, at most {head.oversized} bytes are allowed"
        error = InvalidRequest(details, limit="grpc_metadata_bytes" if head.oversized else None)
        error.client = self.client.caller.client(head.metadata)
        error.metadata = text_metadata(head.metadata)
        error.request_id = metadata_request_id(head.metadata)
        error.wire_status = status
        request_id = self._on_reject(error)
        metadata = ((REQUEST_ID, request_id),) if request_id else ()
        self._end_unserved(stream, trailers_only_block(status, details, metadata, http_status=http))

    def _end_unserved(self, stream: Http2Stream, block: bytes) -> None:
        """End a call with the trailers in *block*, whatever is left of its request."""
        self.core.flood_budget.charge(UNSERVED_COST)
        self.core.writer.head(stream, block, end=True)
        if stream.state is HALF_CLOSED_LOCAL:
            self.core.reset(stream, frames.NO_ERROR)
        self.flush_soon()
