"""Protobuf messages as descriptions, of which the readers and writers are generated.

A protocol lists the fields of a message that it needs. Other fields are skipped. When
it is imported, `generate_reader` and `generate_writer` turn the list into the loop that one would
write by hand; `MessageDescriptor.source` is its text. The compiled version of `described_reader`
reads plain messages by the same list, and leaves all others to the generated reader.

A reader accepts fields in any order, packed and not. Of a single field the last one counts, and the
occurrences of a single message are merged. Large values are views of the message.

`wire_format.py` has the wire format. The values of tensors are the business of their protocols.

Source: Protocol Buffers, "Encoding" and "Proto3: default values, oneof, maps".
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from gateway.accelerator import accelerated
from gateway.ir.limits import check_count, check_name
from gateway.wire.protobuf import wire_format

if TYPE_CHECKING:
    from gateway.ir.limits import MessageLimits
    from gateway.wire.http import Buffer
    from gateway.wire.protobuf.wire_format import FieldCounter, Parts

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Writer = Callable[..., "Parts"]


class DescribedReader(Protocol[T_co]):
    """Reads a message that has a description."""

    def __call__(
        self,
        views: Sequence[memoryview],
        limits: MessageLimits,
        counter: FieldCounter | None = None,
        /,
    ) -> T_co:
        """Return the value of a message.

        Args:
            views: Its occurrences, which are merged.
            limits: The limits of the description.
            counter: Counts the fields of the whole message, which this one is a part of.

        Raises:
            WireError: The bytes are not a message, or have too many fields.
            InvalidRequest, TooLarge: A name is not allowed, or a limit is exceeded.
        """
        ...


class FieldKind(IntEnum):
    """What a field has, and what its reader returns.

    Attributes:
        TEXT: A str.
        VIEW: A view of bytes.
        BOOL: A bool.
        INT32: An int; enums too.
        INT64: An int.
        CLOSED: A list with the views of a message that another reader reads and merges.
        MESSAGE: The value of its descriptor.
        MAP: A dict of texts to views of messages or bytes.
        ELEMENTS: A dict of field numbers to the occurrences, of all such fields together.
    """

    TEXT = 0
    VIEW = 1
    BOOL = 2
    INT32 = 3
    INT64 = 4
    CLOSED = 5
    MESSAGE = 6
    MAP = 7
    ELEMENTS = 8


class MessageField(NamedTuple):
    """One field of a message.

    Attributes:
        number: Its number.
        kind: What it has.
        name: Its name, and that of the writer's argument.
        what: Names its text, or the keys of its map, in errors.
        repeated: The reader returns a list of all.
        text_limit: The limit of `MessageLimits` for a text or a key, which must be a name; "" for
            any text.
        most: How errors name many of them, and the limit for their number; ("", "") for none.
        choice: Name of the oneof; "" for none. An absent field of one is None.
        element: The wire type of a single element; LEN for texts, which are never packed.
        message: The descriptor of a MESSAGE.
    """

    number: int
    kind: FieldKind
    name: str
    what: str = ""
    repeated: bool = False
    text_limit: str = ""
    most: tuple[str, str] = ("", "")
    choice: str = ""
    element: int = wire_format.LEN
    message: MessageDescriptor[Any] | None = None

    @property
    def tag(self) -> int:
        """The tag, with the wire type that writers use."""
        wire_type = wire_format.VARINT if self.kind in _VARINTS else wire_format.LEN
        return wire_format.tag(self.number, wire_type)


class MessageDescriptor(Generic[T]):
    """A message: its fields, and what its reader returns.

    Args:
        name: Its name in the schema.
        make: Returns the value, given those of *fields* in their order.
        fields: The fields that are read or written; one argument for all ELEMENTS, the last.
        limit: The most fields of one occurrence; 0 if the counter of the whole message decides.
        more: A limit of `MessageLimits` that *limit* grows by.

    Attributes:
        read: Reads the occurrences of a message: `read(views, limits, counter)`.
        write: Writes a message in parts; its arguments are named as the fields. Values that are
            absent or the default are left out. A message is given as its parts, and a map as pairs.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., T],
        fields: Sequence[MessageField],
        limit: int = 0,
        more: str = "",
    ) -> None:
        self.name = name
        self.make = make
        self.fields = tuple(fields)
        self.limit = limit
        self.more = more
        self.read: DescribedReader[T] = described_reader(self)
        self.write: Writer = generate_writer(self)

    def key(self, name: str) -> bytes:
        """Return the written tag of a field, for values that are written by hand."""
        return wire_format.varint(next(each.tag for each in self.fields if each.name == name))

    @cached_property
    def source(self) -> str:
        """The generated reader and writer."""
        return "\n".join((*reader_lines(self), "", "", *writer_lines(self)))


