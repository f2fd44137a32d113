"""A cache of JSON messages that repeat except for their elements and their id.

A client repeats the same JSON with other numbers in `data`, or other bytes after it.  Without these
parts, the *holes*, the text is always the same.  The first messages of a text are parsed
completely. Then a *template* is cached under the text around the holes; it assigns holes to
tensors.  To parse by template costs a third.  A message that does not fit its template is parsed
completely, and has the same errors.

Why the result is the same: a hole is a list of numbers, flat or nested, or a plain string.  To find
out that it is the `data` of one tensor, or the `id` of the message, the text is parsed once more
with a mark in each hole.  JSON is context-free, so another list or string in a hole changes nothing
else.  Limits apply to the text around the holes, or to the shapes in it.  Lists are flat, or nested
as their shape, as they were in the message of the template.
"""

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import orjson

from gateway.accelerator import accelerated
from gateway.ir.context import Parameters
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor
from gateway.ir.values.number_lists import CODES
from gateway.protocols.oip.json.elements import nested_packer, number_packer
from gateway.protocols.oip.json.parse import SIMD_FROM_BYTES
from gateway.wire.message_cache import ParseCache

T = TypeVar("T")

_TEMPLATES: Final = 256
_TEMPLATE_BYTES: Final = 2048
# The one group makes `split` alternate between text and hole, and drops the key, which the first
# byte of the hole implies. The only letters are those of exponents, so a list has only numbers.
_HOLE: Final = re.compile(
    rb'"(?:data": ?(?=\[)|id": ?(?="))(\[[-+0-9.eE, \[\]]*\]|"[-_.0-9A-Za-z]*")'
)
_TEXT: Final = slice(0, None, 2)
_HOLES: Final = slice(1, None, 2)
# Replaces a key and its hole. It is in no JSON: two texts with the same number of holes and the
# same text around them have them at the same positions.
_GAP: Final = b"\0"
EMPTY: Final = memoryview(b"")
_NO_HOLES: Final[Sequence[bytes]] = ()
# Not in any id or list of numbers.
_MARK: Final = rb'"\u0000%d"'

Read = tuple[T, str, tuple[Tensor, ...]]
"""The parsed message without id and tensors, the id, and the tensors."""


class _Slot(NamedTuple):
    """A tensor, and the position of its elements.

    Attributes:
        pack: Converts the list in a hole to raw data; None for a tensor after the JSON.
        start: Index of its hole; position of its first byte after the JSON.
        stop: Position after its last byte; equal to *start* for a hole.
    """

    name: str
    datatype: Datatype
    shape: Shape
    parameters: Parameters
    pack: Callable[[bytes], bytes] | None
    start: int
    stop: int


class _Template(NamedTuple, Generic[T]):
    """The parsed text around the holes of a message.

    Attributes:
        id_hole: Index of the hole with the id; None where the id is part of the text.
        holes: Number of holes.
        tail_bytes: Size of the bytes after the JSON.
    """

    rest: T
    id: str
    id_hole: int | None
    holes: int
    tail_bytes: int
    slots: tuple[_Slot, ...]


class JsonTemplateCache(Generic[T]):
    """The templates of one kind of message.

    Args:
        kind: "input" or "output": its tensors.
        limits: The limits of messages, with a template or without.

    Attributes:
        parse: Parses a message by its template; see `template_parser`.
    """

    def __init__(self, kind: str, limits: MessageLimits) -> None:
        self.limits = limits
        self._tensors = f"{kind}s"
        self._kept: ParseCache[_Template[T] | None] = ParseCache(_TEMPLATES, _TEMPLATE_BYTES)
        most_bytes = min(SIMD_FROM_BYTES - 1, limits.json_bytes)
        self.parse: TemplateParser[T] = template_parser(
            self._kept.get, most_bytes, limits.name_bytes
        )

    def __len__(self) -> int:
        return len(self._kept)

    def learn(self, key: bytes, body: memoryview, end: int, read: Read[T]) -> None:
        """Cache the template of a completely parsed message, once it occurs a second time.

        Args:
            key: Of the message, as `parse` returned it.
            body: The message.
            end: The end of its JSON.
            read: What was parsed. What is neither id nor tensors depends on *key* alone.
        """
        if not self._kept.should_admit(key):
            return
        rest, request_id, tensors = read
        _, holes = split_holes(bytes(body[:end]))
        template = None
        try:
            document = orjson.loads(_marked(key, holes))
            marks = {f"\0{hole}": hole for hole in range(len(holes))}
            id_hole = marks.pop(document.get("id"), None)
            slots = _slots(document[self._tensors], tensors, marks, holes)
        except (ValueError, LookupError):
            pass  # it was read leniently, or an element is in no hole
        else:
            size = len(body) - end
            if not marks and size == sum(slot.stop - slot.start for slot in slots):
                template = _Template(rest, request_id, id_hole, len(holes), size, slots)
        # None is cached too: this text has no template.
        self._kept.put(key, template)


