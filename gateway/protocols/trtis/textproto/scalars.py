"""Scalars of protobuf's text format: numbers, enums and the contents of strings.

Numbers follow Python's protobuf library, which accepts all spellings of C++ and some more.
"""

import re
from collections.abc import Callable, Mapping

from google.protobuf.descriptor import FieldDescriptor

_OCTAL = re.compile(r"(-?)0(\d+)")
_OCTAL_FLOAT = re.compile(r"-?0[0-9]+")
_INFINITY = re.compile(r"-?inf(?:inity)?f?", re.IGNORECASE)
_NAN = re.compile(r"nanf?", re.IGNORECASE)
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv?\\'\"])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})"
    r"|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))"
)
_SIMPLE = dict(zip("abfnrtv?\\'\"", "\a\b\f\n\r\t\v?\\'\"", strict=True))
_LAST_BYTE = 0xFF
_LAST_CHARACTER = 0x10FFFF
_SHOWN = 40

RANGES = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
}
_INT32 = RANGES[FieldDescriptor.TYPE_INT32]


class TextError(ValueError):
    """The text is not in text format."""


def is_number(token: str) -> bool:
    """Return whether *token* may be the value of an unknown field."""
    try:
        float_value(token)
    except ValueError:
        try:
            value = _integer(token)
        except ValueError:
            return False
        return RANGES[FieldDescriptor.TYPE_INT64][0] <= value < 1 << 64
    return True


_MOST_DIGITS = 20


def _integer(token: str) -> int:
    octal = _OCTAL.fullmatch(token)
    try:
        return int(f"{octal[1]}0o{octal[2]}" if octal else token, 0)
    except ValueError:
        raise TextError(f"{token[:_SHOWN]!r} is not an integer") from None


def ranged(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of integers from *least* to *most*."""

    def read(token: str) -> int:
        # The usual numbers first.
        is_usual = len(token) <= _MOST_DIGITS and token.isdecimal() and token[0] != "0"
        value = int(token) if is_usual else _integer(token)
        if not least <= value <= most:
            raise TextError(f"{token[:_SHOWN]} is not from {least} to {most}")
        return value

    return read


def float_value(token: str) -> float:
    """Read a floating point number, in any spelling.

    Raises:
        TextError: It is not a number.
    """
    if _OCTAL_FLOAT.match(token):
        raise TextError(f"{token[:_SHOWN]!r} is not a number: it begins with a zero")
    try:
        return float(token)
    except ValueError:
        pass
    if _INFINITY.fullmatch(token):
        return float("-inf" if token[0] == "-" else "inf")
    if _NAN.fullmatch(token):
        return float("nan")
    try:
        return float(token.rstrip("fF"))
    except ValueError:
        raise TextError(f"{token[:_SHOWN]!r} is not a number") from None


def enum_value(name: str, numbers: Mapping[str, int]) -> Callable[[str], int]:
    """Return a reader of values of the enum *name*: by name, or any 32-bit number."""

    def read(token: str) -> int:
        try:
            number = int(token, 0)
        except ValueError:
            if token not in numbers:
                raise TextError(f"{token[:_SHOWN]!r} is not a value of {name}") from None
            return numbers[token]
        if not _INT32[0] <= number <= _INT32[1]:
            raise TextError(f"{token[:_SHOWN]} is not a 32-bit number of {name}")
        return number

    return read


def unescaped(text: str) -> bytes:
    """Return the bytes of a string's contents; characters as UTF-8."""
    if "\\" not in text:
        return text.encode()
    pieces = []
    at = 0
    for found in _ESCAPE.finditer(text):
        pieces.append(text[at : found.start()].encode())
        pieces.append(_escaped(found))
        at = found.end()
    pieces.append(text[at:].encode())
    return b"".join(pieces)


def _escaped(found: re.Match[str]) -> bytes:
    simple, octal, hexadecimal, short, long, _other = found.groups()
    if simple is not None:
        return _SIMPLE[simple].encode()
    if octal is not None or hexadecimal is not None:
        value = int(octal, 8) if octal is not None else int(hexadecimal, 16)
        if value > _LAST_BYTE:
            raise TextError(f"escape {found.group()!r} is not a byte")
        return bytes((value,))
    if short is None and long is None:
        raise TextError(f"escape {found.group()!r} is unknown")
    value = int(short or long, 16)
    if value > _LAST_CHARACTER:
        raise TextError(f"escape {found.group()!r} is not a character")
    return chr(value).encode()  # refuses surrogates: UnicodeEncodeError is a ValueError
