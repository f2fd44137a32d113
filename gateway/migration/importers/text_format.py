"""Reads protobuf's text format into a tree of fields with their lines, for `config.pbtxt`.

It needs no schema: an importer names the fields that it does not know.

Source: Protocol Buffers, "Text Format Language Specification".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<skip>[ \t\r,;]+|\#[^\n]*)|(?P<line>\n)|(?P<name>[A-Za-z_][\w.]*)
    |(?P<number>[+-]?[0-9.][\w.+-]*)|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[:{}\[\]<>])""",
    re.VERBOSE,
)
_MAX_DEPTH: Final = 32


class MalformedText(ValueError):
    """A text is not in text format; the message has the line."""


@dataclass(slots=True)
class TextField:
    """One field.

    Attributes:
        value: The text of a scalar; "" for a message.
        fields: The fields of a message; none for a scalar.
        line: Line of its name, from 1.
    """

    name: str
    line: int
    value: str = ""
    fields: list[TextField] = field(default_factory=list)

    def all(self, name: str) -> list[TextField]:
        """Return the fields of a name, in order."""
        return [each for each in self.fields if each.name == name]

    def text(self, name: str, default: str = "") -> str:
        """Return the last scalar of a name."""
        found = self.all(name)
        return found[-1].value if found else default

    def number(self) -> int:
        """Return the value as a whole number.

        Raises:
            MalformedText: It is none.
        """
        try:
            return int(self.value)
        except ValueError as error:
            text = f"line {self.line}: {self.name} is {self.value!r}; expected a whole number"
            raise MalformedText(text) from error

    def integer(self, name: str, default: int) -> int:
        """Return the last value of a name as a whole number.

        Raises:
            MalformedText: It is none.
        """
        found = self.all(name)
        return found[-1].number() if found else default

    def values(self, name: str) -> list[str]:
        """Return all scalars of a repeated field."""
        return [each.value for each in self.all(name)]


def parse_fields(text: str) -> TextField:
    """Return the message that *text* is.

    Raises:
        MalformedText: It is not in text format, or nested deeper than 32 messages.
    """
    root = TextField("", 1)
    tokens = list(_tokens(text))
    end = _read(tokens, 0, root, "", 0)
    if end != len(tokens):
        raise MalformedText(f"line {tokens[end][2]}: unexpected {tokens[end][1]!r}")
    return root


Token = tuple[str, str, int]


def _tokens(text: str) -> Iterator[Token]:
    position, line = 0, 1
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise MalformedText(f"line {line}: unexpected {text[position]!r}")
        position = found.end()
        kind = found.lastgroup or ""
        if kind == "line":
            line += 1
        elif kind != "skip":
            yield kind, found[0], line


def _read(tokens: list[Token], at: int, into: TextField, end: str, depth: int) -> int:
    """Read fields up to the mark *end*, and return the position after it."""
    if depth > _MAX_DEPTH:
        raise MalformedText(f"line {into.line}: nested deeper than {_MAX_DEPTH}")
    while at < len(tokens):
        kind, text, line = tokens[at]
        if kind == "mark" and text == end:
            return at + 1
        if kind != "name":
            raise MalformedText(f"line {line}: expected the name of a field, got {text!r}")
        at = _read_value(tokens, at + 1, TextField(text, line), into, depth)
    if end:
        raise MalformedText(f"line {into.line}: {into.name!r} is not closed by {end!r}")
    return at


def _read_value(tokens: list[Token], at: int, made: TextField, into: TextField, depth: int) -> int:
    """Read the value of a field, or a list of values, into the message."""
    if _mark(tokens, at) == ":":
        at += 1
    if _mark(tokens, at) == "[":
        at += 1
        while _mark(tokens, at) != "]":
            at = _read_one(tokens, at, TextField(made.name, made.line), into, depth)
        return at + 1
    return _read_one(tokens, at, made, into, depth)


def _mark(tokens: list[Token], at: int) -> str:
    return tokens[at][1] if at < len(tokens) and tokens[at][0] == "mark" else ""


def _read_one(tokens: list[Token], at: int, made: TextField, into: TextField, depth: int) -> int:
    if at >= len(tokens):
        raise MalformedText(f"line {made.line}: {made.name!r} has no value")
    kind, text, line = tokens[at]
    into.fields.append(made)
    if text in {"{", "<"} and kind == "mark":
        return _read(tokens, at + 1, made, "}" if text == "{" else ">", depth + 1)
    if kind == "mark":
        raise MalformedText(f"line {line}: expected a value of {made.name!r}, got {text!r}")
    made.value = text
    at += 1
    if kind == "text":
        made.value = _unquoted(text, line)
        while at < len(tokens) and tokens[at][0] == "text":  # adjacent strings are one
            made.value += _unquoted(tokens[at][1], tokens[at][2])
            at += 1
    return at


def _unquoted(text: str, line: int) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError) as error:
        raise MalformedText(f"line {line}: invalid string {text[:40]}") from error
