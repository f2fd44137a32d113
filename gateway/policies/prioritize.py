"""Prioritize: the priority of a call in all queues on its way."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.ir.call_keys import key_of
from gateway.ir.calls import Call
from gateway.service import ReplyCoroutine, Service
from gateway.settings.fields import HEADER_KEY, QUEUE_PRIORITY, Text
from gateway.settings.setting import Setting
from gateway.telemetry.call_path import record_priority

R = TypeVar("R")

PRIORITY: Final = Setting[str](
    key="queue_priority",
    type=Annotated[Text, Field(pattern=QUEUE_PRIORITY)],
    default="normal",
    help=(
        "Priority in the queues of upstreams and of `adaptive_concurrency`: `high`, "
        "`normal` or `low`. Higher ones are served first, and take the place of others in a "
        "full queue. With `header:NAME` each inference has that of its header, else "
        "`normal`, also in the queue of this route. Default: `normal`."
    ),
    places=("route",),
)
# A retired key, see `gateway.config.retired`.
_PRIORITY_BY: Final = Setting[str | None](
    key="queue_priority_by",
    type=Annotated[Text, Field(pattern=HEADER_KEY)] | None,
    default=None,
    help="",
    places=("route",),
)

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


def _build(inner: Entries, at: LayerContext) -> Service | None:
    default, by = at.setting(PRIORITY), at.setting(_PRIORITY_BY)
    if default.startswith("header:"):
        default, by = "normal", default
    if by is None and default == "normal":
        return None
    return Prioritize(inner.questions, default, None if by is None else key_of(by))


LAYER: Final = Layer(
    "Prioritize",
    "gives calls their priority in queues, if `queue_priority` is set",
    "route",
    _build,
    settings=(PRIORITY, _PRIORITY_BY),
)
