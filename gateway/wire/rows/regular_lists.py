"""Whether the lists of numbers in a JSON text are regular, which a look at its brackets shows."""

import re
from typing import Final

from gateway.accelerator import accelerated
from gateway.ir.values.json_objects import STRING

# What is in no list of numbers: a string, and the braces of an object.
_OTHERS: Final = re.compile(STRING.pattern + b"|[{}]", re.DOTALL)
_BRACKET: Final = re.compile(rb"[][]")
_DIGIT: Final = re.compile(rb"[0-9]")
_DEEPEST: Final = 32


@accelerated
def has_regular_lists(text: bytes | memoryview) -> bool:
    """Return whether all lists of numbers, of any depth, are nested as the first list of each.

    Lists with other elements are ignored, as are the lists around these.

    Args:
        text: A valid text of JSON.
    """
    pieces = _OTHERS.split(bytes(text))
    return not any(b'"' in piece or not _is_regular(piece) for piece in pieces)


def _is_regular(piece: bytes) -> bool:
    """Return whether a text of lists and numbers has regular lists."""
    lengths: dict[int, int] = {}
    # The number of lists in each list that is open.
    found: list[int] = []
    leaf, last, before = 0, b"", 0
    for bracket in _BRACKET.finditer(piece):
        mark, at = bracket[0], bracket.start()
        depth, commas = len(found), piece.count(b",", before, at)
        if mark == b"[":
            if depth == _DEEPEST or (depth and commas != (last == b"]")):
                return False
            if depth:
                found[-1] += 1
            else:
                lengths, leaf = {}, 0
            found.append(0)
        elif depth:
            length = found.pop()
            is_leaf = last == b"["
            if is_leaf:
                is_empty = not commas and not _DIGIT.search(piece, before, at)
                is_wrong = is_empty or leaf not in (0, depth)
                leaf, length = depth, commas + 1
            else:
                is_wrong = commas > 0
            if is_wrong or lengths.setdefault(depth, length) != length:
                return False
        last, before = mark, bracket.end()
    return True
