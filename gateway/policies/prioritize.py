"""Prioritize: the priority of a call in all queues on its way."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from gateway.ir.calls import Call
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.call_path import record_priority

R = TypeVar("R")

PRIORITIES: Final[Mapping[str, int]] = MappingProxyType({"high": 1, "normal": 0, "low": -1})
"""Priorities by their names in YAML."""


class Prioritize:
    """Gives each call its priority. Queues serve calls of a higher one first.

    Args:
        inner: The service to call.
        default: A name in `PRIORITIES`.
        key: Returns the name for a call; None, or another text, stands for the default.
    """

    def __init__(
        self, inner: Service, default: str, key: Callable[[Call[Any]], str | None] | None = None
    ) -> None:
        self._inner = inner
        self._default = PRIORITIES[default]
        self._key = key

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Record the priority, and call *inner*."""
        name = None if self._key is None else self._key(call)
        record_priority(PRIORITIES.get((name or "").strip().lower(), self._default))
        return self._inner(call)
