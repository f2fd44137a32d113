"""Statuses and metadata between grpcio's types and those of `wire.grpc`, and the log of grpcio."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import grpc
from grpc import aio

from gateway.wire.grpc import GrpcStatus, Metadata

CODE_OF: dict[GrpcStatus, Any] = {GrpcStatus(code.value[0]): code for code in grpc.StatusCode}
STATUS_OF: dict[grpc.StatusCode, GrpcStatus] = {code: status for status, code in CODE_OF.items()}

# The last one: the client had left before the response.
_HARMLESS = (asyncio.CancelledError, UnicodeDecodeError, aio.InternalError)


def plain_metadata(found: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    """Return metadata of grpcio as tuples of the type itself, as compiled readers expect them."""
    return tuple([tuple(pair) for pair in found or ()])  # type: ignore[misc]  # pairs


def keep_log_quiet() -> None:
    """Drop the tracebacks that grpc.aio logs for early resets and for bytes that are not text.

    grpc.aio logs an error with a traceback for each call that its client resets, and for metadata
    outside of ASCII.  Other records are kept.
    """
    logger = logging.getLogger("grpc")
    if logger.propagate:
        logger.propagate = False
        logger.addHandler(_Relay())


class _Relay(logging.Handler):
    """Passes the records of grpcio to the handlers of the process, but for harmless ones."""

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a record."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error or record.msg, _HARMLESS):
            logging.getLogger().handle(record)
