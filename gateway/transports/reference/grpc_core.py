"""The library's own log, kept free of what strangers can cause."""

from __future__ import annotations

import asyncio
import logging

_LOGGER = "grpc._cython.cygrpc"
_HARMLESS = (asyncio.CancelledError, UnicodeDecodeError)


def keep_log_quiet() -> None:
    """Drop the tracebacks grpc.aio logs for calls reset early and for bytes that are not text.

    A client that resets its calls at once has each logged as an error with a traceback, and so has
    one that sends metadata outside of ASCII.  Anything else is still logged.
    """
    logging.getLogger(_LOGGER).addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, _HARMLESS)
