"""ForwardHeaders: selects the caller's headers to forward to a target, and adds others.

Only tracing headers are forwarded by default; credentials are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from gateway.ir.calls import Call
from gateway.ir.context import HOP_BY_HOP_HEADERS, REQUEST_ID, TRACING, TRITON_PREFIX, Metadata
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

# Never forwarded, regardless of the configuration: each hop has its own. Codecs write the request
# id from the context.
_NEVER = HOP_BY_HOP_HEADERS | {REQUEST_ID}


class ForwardHeaders:
    """Replaces the metadata of a call by the headers for the target.

    Args:
        inner: The service to call.
        allowed: Case-insensitive names of headers to forward; "x-*" allows a prefix.
        added: Headers of every call; they replace the caller's.
    """

    def __init__(self, inner: Service, allowed: Iterable[str], added: Mapping[str, str]) -> None:
        self._inner = inner
        names = [name.lower() for name in allowed]
        self._exact = frozenset([*TRACING, *(name for name in names if not name.endswith("*"))])
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
        self._added = tuple((name.lower(), value) for name, value in added.items())
        self._own = frozenset(name for name, _ in self._added) | _NEVER
        # Callers repeat their headers, and transports then pass the identical tuple.
        self._last: tuple[Metadata, Metadata] = ((), self._added)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* with the metadata for the target."""
        metadata = call.context.metadata
        last, forwarded = self._last
        if metadata is not last:
            forwarded = self._forwarded(metadata)
            self._last = metadata, forwarded
        return self._inner(call.with_metadata(forwarded))

    def _forwarded(self, metadata: Metadata) -> Metadata:
        own, exact, prefixes = self._own, self._exact, self._prefixes
        forwarded = [
            pair
            for pair in metadata
            if pair[0] not in own
            and not pair[0].startswith(TRITON_PREFIX)
            and (pair[0] in exact or (prefixes and pair[0].startswith(prefixes)))
        ]
        return (*forwarded, *self._added)
