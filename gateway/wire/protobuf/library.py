"""Messages that the protobuf library reads and writes: all that have no fast codec of their own."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.ir.errors import MalformedMessage
from gateway.wire.grpc import GrpcResponse

M = TypeVar("M", bound=Message)


def parse(view: memoryview, kind: type[M]) -> M:
    """Read a message with the protobuf library; copies.

    Raises:
        MalformedMessage: The bytes are not such a message.
    """
    message = kind()
    try:
        message.ParseFromString(bytes(view))
    except DecodeError as error:
        raise MalformedMessage(
            f"{len(view)} bytes are not a message of type {kind.DESCRIPTOR.full_name}"
        ) from error
    return message


def reply_of(message: Message) -> GrpcResponse:
    """Return a response with one message."""
    return GrpcResponse((message.SerializeToString(),))
