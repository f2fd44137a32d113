"""Reads flat buffers of which nothing is believed: every offset, vtable and count is checked.

Everything that is followed lies inside the message, computed in Python integers, which do not
wrap. There is no recursion: what a field leads to is decided by its reader, so nesting is as deep
as the schema (four levels). Aliases are legal, so two budgets bound them: places visited, and
bytes handed out. What the fields mean is in messages.py.

Source: dossier, sections 3 and 10.3; FlatBuffers internals, "Encoding".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final

from gateway.ir.errors import InvalidRequest, MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits, check_name
from gateway.ir.tensor import Shape
from gateway.protocols.graphpipe.writer import MAX_MESSAGE_BYTES

_WORD: Final = Struct("<I").unpack_from
_SIGNED: Final = Struct("<i").unpack_from
_HALVES: Final = Struct("<2H").unpack_from
_SHAPES: Final = tuple(Struct(f"<{rank}q").unpack_from for rank in range(33))

_VISITS: Final = 10_000
_SMALLEST: Final = 8
# A table begins with the way to its vtable, a vtable with two sizes.
_TABLE_START: Final = 4
# Equal strings may share their bytes: so much more than the message may be handed out.
_ALIASES: Final = 4
_FREE_BYTES: Final = 1 << 20
_CACHED_VTABLES: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A kind of table; each is a constant, equal only to itself.

    Attributes:
        name: For errors.
        widths: Bytes that each field takes in the table, by slot.
        vtable_bytes: Size of the vtable that has all of them.
    """

    name: str
    widths: tuple[int, ...]
    vtable_bytes: int


def table(name: str, *widths: int) -> Table:
    """Describe a kind of table."""
    return Table(name, widths, 4 + 2 * len(widths))