def message_field(
    number: int, message: MessageDescriptor[Any], name: str, **more: Any
) -> MessageField:
    """Return a field with a message that has a description; *more* as in `MessageField`."""
    return MessageField(number, FieldKind.MESSAGE, name, message=message, **more)


def elements_field(number: int, name: str, element: int) -> MessageField:
    """Return a field with elements of a tensor, packed or each with the wire type *element*."""
    return MessageField(number, FieldKind.ELEMENTS, name, element=element)


@accelerated
def described_reader(descriptor: MessageDescriptor[T]) -> DescribedReader[T]:
    """Return the reader of a message."""
    return generate_reader(descriptor)


def generate_reader(descriptor: MessageDescriptor[T]) -> DescribedReader[T]:
    """Return the generated reader, in Python."""
    names: dict[str, Any] = {"make": descriptor.make, "elements": element_tags(descriptor.fields)}
    names |= {f"read_{each.name}": each.message.read for each in descriptor.fields if each.message}
    elements = [each for each in descriptor.fields if each.kind is FieldKind.ELEMENTS]
    names["texts"] = {each.number for each in elements if each.element == wire_format.LEN}
    reader: DescribedReader[T] = _compiled(
        f"{descriptor.name} reader", reader_lines(descriptor), names
    )
    return reader


def generate_writer(descriptor: MessageDescriptor[Any]) -> Writer:
    """Return the generated writer."""
    writer: Writer = _compiled(f"{descriptor.name} writer", writer_lines(descriptor), {})
    return writer


def _compiled(title: str, lines: Sequence[str], names: dict[str, Any]) -> Any:
    """Compile one function; tracebacks show its source."""
    file = f"<{title}>"
    source = "\n".join(lines) + "\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {**_RUNTIME, **names}
    exec(compile(source, file, "exec"), scope)  # noqa: S102  # of our own text, as dataclasses do
    return scope[lines[0].split()[1].partition("(")[0]]


# The reader.

_READ_VALUES: Final = {
    FieldKind.TEXT: "text(value, {what!r})",
    FieldKind.VIEW: "value",
    FieldKind.BOOL: "value != 0",
    FieldKind.INT32: "int32(value)",
    FieldKind.INT64: "int64(value)",
    FieldKind.MESSAGE: "read_{name}((value,), limits, counter)",
}
_DEFAULTS: Final = {
    FieldKind.TEXT: "''",
    FieldKind.VIEW: "EMPTY",
    FieldKind.BOOL: "False",
    FieldKind.MAP: "{}",
}
_LISTS: Final = (FieldKind.CLOSED, FieldKind.MESSAGE)
_VARINTS: Final = (FieldKind.BOOL, FieldKind.INT32, FieldKind.INT64)


def reader_lines(descriptor: MessageDescriptor[Any]) -> list[str]:
    """Return the lines of a reader: defaults, a loop over the fields, checks, and the value."""
    fields = [each for each in descriptor.fields if each.kind is not FieldKind.ELEMENTS]
    has_elements = len(fields) < len(descriptor.fields)
    most = f"{descriptor.limit}" + (f" + limits.{descriptor.more}" if descriptor.more else "")
    lines = ["def read(views, limits, counter=None):"]
    lines += [f"    {each.name}_ = {_default(each)}" for each in fields]
    lines += ["    found = {}"] if has_elements else []
    lines += ["    for view in views:"]
    if not descriptor.limit:
        lines += ["        remaining = MAX_FIELDS if counter is None else counter.remaining"]
    scan = f"fields(view, {most})" if descriptor.limit else "fields(view, remaining, counter)"
    lines += [f"        for key, value in {scan}:"]
    for word, each in zip(("if", *["elif"] * len(fields)), fields, strict=False):
        lines += [f"            {word} key == {each.tag}:"]
        lines += [f"                {line}" for line in _occurrence_lines(each, fields)]
    if has_elements:
        lines += [
            "            else:",
            "                number = elements.get(key)",
            "                is_empty = key & 7 == LEN and number not in texts and not len(value)",
            "                if number is not None and not is_empty:",
            "                    found.setdefault(number, []).append(value)",
        ]
    for each in fields:
        if each.most[1]:
            words, limit = each.most
            count = f"{words!r}, len({each.name}_), limits.{limit}, {limit!r}"
            lines += [f"    check_count({count})"]
    values = [_result(each) for each in fields] + (["found"] if has_elements else [])
    return [*lines, f"    return make({', '.join(values)})"]


