"""Which metadata gRPC can carry."""

import re
from collections.abc import Iterable
from functools import lru_cache

from gateway.wire.grpc import Metadata

# Source: gRPC over HTTP/2, "Custom-Metadata"; "grpc-" is reserved, ":" and "te" are framing.
_KEY = re.compile(r"[0-9a-z_.\-]+\Z")
# Of the runtime, and written by servers: when to try again.
_OF_SERVERS = frozenset({"grpc-retry-pushback-ms", "grpc-status-details-bin"})
_RESERVED = frozenset({"te", "content-type", "user-agent", "host", "connection"})


def sendable(metadata: Iterable[tuple[str, str | bytes]]) -> Metadata:
    """Return the part of *metadata* that gRPC can carry, in order.

    The C core fails the whole call for one illegal key or value.  An unusual header is not a reason
    to lose a call, so reserved keys, illegal keys and text that is not printable ASCII are dropped.
    """
    return tuple((key, value) for key, value in metadata if _fits(key, value))


def _fits(key: str, value: str | bytes) -> bool:
    kind = kind_of(key)
    if kind is None:
        return False
    if isinstance(value, bytes):
        return kind is bytes
    return kind is str and value.isascii() and value.isprintable()


@lru_cache(1024)  # the same few keys, call for call
def kind_of(key: str) -> type[str | bytes] | None:
    """Return the type of the values of *key*; None for a key that is not sent."""
    is_reserved = key in _RESERVED or (key.startswith("grpc-") and key not in _OF_SERVERS)
    if is_reserved or _KEY.match(key) is None:
        return None
    return bytes if key.endswith("-bin") else str
