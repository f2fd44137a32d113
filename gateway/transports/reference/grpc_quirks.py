"""grpc.aio's rough edges, made smooth in one place: its log, and writing to a client that left."""

import asyncio
import logging
from typing import Any, TypeAlias

from grpc import aio

Context: TypeAlias = Any
"""An aio.ServicerContext; grpcio is not typed."""

_LOGGER = "grpc._cython.cygrpc"
# The last one: the client had left before the response.
_HARMLESS = (asyncio.CancelledError, UnicodeDecodeError, aio.InternalError)


def keep_log_quiet() -> None:
    """Drop the tracebacks that grpc.aio logs for early resets and for bytes that are not text.

    grpc.aio logs an error with a traceback for each call that its client resets, and for metadata
    outside of ASCII.  Other records are kept.
    """
    logging.getLogger(_LOGGER).addFilter(_is_ours)


async def write(context: Context, message: bytes) -> None:
    """Write one message of a stream.

    Raises:
        CancelledError: The client has left.  grpc.aio has another error for that, and logs it with
            a traceback if it is raised.
    """
    try:
        await context.write(message)
    except (aio.InternalError, asyncio.InvalidStateError):
        raise asyncio.CancelledError("the client left") from None


def _is_ours(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, _HARMLESS)
