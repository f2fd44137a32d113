"""The elements of a BYTES tensor in one buffer: finding, counting and packing them.

A million elements fit in two megabytes, so they are stored as positions and become views one at a
time. If all elements have the same length, numpy finds them with one comparison. Otherwise they are
found one after the other by their lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from gateway.ir.work import charge

LENGTH: Final = struct.Struct("<I")
"""The length before each element in wire form."""

# Up to this number of elements, a loop is faster than numpy.
_FEW_ITEMS: Final = 32
_BLOCK_ITEMS: Final = 2048
# Number of elements that are charged at a time, if their total is unknown.
_BLOCK: Final = 4096
# Work units for each element that numpy handles.
_EVEN: Final = 1 / 32

Positions = npt.NDArray[np.int64]


class ItemViews(Sequence[memoryview]):
    """Elements as views of their buffer.

    Args:
        view: The buffer.
        starts: The start of each element.
        ends: The end of each element, within the buffer.
    """

    __slots__ = ("_ends", "_starts", "_view")

    def __init__(self, view: memoryview, starts: Positions, ends: Positions) -> None:
        self._view = view
        self._starts = starts
        self._ends = ends

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> ItemViews: ...

    def __getitem__(self, index: int | slice) -> memoryview | ItemViews:
        if isinstance(index, slice):
            return ItemViews(self._view, self._starts[index], self._ends[index])
        return self._view[self._starts[index] : self._ends[index]]

    def __iter__(self) -> Iterator[memoryview]:
        view = self._view
        for at in range(0, len(self._starts), _BLOCK):  # a position is an object of 32 bytes
            starts, ends = self._starts[at : at + _BLOCK], self._ends[at : at + _BLOCK]
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                yield view[start:end]

    @property
    def parts(self) -> tuple[memoryview, Positions, Positions]:
        """The buffer, and where each element starts and ends in it."""
        return self._view, self._starts, self._ends

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together."""
        return int((self._ends - self._starts).sum())

    @property
    def longest(self) -> tuple[int, int]:
        """Index and bytes of the longest element, the first of several; 0 and 0 for none."""
        if not len(self._starts):
            return 0, 0
        lengths = self._ends - self._starts
        index = int(lengths.argmax())
        return index, int(lengths[index])

    def packed(self) -> memoryview | None:
        """Return the wire form if all elements have the same length and distance; else None."""
        starts, count = self._starts, len(self._starts)
        lengths = self._ends - starts
        size = int(lengths[0]) if count else 0
        step = int(starts[1] - starts[0]) if count > 1 else size
        if step < 0 or (lengths != size).any() or (np.diff(starts) != step).any():
            return None
        rows = np.empty((count, LENGTH.size + size), np.uint8)
        rows[:, : LENGTH.size] = np.frombuffer(LENGTH.pack(size), np.uint8)
        if size:
            octets = np.frombuffer(self._view, np.uint8)[int(starts[0]) :]
            found = np.lib.stride_tricks.as_strided(octets, (count, size), (step, 1))
            rows[:, LENGTH.size :] = found
        return rows.reshape(-1).data


def longest_of(items: Sequence[bytes | memoryview]) -> tuple[int, int]:
    """Return index and bytes of the longest element, the first of several; 0 and 0 for none."""
    if isinstance(items, ItemViews):
        return items.longest
    longest = max(map(len, items), default=0)
    if not longest:
        return 0, 0
    return next(index for index, item in enumerate(items) if len(item) == longest), longest


def even_length(view: memoryview, count: int, head: bytes | None = None) -> int | None:
    """Return the length of all *count* elements of *view*; None if their lengths differ.

    Args:
        view: Elements, each after the same prefix.
        count: Number of elements, which fill *view*.
        head: The prefix; None for the length in wire form.
    """
    end = view.nbytes
    if count <= _FEW_ITEMS or end % count:
        return None
    step = end // count
    size = step - (LENGTH.size if head is None else len(head))
    if size < 0:
        return None
    charge(count * _EVEN, 0)
    before = LENGTH.pack(size) if head is None else head
    rows = np.frombuffer(view, np.uint8).reshape(count, step)
    for first in range(0, count, _BLOCK_ITEMS):  # which stays in the caches
        block = rows[first : first + _BLOCK_ITEMS]
        for place, byte in enumerate(before):
            if (block[:, place] != byte).any():
                return None
    charge(0, count)
    return size


