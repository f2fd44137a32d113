"""Compressed messages of gRPC, undone within bounds and, when large, off the loop."""

from gateway.transports.grpc.messages import GrpcMessage
from gateway.transports.http.content_coding import Inflater, inflate


async def decompress_message(
    message: GrpcMessage, limit_bytes: int, ratio: int, floor_bytes: int
) -> memoryview:
    """Return a message as it was before it was compressed.

    Args:
        message: Compressed or not.
        limit_bytes: The largest size of the result.
        ratio: Result to message, at most, once the result exceeds *floor_bytes*.
        floor_bytes: Below it, any ratio will do.

    Raises:
        MalformedMessage: It is not of its coding.
        TooLarge: It inflates too far.
    """
    if message.coding is None:
        return message.view
    inflater = Inflater(message.coding, message.view, limit_bytes, ratio, floor_bytes)
    return await inflate(inflater, _uncounted)


async def _uncounted(_size: int) -> None:
    """Count nothing: the next reservation includes these bytes."""
