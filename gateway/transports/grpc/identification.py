"""CallIdentification: asks who sends each call of a gRPC server, after its header fields.

A server that asks gives its connections one, and each call then comes here before it begins.  So
nothing here runs on a server that does not ask.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial

from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.ir.context import Client
from gateway.ir.errors import GatewayError
from gateway.transports.authentication import Authentication
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.grpc.headers import GrpcRequestHead, trailers_only_block
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_call import ServerCall
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.http2 import frames
from gateway.transports.http2.streams import Http2Stream
from gateway.wire.errors import GRPC_STATUS
from gateway.wire.heads.metadata import text_metadata
from gateway.wire.heads.request_id import metadata_request_id


class CallIdentification:
    """Begins the calls whose clients may call; an `Identify` of `server_connection`.

    Args:
        methods: The methods by path.
        authentication: Names the clients.
    """

    def __init__(self, methods: Mapping[str, Method], authentication: Authentication) -> None:
        self._methods = methods
        self._authentication = authentication

    def __call__(
        self,
        connection: GrpcServerConnection,
        stream: Http2Stream,
        head: GrpcRequestHead,
        body: memoryview | None,
    ) -> None:
        """Ask for the client of a call, and then begin or refuse it.

        Args:
            connection: Its connection, which has a peer.
            stream: Its stream.
            head: Its header fields.
            body: The complete body; None if it has not arrived.
        """
        try:
            found = self._authentication.client(_caller(connection), head.metadata, head.path)
        except GatewayError as error:
            self.deny(connection, stream, head, error)
            return
        if isinstance(found, Client):
            self.begin(connection, stream, head, body, found)
        else:
            stream.owner = WaitingCall(self, connection, stream, head, body, found)

    def begin(
        self,
        connection: GrpcServerConnection,
        stream: Http2Stream,
        head: GrpcRequestHead,
        body: memoryview | None,
        client: Client,
    ) -> None:
        """Begin a call of *client*."""
        method, caller, fields = self._methods.get(head.path), _caller(connection), head.metadata
        head = self._without_credentials(caller, head)
        if method is None or head.oversized or head.http_status != 200:  # noqa: PLR2004  # OK
            connection.turn_away(stream, head, client)
            return
        if body is not None and head.length is not None and head.length != len(body):
            connection.core.refuse(stream, frames.PROTOCOL_ERROR)
            return
        ask_client = partial(self._authentication.client, caller, fields, head.path)
        call = stream.owner = ServerCall(connection, stream, head, method, client, ask_client)
        if body is not None:
            call.on_complete_stream(body)
        else:
            call.begin()

    def deny(
        self,
        connection: GrpcServerConnection,
        stream: Http2Stream,
        head: GrpcRequestHead,
        error: GatewayError,
    ) -> None:
        """End a call with *error*, in the form of its protocol if a method is called."""
        caller = _caller(connection)
        metadata = self._without_credentials(caller, head).metadata
        error.__traceback__ = None
        error.metadata = text_metadata(metadata)
        error.request_id = metadata_request_id(metadata)
        method = self._methods.get(head.path)
        if method is None:
            connection.reject(stream, error, GRPC_STATUS[error.code])
            return
        response = method.frontend.reject(error)
        block = trailers_only_block(response.status, response.details, response.metadata)
        connection.end_unserved(stream, block)

    def _without_credentials(
        self, caller: IdentifiedCaller, head: GrpcRequestHead
    ) -> GrpcRequestHead:
        metadata = self._authentication.visible(caller, head.metadata)
        return head if metadata is head.metadata else replace(head, metadata=metadata)


def _caller(connection: GrpcServerConnection) -> IdentifiedCaller:
    caller = connection.client.caller
    assert isinstance(caller, IdentifiedCaller)  # noqa: S101  # it has a peer
    return caller


class WaitingCall:
    """A call whose client is not known yet; it keeps what arrives meanwhile.

    The window of its stream is not opened again before, which bounds the bytes.

    Args:
        identification: Begins the call, or refuses it.
        connection: Its connection.
        stream: Its stream.
        head: Its header fields.
        body: The complete body; None if it has not arrived.
        found: Returns the client.
    """

    def __init__(
        self,
        identification: CallIdentification,
        connection: GrpcServerConnection,
        stream: Http2Stream,
        head: GrpcRequestHead,
        body: memoryview | None,
        found: Awaitable[Client],
    ) -> None:
        self._identification = identification
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
            self._identification.deny(connection, stream, head, error)
            return
        self.task = stream.owner = None
        self._identification.begin(connection, stream, head, self._body, client)
        for view, end in self._parts:
            if stream.owner is not None:
                stream.owner.on_data(view, end=end)

    def on_data(self, view: memoryview, *, end: bool) -> None:
        """Keep a part of the request."""
        self._parts.append((view, end))

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
            self._connection.core.windows.consume(self._stream, self._stream.unread)
            self._connection.flush_soon()
