"""A cache of messages of rows that repeat except for their numbers.

Without its lists of numbers, the *holes*, the text of a client's messages is always the same. The
first messages of a text are read completely. Then a *template* is cached under the text around the
holes; it assigns holes to tensors, whose values are the texts of the holes. A message that does not
fit its template is read completely, and has the same errors.

Why the result is the same: to find out that a hole is the value of a tensor, the text is parsed
once more with a mark in each hole. JSON is context-free, so another list in a hole changes nothing
else. A list fits that has only numbers, is nested as deep as that of the template, and is regular.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import orjson

from gateway.accelerator import accelerated
from gateway.ir.context import NO_PARAMETERS
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.data import JsonLayout, UntypedData, UntypedRules
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.values.number_lists import nested_numbers, nested_shape
from gateway.wire.message_cache import ParseCache
from gateway.wire.rows.read import SIMD_FROM_BYTES

T = TypeVar("T")

_TEMPLATES: Final = 256
_TEMPLATE_BYTES: Final = 2048
# The only letters are those of exponents, so a list has only numbers.
_HOLE: Final = re.compile(rb"(\[[-+0-9.eE, \[\]]*\])")
# Stands for a hole, and is in no JSON: two texts with the same text around their holes have them at
# the same positions.
_GAP: Final = b"\0"
# Not in any list of numbers.
_MARK: Final = rb'["\u0000%d"]'

Cut = tuple[bytes, Sequence[bytes]]
"""The text around the holes, and the holes."""

Read = tuple[T, tuple[Tensor, ...]]
"""The parsed message without tensors, and the tensors."""


class _RowSlot(NamedTuple):
    """A tensor, and the holes that have its value.

    Attributes:
        holes: Their indices: one hole, or one for each row.
        rank: How deep the lists in a hole are nested.
        is_list: The value is the list of what the holes have.
        labels: The hole with the labels of the rows of a table; -1 for none.
    """

    name: str
    layout: JsonLayout
    place: str
    rules: UntypedRules
    member: str
    columns: tuple[str, ...] | None
    holes: tuple[int, ...]
    rank: int
    is_list: bool
    labels: int


class _RowTemplate(NamedTuple, Generic[T]):
    """The parsed text around the holes of a message."""

    rest: T
    holes: int
    slots: tuple[_RowSlot, ...]


class RowTemplates(Generic[T]):
    """The templates of the messages that one codec reads in one way.

    Args:
        limits: The limits of messages, with a template or without.

    Attributes:
        parse: Parses a message by its template; see `row_parser`.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._kept: ParseCache[_RowTemplate[T] | None] = ParseCache(_TEMPLATES, _TEMPLATE_BYTES)
        most_bytes = min(SIMD_FROM_BYTES - 1, limits.json_bytes)
        most_elements = min(limits.elements, limits.dim)
        self.parse: RowParser[T] = row_parser(self._kept.get, most_bytes, most_elements)

    def learn(self, cut: Cut, rest: T, tensors: Sequence[Tensor]) -> None:
        """Cache the template of a completely read message, once it occurs a second time.

        Args:
            cut: The message.
            rest: The parsed message without tensors; depends on the text around the holes alone.
            tensors: The tensors that were read.
        """
        key, holes = cut
        if not self._kept.should_admit(key):
            return
        template = None
        try:
            document = orjson.loads(_marked(key))
            marks = {f"\0{hole}": hole for hole in range(len(holes))}
            slots = tuple([_slot(document, tensor, marks) for tensor in tensors])
        except (ValueError, LookupError, TypeError):
            pass  # a value is in no hole, or it was read leniently
        else:
            if not marks:
                template = _RowTemplate(rest, len(holes), slots)
        # None is cached too: this text has no template.
        self._kept.put(key, template)


RowParser = Callable[[memoryview], tuple[Read[T] | None, Cut | None]]


@accelerated
def row_parser(
    template_of: Callable[[bytes], _RowTemplate[T] | None], most_bytes: int, most_elements: int
) -> RowParser[T]:
    """Return a function that parses messages by their templates.

    It returns the parsed message, whose values are texts, and None. Or it returns None and the
    argument of `learn`, when there is no template or the message does not fit it: read it
    completely. This argument is None where the message is too long for a template.

    Args:
        template_of: Returns the template for the text around the holes, if there is one.
        most_bytes: The largest size of a message.
        most_elements: The largest number of elements of a tensor.
    """

    def parse(body: memoryview, /) -> tuple[Read[T] | None, Cut | None]:
        if len(body) > most_bytes:
            return None, None
        pieces = _HOLE.split(bytes(body))
        key, holes = _GAP.join(pieces[::2]), pieces[1::2]
        template = template_of(key)
        if template is not None and template.holes == len(holes):
            tensors = _fill(template, holes, most_elements, len(body))
            if tensors is not None:
                return (template.rest, tensors), None
        return None, (key, holes)

    return parse


def _fill(
    template: _RowTemplate[T], holes: Sequence[bytes], most_elements: int, size_bytes: int
) -> tuple[Tensor, ...] | None:
    """Fill a template; None where the content of a hole does not fit."""
    tensors = []
    for slot in template.slots:
        texts = [holes[hole] for hole in slot.holes]
        shapes = set(map(_shape, texts))
        shape = shapes.pop()
        if shapes or shape is None or len(shape) != slot.rank:
            return None
        if math.prod(shape) * len(texts) > most_elements:
            return None
        if slot.columns is not None and shape[1:] != (len(slot.columns),):
            return None
        if slot.labels >= 0 and _shape(holes[slot.labels]) != shape[:1]:
            return None
        value = b"[%b]" % b",".join(texts) if slot.is_list else texts[0]
        data = UntypedData(value, *slot[1:6], size_bytes)
        tensors.append(Tensor(slot.name, None, None, data, NO_PARAMETERS))
        size_bytes = 0
    return tuple(tensors)


def _shape(text: bytes) -> tuple[int, ...] | None:
    """Return the shape of regular lists of numbers; None for others, and for empty ones."""
    try:
        found = nested_numbers(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None
    return None if found is None else found[0]


def _marked(key: bytes) -> bytes:
    """Return the text of a template with a mark in each hole that occurs in no message."""
    first, *others = key.split(_GAP)
    pieces = [_MARK % hole + text for hole, text in enumerate(others)]
    return b"".join([first, *pieces])


def _slot(document: dict[str, Any], tensor: Tensor, marks: dict[str, int]) -> _RowSlot:
    """Return where a tensor has its value; removes the marks of its holes from *marks*.

    Raises:
        LookupError: The value is in no hole, or is no value of numbers.
    """
    data, name = tensor.data, tensor.name
    if type(data) is not UntypedData:
        raise LookupError(name)
    key, layout = data.place, data.layout
    is_list = layout is JsonLayout.MEMBERS
    labels = -1
    if is_list:
        lists = [row[data.member] for row in document[key]]
    elif layout is JsonLayout.VALUE:
        lists = [document[key.removesuffix(f".{name}")][name] if name else document[key]]
    elif layout is JsonLayout.TABLE:
        table = document[key.removesuffix(".data")]
        lists = [table["data"]]
        if type(table.get("index")) is list:
            (mark,) = table["index"]
            labels = marks.pop(mark, -1)
    else:
        raise LookupError(name)
    holes = tuple([marks.pop(mark) for (mark,) in lists])
    rank = len(nested_shape(data.value)) - is_list
    if rank < 1:
        raise LookupError(name)
    of_data = layout, key, data.rules, data.member, data.columns
    return _RowSlot(name, *of_data, holes, rank, is_list, labels)
