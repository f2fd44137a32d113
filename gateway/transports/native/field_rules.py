"""What HTTP/2 asks of header fields, whatever they mean; pure.

Looked at once a block, all names and all values together: one pass of the interpreter's own code
over each costs less than a rule a field.

Source: RFC 9113 8.2 and 8.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.transports.native.header_blocks import Field

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
    names = [name for name, _ in fields]
    own = [name for name in names if name[:1] == b":"]
    if b"".join(names).translate(None, _LEGAL) != b":" * len(own) or b"" in names:
        return "a header field has a name that HTTP/2 does not allow"
    values = b"".join([value for _, value in fields])
    if b"\n" in values or b"\r" in values or b"\0" in values:
        return "a header field has a value with NUL, CR or LF"
    if own != names[: len(own)] or len(set(own)) != len(own) or not pseudo.issuperset(own):
        return "pseudo-header fields are unknown, given twice or behind others"
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
