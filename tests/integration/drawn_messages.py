"""Draws messages like given ones, and odd ones that readers may read differently.

It also has readers of JSON and of protobuf by which the first or the last of equal keys counts.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from gateway.registry import protocol
from gateway.wire.protobuf.wire_format import (
    I32,
    I64,
    LEN,
    SGROUP,
    VARINT,
    fields,
    read_varint,
    tag,
    varint,
)

OTHER = "secret"
_UNKNOWN = 900
_REPEATED = 3
_SPACES = ("", "", "", " ", "\n", " \t")
Schema = tuple[Descriptor, Descriptor]


@cache
def schemas(name: str) -> Mapping[str, Schema]:
    """Return the messages of each method of a protocol, by its path."""
    binding = protocol(name).grpc
    return {} if binding is None else binding.message_types()


# Messages that say more than a given one, in other words.


def drawn_json(rng: Random, body: bytes) -> bytes:
    """Return a text of JSON with more members, in another order and another spelling."""
    return _written(rng, json.loads(body)).encode()


def _written(rng: Random, value: Any, depth: int = 0) -> str:
    space = rng.choice(_SPACES)
    if isinstance(value, dict):
        members = list(value.items())
        if rng.random() < 0.3 and depth < 3:
            members.append((f"own {rng.random()}", _any_value(rng, depth)))
        rng.shuffle(members)
        inner = [
            f"{_text(rng, key)}:{space}{_written(rng, each, depth + 1)}" for key, each in members
        ]
        return "{" + f",{space}".join(inner) + space + "}"
    if isinstance(value, list):
        return "[" + space + ",".join([_written(rng, each, depth + 1) for each in value]) + "]"
    if isinstance(value, str):
        return _text(rng, value)
    if isinstance(value, float) and value in (0.5, 1.0, 2.0, 2.5):
        return rng.choice((repr(value), f"{value}00", f"{value * 10:.1f}e-1", f"{value}e+0"))
    return json.dumps(value)


def _any_value(rng: Random, depth: int) -> Any:
    if depth < 3 and rng.random() < 0.3:
        return {rng.choice(string.ascii_letters): _any_value(rng, depth + 1)}
    return rng.choice(
        (None, True, 1.5, -7, 2**53, 1e-9, "", "text \u00e9 \U0001f600", [], {}, [[1], "a"])
    )


def _text(rng: Random, text: str) -> str:
    if text.isascii() and rng.random() < 0.2:
        return '"' + "".join(f"\\u{ord(each):04x}" for each in text) + '"'
    return json.dumps(text, ensure_ascii=rng.random() < 0.5)


def drawn_proto(rng: Random, body: bytes, message: Descriptor | None) -> bytes:
    """Return a message of protobuf with fields that the schema lacks, in another order."""
    pieces = [[piece] for piece in pieces_of(body, message, lambda *each: drawn_proto(rng, *each))]
    if rng.random() < 0.5:
        number, kind = _UNKNOWN + rng.randrange(90), rng.choice((VARINT, I64, LEN, I32))
        value = {
            VARINT: varint(rng.randrange(1 << 40)),
            I64: bytes(8),
            I32: b"\xff" * 4,
            LEN: b"\x04\xff\x00ow",
        }[kind]
        pieces.insert(rng.randrange(len(pieces) + 1), [(number, varint(tag(number, kind)) + value)])
    flat = [each for piece in pieces for each in piece]
    if rng.random() < 0.3:  # fields of one number keep their order
        flat.sort(key=lambda each: each[0] * 7 % 11)
    return b"".join(each for _, each in flat)


def pieces_of(
    body: bytes,
    message: Descriptor | None,
    inside: Callable[[bytes, Descriptor], bytes] = lambda body, _message: body,
) -> list[tuple[int, bytes]]:
    """Return the fields of a message of protobuf: number, and the bytes with tag.

    Args:
        body: The message.
        message: Its schema; None where all fields are unknown.
        inside: Returns what stands for a nested message.
    """
    found = []
    for key, value in fields(memoryview(body)):
        number, kind = key >> 3, key & 7
        text = varint(key)
        if kind == VARINT:
            text += varint(value)
        elif kind == LEN:
            field = None if message is None else message.fields_by_number.get(number)
            inner = bytes(value)
            if field is not None and field.message_type is not None and not _is_map(field):
                inner = inside(inner, field.message_type)
            text += varint(len(inner)) + inner
        else:
            text += bytes(value)
        found.append((number, text))
    return found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def drawn_text(rng: Random, text: str) -> str:
    """Return a text of protobuf with fields that the schema lacks."""
    more = ("own: 1", "own_list: [1, 'a']", "own { a: X b < c: -1.5 > }", "[own.name]: 2 # end")
    return f"{text}{rng.choice((' ', ', '))}{rng.choice(more[:3])}"


# Odd messages.


def odd_json(rng: Random, body: bytes) -> bytes:
    """Return a text of JSON with a key twice, or damaged."""
    if rng.random() < 0.3:
        return damaged(rng, body)
    places = [at for at in range(len(body)) if body[at : at + 1] == b"{"]
    rng.shuffle(places)
    for at in places:
        try:
            value, end = json.JSONDecoder().raw_decode(body[at:].decode())
        except ValueError:
            continue
        if not value:
            continue
        key, given = rng.choice(list(value.items()))
        again = f"{_text(rng, key)}:{json.dumps(_other_value(rng, given))}".encode()
        if rng.random() < 0.5:
            return body[: at + 1] + again + b"," + body[at + 1 :]
        last = at + len(body[at:].decode()[:end].encode()) - 1
        return body[:last] + b"," + again + body[last:]
    return damaged(rng, body)


def _other_value(rng: Random, value: Any) -> Any:
    if isinstance(value, str):
        return OTHER
    if isinstance(value, list) and value and rng.random() < 0.7:
        return [_other_value(rng, each) for each in value]
    if isinstance(value, dict) and value and rng.random() < 0.7:
        return {key: _other_value(rng, each) for key, each in value.items()}
    return rng.choice((9, [9.5], OTHER, None, {OTHER: 1}))


def damaged(rng: Random, body: bytes) -> bytes:
    """Return a message with a byte changed, left out or added, a part twice, or cut off."""
    at, size = rng.randrange(len(body) + 1), rng.randrange(1, 12)
    part = body[at : at + size]
    found = rng.choice(
        (
            body[:at],
            body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :],
            body[:at] + body[at + size :],
            body[:at] + part + body[at:],
            body + part,
            b"\xef\xbb\xbf" + body,
            body + body,
        )
    )
    return found or b"\0"


def odd_text(rng: Random, text: str) -> str:
    """Return a text of protobuf with a field twice, or damaged."""
    if rng.random() < 0.3:
        found = damaged(rng, text.encode()).decode("ascii", "replace")
        return "".join(each if " " <= each <= "~" else "?" for each in found)
    more = ("batch_size: 9", "id: 0", "id: 9", "flags: 1", 'name: "secret"', "batch_byte_size: 0")
    places = [at for at, each in enumerate(text) if each in " {}"]
    at = rng.choice([*places, len(text)])
    return f"{text[:at]} {rng.choice(more)} {text[at:]}"


def odd_proto(rng: Random, body: bytes, message: Descriptor | None) -> bytes:
    """Return a message of protobuf with a field twice, of another type, or a wrong length."""
    way = rng.randrange(10)
    if way == 0:
        return damaged(rng, body)
    pieces = pieces_of(body, message)
    nested = [
        at
        for at, (number, _) in enumerate(pieces)
        if message is not None
        and (field := message.fields_by_number.get(number)) is not None
        and field.message_type is not None
    ]
    if nested and rng.random() < 0.6 and message is not None:
        at = rng.choice(nested)
        number, text = pieces[at]
        inner = message.fields_by_number[number].message_type
        _, start = read_varint(text, 0)
        _, start = read_varint(text, start)
        changed = odd_proto(rng, text[start:], inner)
        pieces[at] = (number, varint(tag(number, LEN)) + varint(len(changed)) + changed)
        return b"".join(each for _, each in pieces)
    again = _again(rng, pieces, message)
    pieces.insert(rng.randrange(len(pieces) + 1), (0, again))
    return b"".join(each for _, each in pieces)


def _again(rng: Random, pieces: list[tuple[int, bytes]], message: Descriptor | None) -> bytes:
    """Return another value of a field that is there, or may be."""
    known = [] if message is None else [each.number for each in message.fields]
    number = rng.choice([*[number for number, _ in pieces], *known, 1])
    field = None if message is None else message.fields_by_number.get(number)
    kinds: dict[int, bytes] = {
        VARINT: varint(rng.choice((2, 3, 1 << 33, (1 << 64) - 1))),
        I64: b"\x01" * 8,
        I32: b"\x01" * 4,
        LEN: rng.choice((b"\x06secret", b"\x00", b"\x08\x0a\x06secret", b"\x7f", b"\x02\x0a\x05")),
        SGROUP: varint(number << 3 | 4),
    }
    kind = rng.choice(list(kinds))
    if field is not None and rng.random() < 0.7:
        kind = LEN if field.type in (9, 11, 12) else VARINT
    key = varint(tag(number, kind))
    if rng.random() < 0.1:
        key = key[:-1] + bytes([key[-1] | 0x80, 0])
    return key + kinds[kind]


# Readers.


def read_json(body: bytes, *, is_first: bool) -> Any:
    """Return a text of JSON, of whose equal keys the first or the last counts."""

    def member(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(reversed(pairs)) if is_first else dict(pairs)

    return json.loads(body, object_pairs_hook=member, parse_constant=str, parse_float=str)


_TOKENS = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w.+-]+|\#.*|\S)""")
_LISTS = frozenset({"input", "output", "dims"})


