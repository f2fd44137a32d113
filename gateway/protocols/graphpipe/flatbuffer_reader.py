"""Reads untrusted flat buffers: every offset, vtable and count is checked.

All positions are Python integers, which do not wrap, and must lie inside the message.  There is no
recursion: each field has its own reader, so nesting is as deep as the schema (four levels).
Offsets may point to the same bytes, so two limits bound the positions visited and the bytes
returned.
`messages.py` has the meaning of the fields.

Source: docs/protocols/graphpipe.md, "3. Encoding"; FlatBuffers internals, "Encoding".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final

from gateway.ir.errors import InvalidRequest, MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits, check_bytes_elements, check_name
from gateway.ir.tensors.tensor import Shape
from gateway.protocols.graphpipe.flatbuffer_writer import MAX_MESSAGE_BYTES

_WORD: Final = Struct("<I").unpack_from
_SIGNED: Final = Struct("<i").unpack_from
_SHAPES: Final = tuple(Struct(f"<{rank}q").unpack_from for rank in range(33))

_VISITS: Final = 10_000
EMPTY: Final = memoryview(b"")
_SMALLEST: Final = 8
# A table begins with the offset of its vtable, a vtable with two sizes.
_TABLE_START: Final = 4
# Equal strings may share their bytes: returned bytes may exceed the message by this factor.
_ALIASES: Final = 4
_FREE_BYTES: Final = 1 << 20
_CACHED_VTABLES: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A kind of table; a constant, equal only to itself.

    Attributes:
        name: For errors.
        widths: Size of each field in the table, by slot.
        vtable_bytes: Size of a vtable with all slots.
        halves: Reads a vtable of that size.
    """

    name: str
    widths: tuple[int, ...]
    vtable_bytes: int
    halves: Callable[[memoryview | bytes, int], tuple[int, ...]]


def table(name: str, *widths: int) -> Table:
    """Describe a kind of table."""
    form = Struct(f"<{2 + len(widths)}H")
    return Table(name, widths, form.size, form.unpack_from)


