"""Names and queries in URLs: strict decoding, and the same checks as for all names."""

import re
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes

import numpy as np

from gateway.ir.errors import MalformedMessage, Unsupported
from gateway.ir.limits import DOT_SEGMENTS, MessageLimits, check_name

_ESCAPED: Final = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*")
_SHOWN: Final = 200
_MOST_FIELDS: Final = 64
_PATH_CHARS: Final = "!$&'()*+,;=:@"
"""What a segment of a path may have, beside letters, digits and `-._~`.

Source: RFC 3986 3.3, pchar.
"""


def decoded_name(kind: str, text: str, limits: MessageLimits) -> str:
    """Return a model's name or version in a URL, percent-decoded.

    Args:
        kind: For errors: "model name".
        text: The name in the URL, percent-encoded.
        limits: `model_name_bytes` is its longest size.

    Raises:
        MalformedMessage: It is not percent-encoded UTF-8.
        InvalidRequest: It has control characters, or is a dot segment.
        TooLarge: It is too long.
    """
    if not text.isascii() or "%" in text:
        text = _unquoted(kind, text)
    check_name(kind, text, limits.model_name_bytes, "model_name_bytes")
    return text


def url_segment(name: str) -> str:
    """Return a name, of a model or of the configuration, as one segment of a URL's path.

    Only what a segment may not have is encoded: servers such as Triton decode nothing.

    Raises:
        Unsupported: A server would take it for a step in the path, however it is encoded.
    """
    if name in DOT_SEGMENTS:
        raise Unsupported(f"{name!r} cannot stand in the path of a URL")
    # Some servers remove ";" and what follows it, and then see a step or an empty segment.
    is_step = not name[: name.find(";")].strip(".") if ";" in name else False
    return quote(name, safe=_PATH_CHARS.replace(";", "") if is_step else _PATH_CHARS)


def _unquoted(kind: str, text: str) -> str:
    if not text.isascii() or not _ESCAPED.fullmatch(text):
        raise MalformedMessage(
            f"{kind} {text[:_SHOWN]!r} in the URL is not percent-encoded: "
            "expected ASCII and '%' with two hexadecimal digits"
        )
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(
            f"{kind} {text[:_SHOWN]!r} in the URL is not UTF-8: {error.reason}"
        ) from error


def read_query(query: str) -> dict[str, str]:
    """Return the fields of a query or form; the first value of a repeated field.

    Raises:
        MalformedMessage: It is not percent-encoded UTF-8, or has too many fields.
    """
    if not query:
        return {}
    try:
        fields = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError as error:
        raise MalformedMessage(f"query or form cannot be read: {error}") from error
    return dict(reversed(fields))


def form_text(text: bytes) -> bytes:
    """Return a name or a value of an encoded form; escapes that are none stay as they are.

    The memory is a few times the text, however many escapes it has.

    Source: WHATWG URL, "application/x-www-form-urlencoded".
    """
    text = text.replace(b"+", b" ")
    if b"%" not in text:
        return text
    octets, found, at = np.frombuffer(text + bytes(2), np.uint8), bytearray(), 0
    while at < len(text):
        end = min(at + _PIECE_BYTES, len(text))
        marks = np.flatnonzero(octets[at:end] == ord("%"))
        high, low = _HEX[octets[at + marks + 1]], _HEX[octets[at + marks + 2]]
        is_escape = (high < _NO_DIGIT) & (low < _NO_DIGIT)
        marks, values = marks[is_escape], (high * 16 + low)[is_escape]
        if marks.size:  # an escape may reach beyond the piece
            end = max(end, at + int(marks[-1]) + 3)
        piece, is_kept = octets[at:end].copy(), np.ones(end - at, np.bool_)
        piece[marks] = values
        is_kept[marks + 1] = is_kept[marks + 2] = False
        found += piece[is_kept].tobytes()
        at = end
    return bytes(found)


_PIECE_BYTES: Final = 1 << 16
_NO_DIGIT: Final = 16
_HEX: Final = np.full(256, _NO_DIGIT, np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _HEX[_digit] = int(chr(_digit), 16)
