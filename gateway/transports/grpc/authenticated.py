"""gRPC connections whose calls name their clients: who calls is asked after the header fields."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.api.access import Peer
from gateway.ir.context import REQUEST_ID, Client
from gateway.ir.errors import GatewayError
from gateway.transports.authentication import Authentication, peer_of
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.grpc.headers import GrpcRequestHead, trailers_only_block
from gateway.transports.grpc.messages import GrpcMessage
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_call import ServerCall
from gateway.transports.grpc.server_connection import GrpcServerConnection, RequestHead
from gateway.transports.http2 import frames
from gateway.transports.http2.streams import Http2Stream
from gateway.wire.errors import GRPC_STATUS
from gateway.wire.grpc import GrpcRequest, GrpcResponse, Metadata
from gateway.wire.metadata import text_metadata
from gateway.wire.request_id import metadata_request_id


class AuthenticatedGrpcConnection(GrpcServerConnection):
    """A connection that asks for the client of each call.

    To its parent no method is served, so all calls arrive at `_serve_other`.

    Args:
        methods: The methods by path.
        authentication: Names the clients.
        state: The other arguments of the parent.
    """

    __slots__ = ("_served", "authentication")

    def __init__(
        self, methods: Mapping[str, Method], authentication: Authentication, *state: Any
    ) -> None:
        super().__init__({}, *state)
        self._served = methods
        self.authentication = authentication

    @property
    def caller(self) -> IdentifiedCaller:
        """The far end of the connection."""
        caller = self.client.caller
        assert isinstance(caller, IdentifiedCaller)  # noqa: S101  # it has a peer
        return caller

    @staticmethod
    def _peer(transport: asyncio.BaseTransport) -> Peer | None:
        return peer_of(transport)

    @property
    def _serves_methods(self) -> bool:
        return bool(self._served)

    def _serve_other(self, stream: Http2Stream, head: RequestHead, body: memoryview | None) -> None:
        """Ask for the client of a call, and then begin it; pass on a plain request."""
        if not isinstance(head, GrpcRequestHead):
            super()._serve_other(stream, head, body)
            return
        try:
            found = self.authentication.client(self.caller, head.metadata, head.path)
        except GatewayError as error:
            self.deny(stream, head, error)
            return
        if isinstance(found, Client):
            self.begin(stream, head, body, found)
        else:
            stream.owner = WaitingCall(self, stream, head, body, found)

    def visible(self, head: GrpcRequestHead) -> GrpcRequestHead:
        """Return *head* without credentials."""
        metadata = self.authentication.visible(self.caller, head.metadata)
        return head if metadata is head.metadata else replace(head, metadata=metadata)

    def begin(
        self, stream: Http2Stream, head: GrpcRequestHead, body: memoryview | None, client: Client
    ) -> None:
        """Begin a call of *client*; *body* is None if it has not arrived."""
        method = self._served.get(head.path)
        fields, head = head.metadata, self.visible(head)
        if method is None or head.oversized or head.http_status != 200:  # noqa: PLR2004  # OK
            self.caller.fields, self.caller.last = head.metadata, client
            super()._serve_other(stream, head, body)
            return
        if body is not None and head.length is not None and head.length != len(body):
            self.core.refuse(stream, frames.PROTOCOL_ERROR)
            return
        call = stream.owner = AuthenticatedCall(self, stream, head, method, client, fields)
        if body is not None:
            call.on_complete_stream(body)
        else:
            call.begin()

    def deny(self, stream: Http2Stream, head: GrpcRequestHead, error: GatewayError) -> None:
        """End a call with *error*, in the form of its protocol if a method is called."""
        metadata = self.visible(head).metadata
        error.__traceback__ = None
        error.client = self.caller.unnamed(head.metadata)
        error.metadata = text_metadata(metadata)
        error.request_id = metadata_request_id(metadata)
        method = self._served.get(head.path)
        if method is None:
            status = error.wire_status = GRPC_STATUS[error.code]
            request_id = self._on_reject(error)
            trailers = ((REQUEST_ID, request_id),) if request_id else ()
            response = GrpcResponse(status=status, details=error.message, metadata=trailers)
        else:
            response = method.frontend.reject(error)
        self._end_unserved(
            stream, trailers_only_block(response.status, response.details, response.metadata)
        )


class AuthenticatedCall(ServerCall):
    """A call of a client that is known.

    Args:
        connection: Its connection.
        stream: Its stream.
        head: Its header fields.
        method: Its method.
        client: The client.
        fields: The metadata with credentials.
    """

    __slots__ = ("_access", "_client", "_fields")

    def __init__(
        self,
        connection: AuthenticatedGrpcConnection,
        stream: Http2Stream,
        head: GrpcRequestHead,
        method: Method,
        client: Client,
        fields: Metadata,
    ) -> None:
        super().__init__(connection, stream, head, method)
        self._fields = fields
        self._access = connection
        self._client = client

    def _wire_request(self, view: memoryview, message: GrpcMessage | None) -> GrpcRequest:
        self._name_client()
        return super()._wire_request(view, message)

    def _reject(self, error: GatewayError) -> GrpcResponse:
        self._name_client()
        return super()._reject(error)

    def _name_client(self) -> None:
        """Let the parent find the client of this call."""
        caller = self._access.caller
        caller.fields, caller.last = self._head.metadata, self._client

    async def _read(self) -> AsyncGenerator[GrpcRequest, None]:
        """Yield the messages of a stream, each after its client was asked for again."""
        access, head = self._access, self._head
        is_first = True
        async with aclosing(super()._read()) as requests:
            async for request in requests:
                if is_first:
                    is_first = False
                    yield request
                    continue
                found = access.authentication.client(access.caller, self._fields, head.path)
                self._client = found if isinstance(found, Client) else await found
                yield replace(request, client=self._client)


class WaitingCall:
    """A call whose client is not known yet; it keeps what arrives meanwhile.

    The window of its stream is not opened again before, which bounds the bytes.

    Args:
        connection: Its connection.
        stream: Its stream.
        head: Its header fields.
        body: The complete body; None if it has not arrived.
        found: Returns the client.
    """

    def __init__(
        self,
        connection: AuthenticatedGrpcConnection,
        stream: Http2Stream,
        head: GrpcRequestHead,
        body: memoryview | None,
        found: Awaitable[Client],
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._head = head
        self._body = body
        self._parts: list[tuple[memoryview, bool]] = []
        self.task: asyncio.Task[None] | None = connection.loop.create_task(self._wait(found))

    async def _wait(self, found: Awaitable[Client]) -> None:
        connection, stream, head = self._connection, self._stream, self._head
        try:
            client = await found
        except GatewayError as error:
            self._leave()
            connection.deny(stream, head, error)
            return
        self.task = stream.owner = None
        connection.begin(stream, head, self._body, client)
        for view, end in self._parts:
            if stream.owner is not None:
                stream.owner.on_data(view, end=end)

    def on_data(self, view: memoryview, *, end: bool) -> None:
        """Keep a part of the request."""
        self._parts.append((view, end))

    def on_data_batch(self, views: Sequence[memoryview]) -> None:
        """Keep several parts of the request."""
        for view in views:
            self._stream.frame_bytes_left -= len(view)
            self.on_data(view, end=False)

    def on_reset(self) -> bool:
        """End: the client has left."""
        self._leave()
        return False

    def on_writable(self) -> None:
        """Do nothing: nothing was written."""

    def overdue(self, _now: float) -> None:
        """Do nothing: the authenticator decides how long it takes."""

    def cancel(self) -> None:
        """End the call: the server is stopping."""
        self._leave()
        self._connection.core.reset(self._stream, frames.CANCEL)
        self._connection.flush_soon()

    def _leave(self) -> None:
        task, self.task = self.task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._stream.owner = None
        self._parts.clear()
        if self._stream.unread:
            self._connection.core.consume(self._stream, self._stream.unread)
            self._connection.flush_soon()
