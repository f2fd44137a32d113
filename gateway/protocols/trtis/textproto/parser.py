"""Reads protobuf's text format on one line: NV-InferRequest and related headers.

The parser reads any message of the schema.  Unknown fields are an error, or are skipped as by the
library.  `infer_request_header.py` and `infer_response.py` have the meaning of the messages.
The library is not used, because it runs a regular expression for each token and does not limit the
depth.

The accepted language is that of `google.protobuf.text_format.Parse(..., allow_unknown_field=True)`
for a text without line breaks, which no header value has; tests compare both.  Escapes in strings
are those of the language's definition: Python's library keeps an unknown one unchanged, and this
parser refuses it, as the C++ library of the real server does.

Source: Protocol Buffers, "Text Format Language Specification".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gateway.ir.errors import MalformedMessage
from gateway.protocols.trtis.textproto.scalars import (
    RANGES,
    TextError,
    enum_value,
    float_value,
    is_number,
    ranged,
    unescaped,
)
from gateway.schema import tensorrt_v1_pb2 as pb

MAX_DEPTH = 16

M = TypeVar("M", bound=Message)

# Blanks and comments, then one token: identifier, number, string, any other character, the end.
_TOKEN = re.compile(
    r"""\s*(?:\#.*\s*)*(
        [a-zA-Z_][0-9a-zA-Z_+-]*
      | (?:[0-9+-]|\.[0-9])[0-9a-zA-Z_.+-]*
      | "[^"\\\n]*(?:\\.[^"\\\n]*)*(?:"|\\?$)
      | '[^'\\\n]*(?:\\.[^'\\\n]*)*(?:'|\\?$)
      | .
      | $
    )""",
    re.VERBOSE,
)
_NAME = re.compile(r"\w+")
_IDENTIFIER = re.compile(r"[^\d\W]\w*")
_QUOTES = ("'", '"')
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class _Field:
    """What the parser needs of a field.

    Attributes:
        value: Reads a scalar from a token; None for a message and for text.
        message: Full name of its message type; None for a scalar.
    """

    name: str
    is_repeated: bool
    value: Callable[[str], Any] | None
    message: str | None


def parse_text(
    text: str, kind: type[M], *, allow_unknown: bool = False, is_strict: bool = False
) -> M:
    """Read *text* as a message of *kind*.

    Args:
        text: The text of one line.
        kind: One of the three that headers contain.
        allow_unknown: Skip fields that the message does not have.
        is_strict: A field that occurs twice is an error after its default, too.

    Raises:
        MalformedMessage: It is not in text format, does not fit the message, or is more than
            `MAX_DEPTH` messages deep.
    """
    message = kind()
    try:
        _TextReader(text, allow_unknown, is_strict).read(message)
    except ValueError as error:
        name = kind.DESCRIPTOR.name
        raise MalformedMessage(f"text is not {name} in text format: {error}") from error
    return message


class _TextReader:
    """Reads the tokens of one text; "" is the token at its end."""

    def __init__(self, text: str, allow_unknown: bool, is_strict: bool) -> None:
        self._allow_unknown = allow_unknown
        # Fields that were there, with the number of their message.
        self._once: set[tuple[int, str]] | None = set() if is_strict else None
        self._tokens = _TOKEN.findall(text)
        self._at = 0
        self._depth = 1
        self._message_number = 0
        self._fields: Mapping[str, _Field] = {}

    def read(self, message: Message) -> None:
        """Read fields to the end of the text."""
        self._fields = _TABLES[message.DESCRIPTOR.full_name]
        while self._tokens[self._at]:
            self._field(message)

    def _try(self, token: str) -> bool:
        if self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _need(self, token: str) -> None:
        if not self._try(token):
            raise self._unexpected(repr(token))

    def _unexpected(self, needed: str) -> TextError:
        found = self._tokens[self._at]
        what = repr(found[:_SHOWN]) if found else "the end"
        return TextError(f"found {what} as token {self._at + 1}: expected {needed}")

    def _field(self, message: Message) -> None:
        token = self._tokens[self._at]
        if not _NAME.match(token):
            raise self._unexpected("a field's name")
        self._at += 1
        field = self._fields.get(token)
        if field is None:
            if not self._allow_unknown:
                name = message.DESCRIPTOR.name
                raise TextError(f"{name} has no field {token[:_SHOWN]!r}")
            self._skip_contents()
        else:
            if field.message is None:
                self._need(":")
                merge: Callable[[Message, _Field], None] = self._scalar
            else:
                self._try(":")
                merge = self._message
            if field.is_repeated and self._try("["):
                self._list(lambda: merge(message, field))
            else:
                merge(message, field)
        self._separator()

    def _separator(self) -> None:
        """Skip one comma or semicolon between fields."""
        if self._tokens[self._at] in (",", ";"):
            self._at += 1

    def _list(self, element: Callable[[], None]) -> None:
        """Read the elements of a list whose bracket is open."""
        if self._try("]"):
            return
        while True:
            element()
            if self._try("]"):
                return
            self._need(",")

    def _opened(self) -> str:
        """Read a message's opening bracket; return its closing one."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TextError(f"messages are more than {MAX_DEPTH} deep")
        if self._try("<"):
            return ">"
        self._need("{")
        return "}"

    def _message(self, message: Message, field: _Field) -> None:
        end = self._opened()
        if field.is_repeated:
            inner = getattr(message, field.name).add()
        else:
            if message.HasField(field.name):
                raise TextError(f"field {field.name!r} occurs twice")
            inner = getattr(message, field.name)
            inner.SetInParent()
        outer, self._fields = self._fields, _TABLES[field.message or ""]
        number, self._message_number = self._message_number, self._at
        while not self._try(end):
            self._field(inner)
        self._fields, self._message_number = outer, number
        self._depth -= 1

    def _scalar(self, message: Message, field: _Field) -> None:
        if field.value is None:
            value: Any = self._string().decode()
        else:
            value = field.value(self._tokens[self._at])
            self._at += 1
        if field.is_repeated:
            getattr(message, field.name).append(value)
            return
        # As in the library, which detects only values that differ from the default.
        is_twice = bool(getattr(message, field.name))
        if self._once is not None:
            place = (self._message_number, field.name)
            is_twice = is_twice or place in self._once
            self._once.add(place)
        if is_twice:
            raise TextError(f"field {field.name!r} occurs twice")
        setattr(message, field.name, value)

    def _string(self) -> bytes:
        """Read a string, which may have several parts."""
        token = self._tokens[self._at]
        if token[:1] not in _QUOTES or not token:
            raise self._unexpected("a string")
        pieces = []
        while token and token[0] in _QUOTES:
            if len(token) < len('""') or token[-1] != token[0]:
                raise self._unexpected("a string with its closing quote")
            pieces.append(unescaped(token[1:-1]))
            self._at += 1
            token = self._tokens[self._at]
        return b"".join(pieces)

    def _skip_contents(self) -> None:
        """Skip the value of an unknown field."""
        if not self._try(":") or self._tokens[self._at] in ("{", "<"):
            self._skip_message()
        elif self._try("["):
            self._list(self._skip_element)
        else:
            self._skip_value()

    def _skip_element(self) -> None:
        if self._tokens[self._at] in ("{", "<"):
            self._skip_message()
        else:
            self._skip_value()

    def _skip_message(self) -> None:
        end = self._opened()
        while self._tokens[self._at] not in (">", "}"):
            self._skip_field()
        self._need(end)
        self._depth -= 1

    def _skip_field(self) -> None:
        if self._try("["):
            self._skip_extension_name()
        elif _NAME.match(self._tokens[self._at]):
            self._at += 1
        else:
            raise self._unexpected("a field's name")
        self._skip_contents()
        self._separator()

    def _skip_extension_name(self) -> None:
        """Skip `package.name]` or, in its short form, the type of an Any."""
        parts = self._dotted()
        if parts == len(("type", "googleapis", "com")) and self._try("/"):
            self._dotted()
        self._need("]")

    def _dotted(self) -> int:
        parts = 0
        while True:
            if not _IDENTIFIER.match(self._tokens[self._at]):
                raise self._unexpected("an identifier")
            self._at += 1
            parts += 1
            if not self._try("."):
                return parts

    def _skip_value(self) -> None:
        token = self._tokens[self._at]
        if token[:1] in _QUOTES and token:
            self._string()
            return
        if not _IDENTIFIER.match(token) and not is_number(token):
            raise self._unexpected("a value")
        self._at += 1


def _read_value(field: Any) -> Callable[[str], Any] | None:
    if field.type == FieldDescriptor.TYPE_STRING:
        return None
    if field.type == FieldDescriptor.TYPE_ENUM:
        enum = field.enum_type
        return enum_value(enum.name, {value.name: value.number for value in enum.values})
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return float_value
    return ranged(*RANGES[field.type])


def _described(field: Any) -> _Field:
    message = field.message_type
    return _Field(
        name=field.name,
        is_repeated=field.is_repeated,
        value=None if message is not None else _read_value(field),
        message=None if message is None else message.full_name,
    )


def _tables(*kinds: type[Message]) -> Mapping[str, Mapping[str, _Field]]:
    """Describe messages and their nested messages: by full name, their fields by name."""
    tables: dict[str, Mapping[str, _Field]] = {}
    remaining = [kind.DESCRIPTOR for kind in kinds]
    while remaining:
        descriptor = remaining.pop()
        tables[descriptor.full_name] = {
            field.name: _described(field) for field in descriptor.fields
        }
        remaining += [field.message_type for field in descriptor.fields if field.message_type]
    return MappingProxyType(tables)


_TABLES = _tables(pb.InferRequestHeader, pb.InferResponseHeader, pb.RequestStatus)
