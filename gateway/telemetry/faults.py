"""What a part raises besides a `GatewayError`: it costs its own call, and the log names it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

import structlog

from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, InternalError

log = structlog.get_logger(__name__)

EXITS: Final = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end a process or a generator, and that code of a package may raise, too."""

FAULTS: Final = (Exception, *EXITS)
"""What a function of a package may raise. A generator gets `GeneratorExit` when it is closed."""


def internal_error(
    error: BaseException, model: ModelRef | None = None, part: str = ""
) -> InternalError:
    """Log a bug with its traceback, and return an error without its details.

    Args:
        error: What was raised. The codec of a package notes its name in it.
        model: The model of the call; None for none.
        part: The part of the gateway or of a package that raised it; "" if it is not known.
    """
    part = part or next(iter(getattr(error, "__notes__", ())), "")
    keys = {"part": part} if part else {}
    log.error("internal error", exc_info=error, model=None if model is None else str(model), **keys)
    return InternalError("internal error of the gateway", model=model)


class Faults:
    """Guards a block in which a part runs: what the part raises becomes an InternalError.

    A `GatewayError` passes, and so does the cancellation of the task.

    Args:
        part: The part, for the log; "" if it is not known.
        model: The model of the call; None for none.
    """

    __slots__ = ("_model", "_part", "_task")

    def __init__(self, part: str, model: ModelRef | None = None) -> None:
        self._part = part
        self._model = model

    def __enter__(self) -> Self:
        self._task = _current_task()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise the InternalError."""
        if error is None or isinstance(error, GatewayError) or self._has_ended(error):
            return
        raise internal_error(error, self._model, self._part) from error

    def _has_ended(self, error: BaseException) -> bool:
        """Return whether the task was cancelled, or its coroutine closed, from outside."""
        if isinstance(error, asyncio.CancelledError):
            return is_cancelled()
        return isinstance(error, GeneratorExit) and self._task is not _current_task()


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled: code may raise CancelledError itself."""
    task = _current_task()
    return task is not None and task.cancelling() > 0


def _current_task() -> asyncio.Task[object] | None:
    """Return the current task; None on a thread without an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
