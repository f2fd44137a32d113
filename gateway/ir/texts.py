"""Texts as people may see them: what is not shown, or reverses a line, is escaped; times."""

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

_MAX_TEXT: Final = 512
_NOT_IN_FIELD: Final = re.compile(r"^ +|[^ -$&-~]+| +$")

# Controls but line breaks and tabs, and the characters of Unicode that only change how others are
# shown. A colour of a terminal is no control here: the commands write these themselves.
_HIDDEN: Final = re.compile(
    r"(?!\x1b\[[0-9;]*m)[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Return *text* with an escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def visible(text: str, most: int = _MAX_TEXT) -> str:
    """Return *text* with escapes for what no font shows, cut to *most* characters."""
    return printable(text if len(text) <= most else text[:most] + "...")


def field_text(text: str) -> str:
    """Return *text* as the value of a header: UTF-8, percent-encoded but for printable ASCII.

    `%` and spaces at the ends are encoded, too, so that different texts have different values.
    """
    return _NOT_IN_FIELD.sub(lambda found: quote(found[0], safe="", errors="replace"), text)


def joinable(text: str, separators: str) -> str:
    """Return *text* as a part of a joined text: its `%` and *separators* are percent-encoded."""
    return text.translate({ord(each): f"%{ord(each):02X}" for each in f"%{separators}"})


def utc_text(at_us: int) -> str:
    """Return a time in microseconds since 1970 as text; "?" where no calendar has it."""
    try:
        return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "?"


def without_hidden(text: str) -> str:
    """Return lines of text with escapes for controls and for what reverses or hides text."""
    return _HIDDEN.sub(lambda found: _escape(found[0]), text)


def json_without_hidden(text: str) -> str:
    """Return a JSON document with the same values, in which nothing is reversed or hidden."""
    return _HIDDEN.sub(lambda found: _json_escape(found[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
