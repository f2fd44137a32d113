"""Messages that the protobuf library reads, for all that has no fast reader of its own."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.ir.errors import MalformedMessage

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