TemplateParser = Callable[[memoryview, int], tuple[Read[T] | None, bytes | None]]


@accelerated
def template_parser(
    template_of: Callable[[bytes], _Template[T] | None], most_bytes: int, id_bytes: int
) -> TemplateParser[T]:
    """Return a function that parses messages by their templates.

    It takes a message, and the end of its JSON.  It returns the parsed message, whose tensors after
    the JSON are views of it, and None.  Or it returns None and the key for `learn`, which is the
    text around the holes, when there is no template or the message does not fit it: parse it
    completely.  The key is None where the message is too long for a template.

    Args:
        template_of: Returns the template for the text around the holes, if there is one.
        most_bytes: The largest size of the JSON.
        id_bytes: The largest size of an id.
    """

    def parse(body: memoryview, end: int, /) -> tuple[Read[T] | None, bytes | None]:
        if end > most_bytes:
            return None, None
        template, holes = None, _NO_HOLES
        if end == len(body):
            whole = body.obj
            if type(whole) is not bytes or len(whole) != end:
                whole = bytes(body)
            key, tail = whole, EMPTY
        else:
            key, tail = bytes(body[:end]), body[end:]
            template = template_of(key)  # exists if all elements are after the JSON
        if template is None:
            key, holes = split_holes(key)
            template = template_of(key)
        if template is not None and len(holes) == template.holes:
            found = _fill(template, holes, tail, id_bytes)
            if found is not None:
                return found, None
        return None, key

    return parse


def _fill(
    template: _Template[T], holes: Sequence[bytes], tail: memoryview, id_bytes: int
) -> Read[T] | None:
    """Fill a template; None where the content of a hole, or the size of the tail, does not fit."""
    request_id = template.id
    if template.id_hole is not None:
        hole = holes[template.id_hole]
        request_id = hole[1:-1].decode()
        if not hole.startswith(b'"') or len(request_id) > id_bytes:
            return None
    if len(tail) != template.tail_bytes:
        return None
    tensors = []
    try:
        for slot in template.slots:
            if slot.pack is None:
                data = tail[slot.start : slot.stop]
            else:
                data = memoryview(slot.pack(holes[slot.start]))
            tensors.append(
                Tensor(slot.name, slot.datatype, slot.shape, RawData(data), slot.parameters)
            )
    except (ValueError, OverflowError, struct.error):
        return None
    return template.rest, request_id, tuple(tensors)


@accelerated
def split_holes(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return the text of a message around its holes, and the holes."""
    pieces = _HOLE.split(text)
    return _GAP.join(pieces[_TEXT]), pieces[_HOLES]


def _marked(key: bytes, holes: Sequence[bytes]) -> bytes:
    """Return the text of a template with a mark in each hole that occurs in no message."""
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
    """Return the positions of tensors; removes their marks from *marks*.

    Raises:
        LookupError: The elements of a tensor are in no hole, or are checked in every message.
    """
    slots = []
    at = 0
    for member, tensor in zip(members, tensors, strict=True):
        data, datatype, shape = tensor.data, tensor.datatype, tensor.shape
        if type(data) is not RawData or shape is None or datatype is None or not len(data.view):
            raise LookupError(tensor.name)
        if datatype is Datatype.BYTES:  # its elements are checked in every message
            raise LookupError(tensor.name)
        size = len(data.view)
        listed = member.get("data")
        if listed is None:
            pack, start, stop = None, at, at + size
            at = stop
        else:
            start = stop = marks.pop(str(listed[0]))
            if holes[start].count(b"[") > 1:
                pack = nested_packer(CODES[datatype], shape)
            else:
                pack = number_packer(CODES[datatype], size // datatype.size_bytes)
        slots.append(_Slot(tensor.name, datatype, shape, tensor.parameters, pack, start, stop))
    return tuple(slots)
