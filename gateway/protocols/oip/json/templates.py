"""JSON messages that repeat but for their elements and their id: what else they say is read once.

A client sends the same JSON again and again, with other numbers in its `data`, or other bytes
behind it. Cut out what differs, the *holes*, and what is left is always the same text. The first
messages of a text are read as all are, by members.py; then a *mould* of it is kept, found by the
text around the holes, which says where which tensor's elements are. Reading by it is a third of
the cost. Whatever does not fit its mould is read as all are, and refused in the same words.

Why that is the same. A hole is a list of numbers, flat or nested, or a plain string. That it is the
value of one tensor's `data`, or of the message's `id`, is seen by reading the text once more with a
mark in each hole: JSON is context-free, so any other list or string there leaves all the rest as it
was. Limits are counted on the text around the holes, or by the tensors' shapes, which stand in it;
lists are nested as their shape is, or not at all, as they were in the message that a mould is of.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import orjson
from msgspec import Struct

from gateway.ir.context import Parameters
from gateway.ir.data import RawData
from gateway.ir.datatypes import Datatype
from gateway.ir.limits import MessageLimits
from gateway.ir.tensor import Shape, Tensor
from gateway.protocols.oip.json.elements import packer, unnested
from gateway.protocols.oip.json.parse import SIMD_FROM_BYTES, text_of
from gateway.wire.message_cache import ParseCache

T = TypeVar("T")

_MOULDS: Final = 256
_MOULD_BYTES: Final = 2048
# The one group makes `split` give text and hole by turns, and drops the key, which the hole's first
# byte tells. No letters but those of exponents: no words, so what a list holds is a number.
_HOLE: Final = re.compile(
    rb'"(?:data": ?(?=\[)|id": ?(?="))(\[[-+0-9.eE, \[\]]*\]|"[-_.0-9A-Za-z]*")'
)
_TEXT: Final = slice(0, None, 2)
_HOLES: Final = slice(1, None, 2)
# Stands where a key and its hole were. It is in no JSON: two texts with as many holes and the same
# text around them have them in the same places.
_GAP: Final = b"\0"
_NOTHING: Final = memoryview(b"")
_NO_HOLES: Final[Sequence[bytes]] = ()
# What is in no id and no list of numbers.
_MARK: Final = rb'"\u0000%d"'
# Their bytes are looked into, each time.
_LOOKED_INTO: Final = frozenset({Datatype.BOOL, Datatype.BYTES})

Cut = tuple[bytes, Sequence[bytes], memoryview]
"""The text around the holes, the holes, and the bytes behind the JSON."""

Read = tuple[T, str, tuple[Tensor, ...]]
"""What is said beside id and tensors, the id, and the tensors."""


class _Slot(Struct, frozen=True):
    """A tensor, and where its elements are.

    Attributes:
        pack: Makes raw data of the numbers in a hole; None for a tensor behind the JSON.
        nested: The numbers are in lists nested as the shape.
        start: Which hole it is; behind the JSON its first byte there.
        stop: One byte after its last; the same as *start* where it is in a hole.
    """

    name: str
    datatype: Datatype
    shape: Shape
    parameters: Parameters
    pack: Callable[..., bytes] | None
    nested: bool
    start: int
    stop: int


class _Template(Struct, Generic[T], frozen=True):
    """What a text says beside its holes.

    Attributes:
        id_hole: Which of the holes is the id; None where it is always the same.
        holes: How many there are.
        tail_bytes: Behind the JSON.
    """

    said: T
    id: str
    id_hole: int | None
    holes: int
    tail_bytes: int
    slots: tuple[_Slot, ...]


class JsonTemplateCache(Generic[T]):
    """The moulds of one kind of message.

    Args:
        kind: "input" or "output": what its tensors are.
        limits: Those that messages without a mould are read with.
    """

    def __init__(self, kind: str, limits: MessageLimits) -> None:
        self.limits = limits
        self._tensors = f"{kind}s"
        self._most_bytes = min(SIMD_FROM_BYTES - 1, limits.json_bytes)
        self._kept: ParseCache[_Template[T] | None] = ParseCache(_MOULDS, _MOULD_BYTES)
        self._kept_for = self._kept.get

    def __len__(self) -> int:
        return len(self._kept)

    def parse(self, body: memoryview, end: int) -> tuple[Read[T] | None, Cut | None]:
        """Read a message by its mould; tensors behind the JSON are views of it.

        Args:
            body: The message.
            end: Of its JSON.

        Returns:
            What it says, None when there is no mould for it, or it does not fit: read it as all
            are. And what `keep` takes then, None where the message is too long for a mould.
        """
        if end > self._most_bytes:
            return None, None
        mould, holes = None, _NO_HOLES
        if end == len(body):
            key, tail = text_of(body), _NOTHING
        else:
            key, tail = bytes(body[:end]), body[end:]
            mould = self._kept_for(key)  # there is one if all elements are behind the JSON
        if mould is None:
            pieces = _HOLE.split(key)
            key, holes = _GAP.join(pieces[_TEXT]), pieces[_HOLES]
            mould = self._kept_for(key)
        cut = key, holes, tail
        if mould is None or len(holes) != mould.holes or len(tail) != mould.tail_bytes:
            return None, cut
        return self._read(mould, holes, tail), cut

    def _read(
        self, mould: _Template[T], holes: Sequence[bytes], tail: memoryview
    ) -> Read[T] | None:
        """Fill a mould; None where what lies in a hole does not fit."""
        request_id = mould.id
        if mould.id_hole is not None:
            hole = holes[mould.id_hole]
            request_id = hole[1:-1].decode()
            if not hole.startswith(b'"') or len(request_id) > self.limits.name_bytes:
                return None
        tensors = []
        try:
            for slot in mould.slots:
                if slot.pack is None:
                    data = tail[slot.start : slot.stop]
                else:
                    values = orjson.loads(holes[slot.start])
                    if slot.nested:
                        values = unnested(values, slot.shape) or ()
                    # struct counts the numbers, and knows their range; it takes no text, no list.
                    data = memoryview(slot.pack(*values))
                tensors.append(
                    Tensor(slot.name, slot.datatype, slot.shape, RawData(data), slot.parameters)
                )
        except (ValueError, OverflowError, struct.error):
            return None
        return mould.said, request_id, tuple(tensors)

    def learn(self, cut: Cut, said: T, request_id: str, tensors: Sequence[Tensor]) -> None:
        """Keep the mould of a message that was read as all are, once it has come twice.

        Args:
            cut: The message.
            said: What it says beside its id and its tensors; of nothing but the text.
            request_id: Its id.
            tensors: As they were read.
        """
        key, holes, tail = cut
        if not self._kept.should_admit(key):
            return
        mould = None
        try:
            document = orjson.loads(_marked(key, holes))
            marks = {f"\0{hole}": hole for hole in range(len(holes))}
            id_hole = marks.pop(document.get("id"), None)
            slots = _slots(document[self._tensors], tensors, marks, holes)
        except (ValueError, LookupError):
            pass  # it was read leniently, or an element is in no hole
        else:
            if not marks and tail.nbytes == sum(slot.stop - slot.start for slot in slots):
                mould = _Template(said, request_id, id_hole, len(holes), tail.nbytes, slots)
        # None is kept too: it says that this text has no mould, and need not be looked at again.
        self._kept.put(key, mould)


def _marked(key: bytes, holes: Sequence[bytes]) -> bytes:
    """Return the text of a mould with a mark in each hole that is in no message."""
    text = key.split(_GAP)
    for hole, found in enumerate(holes):
        mark = _MARK % hole
        text[hole] += b'"id":' + mark if found.startswith(b'"') else b'"data":[%b]' % mark
    return b"".join(text)


def _slots(
    members: Sequence[Any],
    tensors: Sequence[Tensor],
    marks: dict[str, int],
    holes: Sequence[bytes],
) -> tuple[_Slot, ...]:
    """Return where tensors are; takes their marks out of *marks*.

    Raises:
        LookupError: The elements of one are in no hole, or looked at each time.
    """
    slots = []
    at = 0
    for member, tensor in zip(members, tensors, strict=True):
        data, datatype, shape = tensor.data, tensor.datatype, tensor.shape
        if type(data) is not RawData or shape is None or datatype is None or not len(data.view):
            raise LookupError(tensor.name)
        if datatype in _LOOKED_INTO:
            raise LookupError(tensor.name)
        size = len(data.view)
        listed = member.get("data")
        if listed is None:
            pack, nested, start, stop = None, False, at, at + size
            at = stop
        else:
            pack = packer(datatype, size // datatype.size_bytes)
            start = stop = marks.pop(str(listed[0]))
            nested = holes[start].count(b"[") > 1
        slots.append(
            _Slot(tensor.name, datatype, shape, tensor.parameters, pack, nested, start, stop)
        )
    return tuple(slots)