class Message:
    """A message and what may still be read of it.

    Args:
        view: The message, from its root word on; bytes after its end cannot be told and are let be.
        limits: What it may hold.

    Raises:
        MalformedMessage: It is too short to be one.
        TooLarge: It has more bytes than are allowed.
    """

    __slots__ = ("_bytes_left", "_visits_left", "limits", "size", "view")

    def __init__(self, view: memoryview, limits: MessageLimits) -> None:
        size = view.nbytes
        if size < _SMALLEST:
            raise MalformedMessage(
                f"a GraphPipe message of {size} bytes: the shortest has {_SMALLEST}"
            )
        most = min(limits.message_bytes, MAX_MESSAGE_BYTES)
        if size > most:
            raise TooLarge(
                f"a GraphPipe message of {size} bytes, at most {most} are allowed",
                limit="message_bytes",
            )
        self.view = view
        self.size = size
        self.limits = limits
        self._visits_left = _VISITS
        self._bytes_left = max(_ALIASES * size, _FREE_BYTES)

    def root(self) -> int:
        """Return where the root table stands."""
        (at,) = _WORD(self.view, 0)
        if not _TABLE_START <= at <= self.size - _TABLE_START:
            raise MalformedMessage(
                f"the root table would be at {at} of {self.size} bytes: this is no GraphPipe "
                "message (the bare message is needed, without a size before it)"
            )
        return int(at)

    def fields(self, at: int, kind: Table) -> tuple[int, ...]:
        """Return where the fields of the table at *at* stand in it, by slot; 0 for absent ones.

        Every field that is present lies inside the table, and the table inside the message.
        """
        view, size = self.view, self.size
        if at + 4 > size:
            raise self._broken(f"{kind.name} would be at {at}")
        vtable = at - _SIGNED(view, at)[0]
        if not 0 <= vtable <= size - 4:
            raise self._broken(f"the vtable of {kind.name} would be at {vtable}")
        vtable_bytes, table_bytes = _HALVES(view, vtable)
        if vtable_bytes < _TABLE_START or vtable_bytes & 1 or table_bytes < _TABLE_START:
            raise self._broken(
                f"{kind.name} would have {table_bytes} bytes, and its vtable {vtable_bytes}: "
                "4 or more, and an even number for the vtable, are needed"
            )
        if vtable + vtable_bytes > size or at + table_bytes > size:
            raise self._broken(
                f"{kind.name} at {at} would have {table_bytes} bytes, and its vtable at {vtable} "
                f"{vtable_bytes}"
            )
        known = vtable + (min(kind.vtable_bytes, vtable_bytes))
        return _fields(kind, bytes(view[vtable:known]))

    def follow(self, at: int, what: str) -> int:
        """Return what the offset at *at*, which is inside the message, points to.

        At least 4 bytes are there.
        """
        (distance,) = _WORD(self.view, at)
        target = at + distance
        if not distance or target + 4 > self.size:
            raise self._broken(f"{what} would be at {target}")
        return int(target)

    def vector(self, at: int, width: int, what: str) -> tuple[int, int]:
        """Return where the elements of a vector begin, and how many there are.

        Args:
            at: Where the offset to the vector stands.
            width: Bytes of an element.
            what: For errors.
        """
        start = self.follow(at, what) + 4
        (count,) = _WORD(self.view, start - 4)
        if count * width > self.size - start:
            raise self._broken(f"{what} would have {count} elements")
        return start, count

    def visit(self, count: int) -> None:
        """Spend *count* of the places that may be visited."""
        self._visits_left -= count
        if self._visits_left < 0:
            raise TooLarge(f"the GraphPipe message has more than {_VISITS} parts", limit="visits")

    def hand_out(self, count: int) -> None:
        """Spend *count* of the bytes that may be handed out."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise TooLarge(
                f"the parts of a GraphPipe message of {self.size} bytes overlap: they hold more "
                f"than {max(_ALIASES * self.size, _FREE_BYTES)} bytes",
                limit="aliases",
            )

    def data(self, at: int, what: str) -> memoryview:
        """Return the bytes of the string or byte vector that the offset at *at* points to.

        A string's NUL is not asked for: the Go client writes none.
        """
        start, count = self.vector(at, 1, what)
        self.hand_out(count)
        return self.view[start : start + count]

    def text(self, at: int, what: str) -> str:
        """Return the string that the offset at *at* points to, which must be UTF-8."""
        try:
            return str(self.data(at, what), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"{what} is not UTF-8: {error.reason}") from error

    def names(self, at: int, what: str) -> list[str]:
        """Return the vector of names that the offset at *at* points to."""
        start, count = self.vector(at, 4, what)
        if not count:
            return []
        limits = self.limits
        if count > limits.tensors:
            raise TooLarge(f"{count} {what}, at most {limits.tensors} are allowed", limit="tensors")
        self.visit(count)
        found = [self.text(place, what) for place in range(start, start + 4 * count, 4)]
        for name in found:
            self.check_name(what, name)
        return found

    def check_name(self, what: str, name: str) -> None:
        """Refuse a name that may not be one; as a broken message, for names come in messages."""
        try:
            check_name(what, name, self.limits.name_bytes, "name_bytes")
        except InvalidRequest as error:
            raise MalformedMessage(error.message) from error

    def shape(self, at: int, what: str) -> Shape:
        """Return the vector of dimensions that the offset at *at* points to, negative ones too."""
        start, rank = self.vector(at, 8, what)
        most = self.limits.rank
        if rank > most:
            raise TooLarge(
                f"{what} has {rank} dimensions, at most {most} are allowed", limit="rank"
            )
        if rank < len(_SHAPES):
            return _SHAPES[rank](self.view, start)
        return Struct(f"<{rank}q").unpack_from(self.view, start)

    def _broken(self, found: str) -> MalformedMessage:
        return MalformedMessage(f"{found}, the GraphPipe message has {self.size} bytes")


# Writers of one kind send the same few vtables for ever: what they say is worked out once. The
# text of a vtable is its key, so what is remembered depends on nothing else.
@lru_cache(maxsize=_CACHED_VTABLES)
def _fields(kind: Table, vtable: bytes) -> tuple[int, ...]:
    """Return the places of a table's fields from its *vtable*, cut to the slots that are known."""
    table_bytes = _HALVES(vtable)[1]
    count = len(vtable) // 2 - 2
    fields = Struct(f"<{count}H").unpack_from(vtable, 4)
    for place, width in zip(fields, kind.widths, strict=False):
        if place and (place < _TABLE_START or place + width > table_bytes):
            raise MalformedMessage(
                f"a field of {kind.name} would be at {place}, the table has {table_bytes} bytes"
            )
    return fields + (0,) * (len(kind.widths) - count)
