"""gRPC messages as values, which gRPC transports and codecs exchange."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct

from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.ir.context import NO_CLIENT, Client
from gateway.wire.http import Buffer, size_of, view_of

Metadata = tuple[tuple[str, str | bytes], ...]


class GrpcStatus(enum.IntEnum):
    """Status codes. Source: gRPC documentation, "Status codes and their use in gRPC"."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcRequest(Struct, frozen=True):
    """One request message.

    Attributes:
        method: Full path, "/package.Service/Method".
        message: Serialized, without the 5-byte prefix; one view on a server.
        metadata: Keys in lower case; keys ending in "-bin" have bytes.
        deadline: On the clock of `time.monotonic`; None for none.
        rest: The part of the message that has not arrived; None where the message is complete.
        elements: Maximum number of elements, because the message was compressed; None for no limit
            beyond the usual ones. See `gateway.ir.work.inflated`.
        client: The sender, on a server.
    """

    method: str
    message: Sequence[Buffer] = ()
    metadata: Metadata = ()
    deadline: float | None = None
    rest: StreamingBody | None = None
    elements: int | None = None
    client: Client = NO_CLIENT

    @property
    def size_bytes(self) -> int:
        """Bytes of the message, the part that has not arrived included."""
        parts = self.message
        if self.rest is not None:
            return self.rest.end
        return len(parts[0]) if len(parts) == 1 else size_of(parts)

    @property
    def view(self) -> memoryview:
        """The message as one view; copies only when it has several buffers."""
        parts = self.message
        if len(parts) == 1 and type(parts[0]) is memoryview:
            return parts[0]
        return view_of(parts)


class GrpcResponse(Struct, frozen=True):
    """One response message, or the status that ends a call without one.

    Attributes:
        message: Serialized, without the 5-byte prefix; codecs do not join its buffers.
        status: OK when there is a message.
        details: Text of a status that is not OK.
        metadata: Trailing metadata.
    """

    message: Sequence[Buffer] = ()
    status: GrpcStatus = GrpcStatus.OK
    details: str = ""
    metadata: Metadata = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of the message."""
        parts = self.message
        return len(parts[0]) if len(parts) == 1 else size_of(parts)

    @property
    def view(self) -> memoryview:
        """The message as one view; copies only when it has several buffers."""
        parts = self.message
        if len(parts) == 1 and type(parts[0]) is memoryview:
            return parts[0]
        return view_of(parts)


class MethodKind(enum.Enum):
    """Whether requests and responses of a gRPC method are streams."""

    UNARY = "unary"
    SERVER_STREAM = "server_stream"
    BIDIRECTIONAL = "bidirectional"