def read_text(text: str, *, is_first: bool) -> dict[str, Any]:
    """Return a text of protobuf, of whose equal fields the first or the last counts."""
    return _read_text(iter(_TOKENS.findall(text)), is_first)


def _read_text(tokens: Iterator[str], is_first: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = ""
    for token in tokens:
        if token in "}>":
            break
        if token in ":,;[]":
            continue
        value: Any = token
        if token in "{<":
            value = _read_text(tokens, is_first)
        elif not name:
            name = token
            continue
        if name in _LISTS:
            found.setdefault(name, []).append(value)
        elif not (is_first and name in found):
            found[name] = value
        name = ""
    return found


def read_proto(body: bytes, message: Descriptor, *, is_first: bool) -> dict[int, Any]:
    """Return a message of protobuf, of whose equal fields the first or the last counts."""
    found: dict[Any, Any] = {}
    for key, value in fields(memoryview(body)):
        field = message.fields_by_number.get(key >> 3)
        if field is None:
            continue
        read: Any = value if type(value) is int else bytes(value)
        if field.message_type is not None and key & 7 == LEN:
            read = read_proto(read, field.message_type, is_first=is_first)
        name: Any = field.number
        if _is_map(field):
            name = (field.number, read.get(1) or b"")
        elif getattr(field, "is_repeated", None) or getattr(field, "label", 0) == _REPEATED:
            found.setdefault(name, []).append(read)
            continue
        elif field.containing_oneof is not None:
            name, read = field.containing_oneof.name, (field.number, read)
        if not (is_first and name in found):
            found[name] = read
    return found
