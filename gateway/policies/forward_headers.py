"""Forward: decides which of the caller's headers cross to a target, and which are added.

Nothing crosses by itself: credentials end here, tracing goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from gateway.ir.calls import Call
from gateway.ir.context import HOP_BY_HOP_HEADERS, REQUEST_ID, TRACING, TRITON_PREFIX, Metadata
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

# These never cross as they came, whatever a configuration says: a hop has its own. The id of the
# call is in its context, and codecs write it from there.
_NEVER = HOP_BY_HOP_HEADERS | {REQUEST_ID}


class ForwardHeaders:
    """Gives the target the metadata it is meant to see, and nothing else.

    Args:
        inner: Answers the call.
        allowed: Names, in any case, of callers' headers that cross; "x-*" allows a prefix.
        added: Headers sent with every call; they win over a caller's.
    """

    def __init__(self, inner: Service, allowed: Iterable[str], added: Mapping[str, str]) -> None:
        self._inner = inner
        names = [name.lower() for name in allowed]
        self._exact = frozenset([*TRACING, *(name for name in names if not name.endswith("*"))])
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
        self._added = tuple((name.lower(), value) for name, value in added.items())
        self._own = frozenset(name for name, _ in self._added) | _NEVER
        # Callers send the same again and again, and transports then hand on the very same tuple.
        self._last: tuple[Metadata, Metadata] = ((), self._added)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Pass the call on with the metadata of the target."""
        metadata = call.context.metadata
        came, crosses = self._last
        if metadata is not came:
            crosses = self._crossing(metadata)
            self._last = metadata, crosses
        return self._inner(call.with_metadata(crosses))

    def _crossing(self, metadata: Metadata) -> Metadata:
        own, exact, prefixes = self._own, self._exact, self._prefixes
        crosses = [
            pair
            for pair in metadata
            if pair[0] not in own
            and not pair[0].startswith(TRITON_PREFIX)
            and (pair[0] in exact or (prefixes and pair[0].startswith(prefixes)))
        ]
        return (*crosses, *self._added)