def _default(field: MessageField) -> str:
    if field.choice:
        return "None"
    if field.repeated or field.kind in _LISTS:
        return "[]"
    return _DEFAULTS.get(field.kind, "0")


def _occurrence_lines(field: MessageField, fields: Sequence[MessageField]) -> list[str]:
    """Return what a reader does with one occurrence of a field."""
    name = f"{field.name}_"
    lines = [
        f"{each.name}_ = None"
        for each in fields
        if field.choice and each.choice == field.choice and each is not field
    ]
    check = f"check_name({field.what!r}, {{}}, limits.{field.text_limit}, {field.text_limit!r})"
    if field.kind is FieldKind.MAP:
        lines += [f"name, item = map_entry(value, {field.what!r})"]
        lines += [check.format("name")] if field.text_limit else []
        return [*lines, f"{name}[name] = item"]
    if field.kind in _LISTS and not field.repeated:
        lines += [f"{name} = {name} or []"] if field.choice else []
        return [*lines, f"{name}.append(value)"]
    value = _READ_VALUES[field.kind].format(name=field.name, what=field.what)
    if field.repeated:
        return [*lines, f"{name}.append({value})"]
    return [*lines, f"{name} = {value}", *([check.format(name)] if field.text_limit else [])]


def _result(field: MessageField) -> str:
    """Return the value of a field, once all occurrences are known."""
    if field.kind is not FieldKind.MESSAGE or field.repeated:
        return f"{field.name}_"
    read = f"read_{field.name}({field.name}_, limits, counter)"
    return f"{field.name}_ and {read}" if field.choice else read


def element_tags(fields: Sequence[MessageField]) -> dict[int, int]:
    """Return the numbers of the fields with elements by their tags, packed and not."""
    found = [each for each in fields if each.kind is FieldKind.ELEMENTS]
    return {
        wire_format.tag(each.number, wire_type): each.number
        for each in found
        for wire_type in (wire_format.LEN, each.element)
    }


# The writer.

_WRITES: Final = {
    FieldKind.TEXT: "put_text({head}, {key}, {value})",
    **dict.fromkeys(_VARINTS, "put_varint({head}, {key}, {value})"),
    FieldKind.MAP: "put_entry(_parts, {key}, *{value})",
}


def writer_lines(descriptor: MessageDescriptor[Any]) -> list[str]:
    """Return the lines of a writer, which writes the fields in the order of their numbers."""
    fields = [each for each in descriptor.fields if each.kind is not FieldKind.ELEMENTS]
    arguments = ", ".join(f"{each.name}=None" for each in fields)
    lines = [f"def write({arguments}):", "    _head = bytearray()", "    _parts = [_head]"]
    head = "_head"
    for each in sorted(fields):
        is_many = each.repeated or each.kind is FieldKind.MAP
        has_presence = each.choice or each.kind in _LISTS
        value = "_item" if is_many else each.name
        write = _WRITES.get(each.kind, "put_value(_parts, {key}, {value})")
        if is_many:
            lines += [f"    for _item in {each.name} or ():"]
        else:
            lines += [f"    if {each.name}{' is not None' if has_presence else ''}:"]
        written = write.format(head=head, key=wire_format.varint(each.tag), value=value)
        lines += [f"        {written}"]
        if "_parts" in write:  # another head may follow large values
            head = "head_of(_parts)"
    return [*lines, "    return _parts"]


def _put_value(parts: Parts, key: bytes, value: Buffer | Parts) -> None:
    """Write a message in parts, or bytes, which stay where they are unless they are few."""
    if type(value) is list:
        wire_format.put_message(parts, key, value)
    else:
        wire_format.put_tail(parts, key, memoryview(value))  # type: ignore[arg-type]  # not a list


def _put_entry(parts: Parts, key: bytes, name: str, value: Buffer | Parts) -> None:
    """Write an entry of a map, which always has both fields."""
    head = bytearray()
    wire_format.put_text(head, b"\n", name)
    entry: Parts = [head]
    _put_value(entry, b"\x12", value)
    wire_format.put_message(parts, key, entry)


_RUNTIME: Final = {
    "EMPTY": memoryview(b""),
    "LEN": wire_format.LEN,
    "MAX_FIELDS": wire_format.MAX_FIELDS,
    "check_count": check_count,
    "check_name": check_name,
    "fields": wire_format.fields,
    "head_of": wire_format.head_of,
    "int32": wire_format.int32,
    "int64": wire_format.int64,
    "map_entry": wire_format.map_entry,
    "put_entry": _put_entry,
    "put_text": wire_format.put_text,
    "put_value": _put_value,
    "put_varint": wire_format.put_varint,
    "text": wire_format.text,
}
"""What the generated functions call."""
