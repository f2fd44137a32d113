"""Header fields: which cross a hop, and values that are safe to write."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Fields that belong to one connection. Source: RFC 9110 7.6.1 and its predecessors."""

FRAMING = HOP_BY_HOP | {"content-length", "expect"}
"""Fields that only a transport writes."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_UNSAFE = re.compile(r"[^\t\x20-\x7e]")


def decode_field(raw: bytes) -> str:
    """Return a field value as text: UTF-8 where it is that, else ISO 8859-1."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def safe_value(value: str) -> str:
    """Return *value* with everything that is not printable ASCII percent-escaped as UTF-8."""
    if value.isascii() and value.isprintable():  # most names; this check costs a tenth of the next
        return value
    return _UNSAFE.sub(lambda match: quote(match[0].encode("utf-8", "replace"), safe=""), value)


def writable(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a message that may be written to a wire: no framing, no odd names."""
    for name, value in pairs:
        if is_writable(name):
            yield name, safe_value(value)


@lru_cache(1024)  # the same few names, message for message
def is_writable(name: str) -> bool:
    """Return whether a field of that name may be written: no framing, no odd name."""
    # Servers that map fields to variables confuse "_" and "-".
    plain = name.lower().replace("_", "-")
    return plain not in FRAMING and _TOKEN.fullmatch(name) is not None


def end_to_end(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the fields that cross a hop: those that Connection names do not, either."""
    pairs = list(pairs)
    named = {
        token.strip().lower()
        for name, value in pairs
        if name.lower() == "connection"
        for token in value.split(",")
    }
    dropped = FRAMING | named if named else FRAMING
    return [pair for pair in pairs if pair[0].lower() not in dropped]