class FlatbufferMessage:
    """A message, and how much of it may still be read.

    Args:
        view: The message, from its root word on; bytes after its end are ignored.
        limits: For the message and its parts.

    Raises:
        MalformedMessage: It is too short for a message.
        TooLarge: It exceeds the size limit.
    """

    __slots__ = ("_handed_out", "_strings", "_visits_left", "limits", "size", "view")

    def __init__(self, view: memoryview, limits: MessageLimits) -> None:
        size = view.nbytes
        if size < _SMALLEST:
            raise MalformedMessage(
                f"GraphPipe message has {size} bytes: expected at least {_SMALLEST}"
            )
        if size > limits.message_bytes or size > MAX_MESSAGE_BYTES:
            most = min(limits.message_bytes, MAX_MESSAGE_BYTES)
            raise TooLarge(
                f"GraphPipe message has {size} bytes, at most {most} are allowed",
                limit="message_bytes",
            )
        self.view = view
        self.size = size
        self.limits = limits
        self._visits_left = _VISITS
        self._handed_out = 0
        self._strings = 0

    def root(self) -> int:
        """Return the position of the root table."""
        at: int = _WORD(self.view, 0)[0]
        if not _TABLE_START <= at <= self.size - _TABLE_START:
            raise MalformedMessage(
                f"root table would be at {at} of {self.size} bytes: expected a bare GraphPipe "
                "message, without a size before it"
            )
        return at

    def fields(self, at: int, kind: Table) -> tuple[int, ...]:
        """Return the positions of the fields of the table at *at*, by slot; 0 for absent ones.

        Every present field lies inside the table, and the table inside the message.

        Args:
            at: From `root` or `follow`.
            kind: The kind of the table.
        """
        view, size = self.view, self.size
        vtable = at - _SIGNED(view, at)[0]
        if 0 <= vtable <= size - kind.vtable_bytes:
            halves = kind.halves(view, vtable)
        elif 0 <= vtable <= size - _TABLE_START:  # a shorter vtable at the end
            halves = kind.halves(bytes(view[vtable:]).ljust(kind.vtable_bytes, b"\0"), 0)
        else:
            raise self._malformed(f"the vtable of {kind.name} would be at {vtable}")
        vtable_bytes, table_bytes, fields = _fields(kind, halves)
        if vtable + vtable_bytes > size or at + table_bytes > size:
            raise self._malformed(
                f"{kind.name} at {at} would have {table_bytes} bytes, and its vtable at {vtable} "
                f"{vtable_bytes}"
            )
        return fields

    def follow(self, at: int, what: str) -> int:
        """Return the target of the offset at *at*, which is inside the message.

        At least 4 bytes follow the target.
        """
        target: int = at + _WORD(self.view, at)[0]
        if target == at or target + 4 > self.size:
            raise self._malformed(f"{what} would be at {target}")
        return target

    def vector(self, at: int, width: int, what: str) -> tuple[int, int]:
        """Return the position of a vector's elements, and their number.

        Args:
            at: Position of the offset to the vector.
            width: Bytes of an element.
            what: For errors.
        """
        view, size = self.view, self.size
        target = at + _WORD(view, at)[0]
        start = target + 4
        if target == at or start > size:
            raise self._malformed(f"{what} would be at {target}")
        count = _WORD(view, target)[0]
        if count * width > size - start:
            raise self._malformed(f"{what} would have {count} elements")
        return start, count

    def visit(self, count: int) -> None:
        """Count *count* visited positions against the limit."""
        self._visits_left -= count
        if self._visits_left < 0:
            raise TooLarge(f"the GraphPipe message has more than {_VISITS} parts", limit="visits")

    def hand_out(self, count: int) -> None:
        """Count *count* returned bytes; more than the message has are aliases."""
        self._handed_out += count
        if self._handed_out > self.size:
            most = max(_ALIASES * self.size, _FREE_BYTES)
            if self._handed_out > most:
                raise TooLarge(
                    f"the parts of a GraphPipe message of {self.size} bytes overlap: they hold "
                    f"more than {most} bytes",
                    limit="aliases",
                )

    def count_strings(self, count: int) -> None:
        """Count *count* more strings of tensors; tensors may share them, so each counts.

        Raises:
            TooLarge: All tensors together have more than `bytes_elements`.
        """
        self._strings += count
        check_bytes_elements(self._strings, self.limits)

    def data(self, at: int, what: str) -> memoryview:
        """Return the bytes of the string or byte vector at the offset field *at*.

        The NUL of a string is not required: the Go client writes none.
        """
        start, count = self.vector(at, 1, what)
        if not count:
            return EMPTY
        self.hand_out(count)
        return self.view[start : start + count]

    def text(self, at: int, what: str) -> str:
        """Return the string at the offset field *at*, which must be UTF-8."""
        try:
            return str(self.data(at, what), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"{what} is not UTF-8: {error.reason}") from error

    def names(self, at: int, what: str, most: int, limit: str) -> list[str]:
        """Return the vector of names at the offset field *at*.

        Args:
            at: Position of the offset.
            what: One name, for errors.
            most: The limit on their number.
            limit: Name of that limit.
        """
        start, count = self.vector(at, 4, what)
        if not count:
            return []
        view, size = self.view, self.size
        if count > most:
            raise TooLarge(f"{count} {what}s, at most {most} are allowed", limit=limit)
        self._visits_left -= count
        if self._visits_left < 0:
            self.visit(0)
        longest = self.limits.name_bytes
        found = []
        total = 0
        for place in range(start, start + 4 * count, 4):
            begin = place + _WORD(view, place)[0] + 4
            if begin > size or begin == place + 4:
                raise self._malformed(f"an {what} would be at {begin - 4}")
            length = _WORD(view, begin - 4)[0]
            if length > size - begin:
                raise self._malformed(f"an {what} would have {length} bytes")
            if length > longest:
                raise TooLarge(
                    f"an {what} has {length} bytes, at most {longest} are allowed",
                    limit="name_bytes",
                )
            total += length
            try:
                name = view[begin : begin + length].tobytes().decode()
            except UnicodeDecodeError as error:
                raise MalformedMessage(f"an {what} is not UTF-8: {error.reason}") from error
            if not (name.isascii() and name.isprintable()):
                self.check_name(f"an {what}", name)
            found.append(name)
        self._handed_out += total  # checked with the next returned bytes, those of the data
        return found

    def check_name(self, what: str, name: str) -> None:
        """Refuse an invalid name with MalformedMessage, since names are part of the message."""
        try:
            check_name(what, name, self.limits.name_bytes, "name_bytes")
        except InvalidRequest as error:
            raise MalformedMessage(error.message) from error

    def shape(self, at: int, name: str) -> Shape:
        """Return the dimensions at the offset field *at*, negative ones too.

        Args:
            at: Position of the offset.
            name: The name of the tensor, for errors.
        """
        view, size, most = self.view, self.size, self.limits.rank
        target = at + _WORD(view, at)[0]
        if target == at or target + 4 > size:
            raise self._malformed(f"the shape of tensor {name!r} would be at {target}")
        rank = _WORD(view, target)[0]
        if rank > (size - target - 4) // 8:
            raise self._malformed(f"the shape of tensor {name!r} would have {rank} dimensions")
        if rank > most:
            raise TooLarge(
                f"tensor {name!r} has {rank} dimensions, at most {most} are allowed", limit="rank"
            )
        read = _SHAPES[rank] if rank < len(_SHAPES) else Struct(f"<{rank}q").unpack_from
        dims: Shape = read(view, target + 4)
        return dims

    def _malformed(self, found: str) -> MalformedMessage:
        return MalformedMessage(f"{found}, the GraphPipe message has {self.size} bytes")


# Writers of one kind repeat the same few vtables, so the result is cached.  It depends on nothing
# but the numbers of a vtable.
@lru_cache(maxsize=_CACHED_VTABLES)
def _fields(kind: Table, halves: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    """Return the sizes of a vtable and of its table, and the positions of the table's fields.

    *halves* is as long as a complete vtable; entries after the end of this one are ignored.
    """
    vtable_bytes, table_bytes = halves[:2]
    if vtable_bytes < _TABLE_START or vtable_bytes & 1 or table_bytes < _TABLE_START:
        raise MalformedMessage(
            f"{kind.name} would have {table_bytes} bytes, and its vtable {vtable_bytes}: "
            "expected at least 4, and an even number for the vtable"
        )
    fields = halves[2 : vtable_bytes // 2]
    for place, width in zip(fields, kind.widths, strict=False):
        if place and (place < _TABLE_START or place + width > table_bytes):
            raise MalformedMessage(
                f"a field of {kind.name} would be at {place}, the table has {table_bytes} bytes"
            )
    return vtable_bytes, table_bytes, fields + (0,) * (len(kind.widths) - len(fields))