def even_items(view: memoryview, count: int, head_bytes: int) -> ItemViews:
    """Return *count* elements of the same length, each after a prefix of *head_bytes*."""
    step = view.nbytes // count
    ends = np.arange(step, view.nbytes + 1, step, dtype=np.int64)
    return ItemViews(view, ends - (step - head_bytes), ends)


def count_items(view: memoryview, expected: int) -> tuple[int, int]:
    """Count the complete elements in wire form; return their number and the end of the last.

    Args:
        view: The elements.
        expected: Maximum number of elements to count.
    """
    end = view.nbytes
    if expected > _FEW_ITEMS:
        charge(min(expected, end // LENGTH.size))
    unpack = LENGTH.unpack_from
    position = found = 0
    while position + 4 <= end and found < expected:
        stop = position + 4 + unpack(view, position)[0]
        if stop > end:
            break
        position = stop
        found += 1
    return found, position


def walk_items(view: memoryview, expected: int | None) -> tuple[Sequence[memoryview], int]:
    """Find elements in wire form, as `count_items` counts them; return them, and where they end."""
    end = view.nbytes
    limit = end // LENGTH.size if expected is None else min(expected, end // LENGTH.size)
    unpack = LENGTH.unpack_from
    position = 0
    ends: list[int] = []
    while True:
        before = len(ends)
        block = min(limit, before + _BLOCK)
        while position + 4 <= end and len(ends) < block:
            stop = position + 4 + unpack(view, position)[0]
            if stop > end:
                break
            ends.append(stop)
            position = stop
        if len(ends) - before > _FEW_ITEMS:
            charge(len(ends) - before)
        if len(ends) < block or block == limit:
            break
    if len(ends) <= _FEW_ITEMS:
        offsets = [0, *ends]
        return [view[offsets[at] + 4 : stop] for at, stop in enumerate(ends)], position
    found = np.array(ends, np.int64)
    starts = np.empty_like(found)
    starts[0], starts[1:] = LENGTH.size, found[:-1] + LENGTH.size
    return ItemViews(view, starts, found), position


def text_items(texts: Iterable[str], errors: str = "strict") -> list[bytes] | ItemViews:
    """Return texts as elements in UTF-8; many are views of one buffer, which takes little memory.

    Raises:
        UnicodeEncodeError: A text is not Unicode.
    """
    blocks: list[ItemViews] = []
    rest = iter(texts)
    while some := [text.encode("utf-8", errors) for text in islice(rest, _BLOCK)]:
        if len(some) < _BLOCK and not blocks:
            return some
        blocks.append(item_views(some))
    return joined_views(blocks) if blocks else []


def item_views(items: Sequence[bytes | memoryview]) -> ItemViews:
    """Copy elements into one buffer."""
    lengths = np.fromiter(map(len, items), np.int64, len(items))
    ends = np.cumsum(lengths)
    return ItemViews(memoryview(b"".join(items)), ends - lengths, ends)


def joined_views(blocks: Sequence[ItemViews]) -> ItemViews:
    """Return the elements of several buffers, which they fill, in one."""
    if len(blocks) == 1:
        return blocks[0]
    parts = [block.parts for block in blocks]
    before = np.cumsum([0, *[len(view) for view, _, _ in parts[:-1]]])
    return ItemViews(
        memoryview(b"".join([view for view, _, _ in parts])),
        np.concatenate([starts + at for (_, starts, _), at in zip(parts, before, strict=True)]),
        np.concatenate([ends + at for (_, _, ends), at in zip(parts, before, strict=True)]),
    )
