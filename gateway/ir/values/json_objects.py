"""What a text of JSON becomes as Python objects, counted before there are any.

They take up to forty times the text.
"""

import re
from typing import Final, NamedTuple

import numpy as np

from gateway.ir.work import LIST, charge, is_unreserved, reserve

STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""A string in a text of JSON. Without `+`, a match takes 130 bytes for each of its characters."""
# The parser takes at most so many times the text.
_MOST_PARSER_TIMES: Final = 16
_SMALL_OBJECT: Final = 64
_NUMBER: Final = 8
_FEW_KEYS: Final = 16
_LONG: Final = 8
_LONG_NUMBER: Final = 20
_MANY_DIGITS: Final = 1 << 18
_COMMA, _QUOTE = b',"'
# The event loop takes lists and objects of shorter texts.
_SHORT: Final = 1 << 15
_PIECE_BYTES: Final = 1 << 18
# So many lists, objects and members are built in 0.05 s.
_MANY: Final = 100_000


def reserve_objects(text: bytes | memoryview | bytearray, *, is_parsed: bool = False) -> bool:
    """Reserve the memory of the Python objects that a text becomes, before there are any.

    Args:
        text: The text.
        is_parsed: A parser keeps it as proxies meanwhile, as it does where this returns True.

    Returns:
        Whether they are so many that they should be built in steps.

    Raises:
        LongWork: As `gateway.ir.work.reserve`.
    """
    size = len(text)
    if size <= _SHORT:
        return False
    marks = count_marks(text)
    is_long = marks.quotes * _LONG < size  # marks in long strings are no values
    if is_long and not is_unreserved(size, marks.objects_bytes):
        short = count_marks(STRING.sub(b'""', bytes(text)))
        marks = short._replace(size=size, widest=marks.widest)
    charge((marks.lists + marks.objects) * LIST)
    in_steps = marks.lists + marks.objects + marks.colons > _MANY
    parser = marks.proxies_bytes if is_parsed or in_steps else 0
    reserve(size, marks.objects_bytes + parser)
    return in_steps


def reserve_parser(text: memoryview) -> None:
    """Reserve the memory of a parser that keeps lists and objects as proxies, with its numbers.

    Raises:
        LongWork: As `gateway.ir.work.reserve`.
    """
    size = text.nbytes
    if is_unreserved(size, _MOST_PARSER_TIMES * size):
        return
    marks = count_marks(text)
    # Members of small objects are looked up one by one, and become Python objects.
    objects = marks.objects_bytes if marks.objects * _SMALL_OBJECT > size else 0
    reserve(size, marks.proxies_bytes + _NUMBER * marks.plain + objects)


def has_long_numbers(text: memoryview) -> bool:
    """Return whether a text consists of numbers of many digits, which simdjson reads slowly.

    Each takes it 2 us, and it keeps the interpreter's lock: 0.2 s for 14 MB of 140 digits each.
    """
    if text.nbytes < _MANY_DIGITS:
        return False
    octets = np.frombuffer(text, np.uint8)
    values = int(np.count_nonzero(octets == _COMMA)) + 1
    if text.nbytes < _LONG_NUMBER * values:
        return False
    return int(np.count_nonzero(octets == _QUOTE)) * _LONG < values


class Marks(NamedTuple):
    """What a text of JSON consists of; marks in strings count, too.

    Attributes:
        size: Bytes of the text.
        widest: Bytes that a character of a string may take.
    """

    size: int
    lists: int
    objects: int
    commas: int
    colons: int
    quotes: int
    widest: int

    @property
    def values(self) -> int:
        """The number of values, at most."""
        return self.commas + self.lists + self.objects + 1

    @property
    def plain(self) -> int:
        """The number of values that are no text, list or object, at most."""
        return max(self.commas + 1 + self.colons - self.quotes // 2, 0)

    @property
    def objects_bytes(self) -> int:
        """The memory of the Python objects, with what the parser needs beside them."""
        texts = self.quotes // 2
        marks = self.commas + self.colons + self.lists + self.objects
        # Small integers, words and the keys of equal objects are not made anew.
        numbers = max(self.size - 2 * texts - marks, 0) // 3
        return (
            # A node of the parser, which grows by half, and a place in a list.
            44 * (self.values + self.colons)
            + 8 * self.commas
            + 76 * self.lists
            + 64 * self.objects
            + 128 * min(self.objects, self.colons)
            + 16 * self.colons
            + 32 * min(self.plain, numbers)
            + 56 * max(texts - self.colons, min(texts, self.colons // (self.objects + 1)))
            # The keys of one object are different ones.
            + 128 * max(self.colons - _FEW_KEYS * self.objects, 0)
            # Texts, and what they are in UTF-8 again.
            + ((self.widest + 2 * (self.widest > 1)) * self.size if texts else 0)
        )

    @property
    def proxies_bytes(self) -> int:
        """The memory of the parser that keeps lists and objects as proxies."""
        texts = self.quotes // 2
        brackets = 2 * (self.lists + self.objects)
        indices = brackets + self.commas + self.colons + texts + self.plain
        copies = 6 if texts else 1  # with strings, and where a list becomes Python objects
        return (
            copies * self.size + 4 * indices + 8 * (brackets + texts + 2 * self.plain) + 5 * texts
        )


def count_marks(text: bytes | memoryview | bytearray) -> Marks:
    """Count what a text of JSON consists of."""
    octets = np.frombuffer(text, np.uint8)
    counts = [0] * len(_MARKS)
    most = 0
    for start in range(0, octets.size, _PIECE_BYTES):
        piece = octets[start : start + _PIECE_BYTES]
        for at, mark in enumerate(_MARKS):
            counts[at] += int(np.count_nonzero(piece == mark))
        most = max(most, int(piece.max()))
    lists, objects, commas, colons, quotes, escapes, list_ends, object_ends = counts
    # A parser builds none of those that do not end.
    lists, objects = min(lists, list_ends), min(objects, object_ends)
    widest = 4 if most >= _WIDE or escapes else 2 if most >= _TWO_BYTES else 1
    return Marks(octets.size, lists, objects, commas, colons, quotes, widest)


_MARKS: Final = tuple(b'[{,:"\\]}')
# The first bytes of the characters that make each character of a text take four bytes, or two.
_WIDE: Final = 0xF0
_TWO_BYTES: Final = 0xC4
