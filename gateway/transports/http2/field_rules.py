"""Rules of HTTP/2 for header fields, whatever they mean.

All names and all values of a block are checked together: one pass over each costs less than a check
for each field.

Source: RFC 9113 8.2 and 8.3.
"""

from collections.abc import Sequence
from typing import Final

from gateway.transports.http2.hpack import Field

# Fields of a connection, not of a message, which HTTP/2 does not have.
_OF_A_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_LEGAL: Final = bytes(byte for byte in range(0x21, 0x7F) if byte != ord(":")).translate(
    None, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


def broken_fields(fields: Sequence[Field], pseudo: frozenset[bytes]) -> str | None:
    """Return what is wrong with *fields*; None if they are valid.

    Args:
        fields: The fields of one block.
        pseudo: The pseudo-header fields that the block may have.
    """
    if not fields:
        return None
    names, values = zip(*fields, strict=True)
    # Of legal names, only the colons of the pseudo-header fields remain.
    colons = b"".join(names).translate(None, _LEGAL)
    if colons.strip(b":") or b"" in names:
        return "a header field has a name that HTTP/2 does not allow"
    own = frozenset(names[: len(colons)])
    if len(own) != len(colons) or not own <= pseudo:
        return "a pseudo-header field is unknown, repeated or after a regular field"
    text = b"".join(values)
    if b"\n" in text or b"\r" in text or b"\0" in text:
        return "a header field has a value with NUL, CR or LF"
    if not _OF_A_CONNECTION.isdisjoint(names):
        return "a header field is connection-specific, which HTTP/2 does not allow"
    return None


def content_length(fields: Sequence[Field]) -> int | None:
    """Return the Content-Length, which may be repeated; None without one.

    Raises:
        ValueError: It is not a number, or the values differ.
    """
    found = {value for name, value in fields if name == b"content-length"}
    if not found:
        return None
    (value,) = found
    if not value.isdigit():
        raise ValueError(value)
    return int(value[:20])
