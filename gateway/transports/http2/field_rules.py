"""What HTTP/2 asks of header fields, whatever they mean; pure.

Looked at once a block, all names and all values together: one pass of the interpreter's own code
over each costs less than a rule a field.

Source: RFC 9113 8.2 and 8.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.transports.http2.hpack import Field

# Of one connection, not of a message: HTTP/2 has other means for them.
_OF_A_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_LEGAL: Final = bytes(byte for byte in range(0x21, 0x7F) if byte != ord(":")).translate(
    None, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


def broken_fields(fields: Sequence[Field], pseudo: frozenset[bytes]) -> str | None:
    """Return what is wrong with *fields*; None where nothing is.

    Args:
        fields: Of one block.
        pseudo: Names of the pseudo-header fields it may have.
    """
    if not fields:
        return None
    names, values = zip(*fields, strict=True)
    # What is left of legal names are the colons that pseudo-header fields begin with.
    colons = b"".join(names).translate(None, _LEGAL)
    if colons.strip(b":") or b"" in names:
        return "a header field has a name that HTTP/2 does not allow"
    own = frozenset(names[: len(colons)])
    if len(own) != len(colons) or not own <= pseudo:
        return "pseudo-header fields are unknown, given twice or behind others"
    text = b"".join(values)
    if b"\n" in text or b"\r" in text or b"\0" in text:
        return "a header field has a value with NUL, CR or LF"
    if not _OF_A_CONNECTION.isdisjoint(names):
        return "a header field is of a connection, which HTTP/2 does not allow"
    return None


def content_length(fields: Sequence[Field]) -> int | None:
    """Return what Content-Length says, once or more often.

    Raises:
        ValueError: It is no number, or there are several.
    """
    found = {value for name, value in fields if name == b"content-length"}
    if not found:
        return None
    (value,) = found
    if not value.isdigit():
        raise ValueError(value)
    return int(value[:20])
