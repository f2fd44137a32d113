"""Protobuf's wire format: find the fields of a message and write them, without copying tensors.

This module scans fields, reads and writes scalars, and builds messages as a small head and raw
tails.  `packed.py` has packed arrays; codecs know the meaning of fields.  No generated
message is used, because it would copy every tensor; a scan costs the same for any size.

A *tag* is ``field number << 3 | wire type``, so comparing one int checks both.  `fields` accepts
what protobuf's own parser accepts, except field number 0 (which that parser takes in an unknown
field) and more fields than *limit*.  Groups are skipped, 100 deep at most.

Source: Protocol Buffers, "Encoding"; the corners follow the upb runtime, 5.29 to 7.36.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

VARINT: Final = 0
I64: Final = 1
LEN: Final = 2
SGROUP: Final = 3
EGROUP: Final = 4
I32: Final = 5

MAX_FIELDS: Final = 1 << 14
MAX_GROUPS: Final = 100
# Shorter values are copied into the head: one send of a few KB beats another buffer to carry.
TAIL_BYTES: Final = 4096

# An int for VARINT, else a view; the tag beside it says which, so a codec need not ask again.
Value: TypeAlias = Any
Field: TypeAlias = tuple[int, Value]
Parts: TypeAlias = list[bytearray | memoryview]

_MORE = 0x80
_LOW = 0x7F
_KIND = 7
_FIRST_LEN = 1 << 3 | LEN
_TAG_BYTES = 5
_VARINT_BYTES = 10
_TAG_END = 1 << 32
_SIZE_END = 1 << 31
_INT32_END = 1 << 31
_INT64_END = 1 << 63
_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1
_COPIED_BYTES = 4096
# So many fields of a long message are objects at a time.
_BLOCK: Final = 4096
_BYTE = tuple(bytes((value,)) for value in range(_MORE))
_ENTRY_KEY, _ENTRY_VALUE = 1 << 3 | LEN, 2 << 3 | LEN
_MAX_ENTRY_FIELDS = 64
_EMPTY = memoryview(b"")
_DOUBLE = struct.Struct("<d")


class WireError(ValueError):
    """Bytes that are not a protobuf message, or a value that protobuf cannot carry."""


class TooManyFields(WireError):
    """A message of more fields than its reader allows, which need not be wrong otherwise."""


class FieldCounter(Struct):
    """Bounds the fields of a whole message, those of its nested messages included.

    Attributes:
        remaining: Fields that are still allowed. A reader adds what a declared shape needs.
    """

    remaining: int = MAX_FIELDS


def tag(number: int, kind: int) -> int:
    """Combine a field number and a wire type, as `fields` reports them."""
    return number << 3 | kind


def fields(
    view: memoryview, limit: int = MAX_FIELDS, counter: FieldCounter | None = None
) -> list[Field]:
    """Find the fields of one message, in the order they were sent; nested ones stay closed.

    Args:
        view: One message; contiguous, of unsigned bytes.
        limit: Fields allowed, those in groups included.  A field of two bytes costs 250 here, so a
            stranger's message must not decide.
        counter: Of the message that this one is a part of; it bounds the fields too.

    Returns:
        Pairs of tag and value: VARINT an int from 0 to 2**64 - 1, I32 and I64 a view of 4 or 8
        bytes, LEN a view of the contents, SGROUP a view of what stands between its tags.
        Views share *view*'s memory.

    Raises:
        WireError: The bytes are no message.
        TooManyFields: They have more fields than *limit*, or than *counter* has left.
    """
    found: list[Field] = []
    most = limit if counter is None else min(limit, counter.remaining)
    remaining = most  # without those in groups
    end = len(view)
    # Indexing bytes is faster than indexing a view; large messages are mostly one jump anyway.
    data = bytes(view) if end <= _COPIED_BYTES else view
    at = 0
    try:
        while at < end:
            if len(found) >= remaining:
                raise TooManyFields(f"message has more than {most} fields")
            # A field takes two bytes at least: up to `stop` the limit cannot be passed.
            stop = min(end, at + 2 * (remaining - len(found)))
            while at < stop:
                key = data[at]
                size = data[at + 1]
                if key & _KIND == LEN and _FIRST_LEN <= key < _MORE > size:
                    start = at + 2
                    at = start + size
                    found.append((key, view[start:at]))
                elif key & _KIND == SGROUP:
                    at, inside = _group(view, data, at, found, remaining - len(found))
                    remaining -= inside
                    break
                else:
                    at = _field(view, data, at, found)
    except IndexError:
        at = end + 1
    if at > end:
        raise WireError(f"message of {end} bytes ends inside a field")
    if counter is not None:
        counter.remaining -= len(found) + most - remaining
    return found


def field_blocks(
    view: memoryview, limit: int, counter: FieldCounter | None = None
) -> Iterator[list[Field]]:
    """Yield the fields of one message some at a time, which takes little memory.

    Args:
        view: The bytes of the message.
        limit: Likewise.
        counter: Likewise.

    Raises:
        WireError: The bytes are no message.
        TooManyFields: They have more fields than *limit*, or than *counter* has left.
    """
    at, count, end = 0, 0, len(view)
    limit = limit if counter is None else min(limit, counter.remaining)
    while at < end:
        found: list[Field] = []
        inside = 0
        try:
            while at < end and len(found) + inside < _BLOCK:
                key, size = view[at], view[at + 1]
                if key & _KIND == LEN and _FIRST_LEN <= key < _MORE > size:
                    start = at + 2
                    at = start + size
                    found.append((key, view[start:at]))
                elif key & _KIND == SGROUP:
                    at, more = _group(view, view, at, found, limit - count)
                    inside += more
                else:
                    at = _field(view, view, at, found)
        except IndexError:
            at = end + 1
        if at > end:
            raise WireError(f"message of {end} bytes ends inside a field")
        count += len(found) + inside
        if count > limit:
            raise TooManyFields(f"message has more than {limit} fields")
        yield found
    if counter is not None:
        counter.remaining -= count


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read the varint at byte *at*; give its value, cut to 64 bits, and the place after it."""
    try:
        return _varint(data, at)
    except IndexError:
        raise WireError(f"varint at byte {at} does not end") from None


def text(view: memoryview, what: str) -> str:
    """Decode a string field; *what* names it in the error.  Copies."""
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from error


def map_entry(view: memoryview, what: str) -> tuple[str, memoryview]:
    """Return key and value of an entry of a map of messages; *what* names the key in errors.

    Either may be missing.
    """
    name, message = "", _EMPTY
    for key, value in fields(view, _MAX_ENTRY_FIELDS):
        if key == _ENTRY_KEY:
            name = text(value, what)
        elif key == _ENTRY_VALUE:
            message = value
    return name, message


def int64(value: int) -> int:
    """Read a varint as int64."""
    return value if value < _INT64_END else value - (1 << 64)


def uint32(value: int) -> int:
    """Read a varint as uint32: the low half, whatever stands above."""
    return value & _MASK32


def int32(value: int) -> int:
    """Read a varint as int32 or an enum: the low half, whatever stands above."""
    value &= _MASK32
    return value if value < _INT32_END else value - (1 << 32)


def float64(view: memoryview) -> float:
    """Read an I64 value of `fields` as double."""
    return float(_DOUBLE.unpack(view)[0])


def int64s(view: memoryview) -> list[int]:
    """Read one packed occurrence of a short repeated int64 field, such as a shape."""
    data = bytes(view)
    if data.isascii():  # every varint is one byte long
        return list(data)
    values = []
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        values.append(int64(value))
    return values


def varint(value: int) -> bytes:
    """Encode an integer from -2**63 to 2**64 - 1; negative ones take ten bytes.

    Raises:
        WireError: The value is outside.
    """
    if 0 <= value < _MORE:
        return _BYTE[value]
    if not -_INT64_END <= value <= _MASK64:
        raise WireError(f"integer {value} does not fit 64 bits")
    value &= _MASK64
    out = bytearray()
    while value >= _MORE:
        out.append(value & _LOW | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_varint(head: bytearray, key: bytes, value: int) -> None:
    """Write an integer, enum or boolean; *key* is ``varint(tag(number, VARINT))``."""
    head += key
    head += varint(value)


def put_bytes(head: bytearray, key: bytes, data: bytes | bytearray | memoryview) -> None:
    """Write a bytes field or a closed message, copied; *key* is of kind LEN."""
    size = len(data)
    head += key
    head += _BYTE[size] if size < _MORE else varint(size)
    head += data


def put_text(head: bytearray, key: bytes, value: str) -> None:
    """Write a string field.

    Raises:
        WireError: The string has lone surrogates, so no UTF-8 form.
    """
    try:
        put_bytes(head, key, value.encode())
    except UnicodeEncodeError as error:
        raise WireError(f"text is not UTF-8: {error.reason} at {error.start}") from error


def put_int64s(head: bytearray, key: bytes, values: Iterable[int]) -> None:
    """Write a short repeated integer field packed, such as a shape; *key* is of kind LEN."""
    put_bytes(head, key, b"".join(map(varint, values)))


def put_double(head: bytearray, key: bytes, value: float) -> None:
    """Write a double; *key* is of kind I64."""
    head += key
    head += _DOUBLE.pack(value)


def put_tail(parts: Parts, key: bytes, data: memoryview) -> None:
    """Write a LEN field whose contents stay where they are, unless they are small.

    Args:
        parts: The message so far; its last bytearray grows.
        key: ``varint(tag(number, LEN))``.
        data: Contiguous, of unsigned bytes; must not change until the message is sent.
    """
    head = head_of(parts)
    size = len(data)
    head += key
    head += _BYTE[size] if size < _MORE else varint(size)
    if size <= TAIL_BYTES:
        head += data
    else:
        parts.append(data)


def put_tail_head(parts: Parts, key: bytes, size: int) -> None:
    """Write a LEN field whose contents, of *size* bytes, follow all of *parts*."""
    head = head_of(parts)
    head += key
    head += varint(size)


def put_message(parts: Parts, key: bytes, inner: Parts) -> None:
    """Write a nested message made of parts: heads are copied, tails carried over."""
    head = head_of(parts)
    head += key
    head += varint(size_bytes(inner))
    for part in inner:
        if isinstance(part, bytearray):
            head_of(parts).extend(part)
        else:
            parts.append(part)


def size_bytes(parts: Parts) -> int:
    """Count the bytes of a message in parts; nothing is joined."""
    return sum(map(len, parts))


def head_of(parts: Parts) -> bytearray:
    """Return the bytearray at the end of *parts*; add one when a tail stands there."""
    if parts:
        last = parts[-1]
        if type(last) is bytearray:
            return last
    head = bytearray()
    parts.append(head)
    return head


def _field(view: memoryview, data: bytes | memoryview, at: int, found: list[Field]) -> int:
    """Append the field at *at*, of any size and kind but a group; give the place after it."""
    key, at = _tag(data, at)
    kind = key & _KIND
    if kind == VARINT:
        value, at = _varint(data, at)
        found.append((key, value))
        return at
    at, stop = _span(data, at, kind)
    found.append((key, view[at:stop]))
    return stop


def _group(
    view: memoryview, data: bytes | memoryview, at: int, found: list[Field], most: int
) -> tuple[int, int]:
    """Append the group at *at*; give the place after it and the number of fields in it."""
    key, at = _tag(data, at)
    begin = at
    opened = [key]
    stop = at
    inside = 0
    while opened:
        stop = at
        inner, at = _tag(data, at)
        kind = inner & _KIND
        if kind == EGROUP:
            if opened.pop() >> 3 != inner >> 3:
                raise WireError(f"end of group {inner >> 3} where another group is open")
            continue
        inside += 1
        if inside >= most:
            raise TooManyFields(f"group has more than {most} fields")
        if kind == SGROUP:
            opened.append(inner)
            if len(opened) > MAX_GROUPS:
                raise WireError(f"groups stand more than {MAX_GROUPS} deep")
        elif kind == VARINT:
            _, at = _varint(data, at)
        else:
            _, at = _span(data, at, kind)
    found.append((key, view[begin:stop]))
    return at, inside


def _span(data: bytes | memoryview, at: int, kind: int) -> tuple[int, int]:
    """Give start and end of the LEN, I32 or I64 value at *at*; the end lies within *data*."""
    if kind == LEN:
        size, at = _short(data, at, _SIZE_END)
    elif kind == I32:
        size = 4
    elif kind == I64:
        size = 8
    else:
        raise WireError(f"wire type {kind} where a field should begin")
    if at + size > len(data):
        raise WireError(f"field of {size} bytes where {len(data) - at} are left")
    return at, at + size


def _tag(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read a tag; field numbers run from 1 to 2**29 - 1."""
    key, after = _short(data, at, _TAG_END)
    if key <= _KIND:
        raise WireError(f"field number 0 at byte {at}")
    return key, after


def _short(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Read a varint of five bytes at most and less than *end*: a tag or a size."""
    value, after = _varint(data, at)
    if after - at > _TAG_BYTES or value >= end:
        raise WireError(f"tag or size at byte {at} is {value} in {after - at} bytes")
    return value, after


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read a varint of ten bytes at most, cut to 64 bits; IndexError when it does not end."""
    value = data[at]
    if value < _MORE:
        return value, at + 1
    value &= _LOW
    for shift in range(7, 7 * _VARINT_BYTES, 7):
        at += 1
        byte = data[at]
        value |= (byte & _LOW) << shift
        if byte < _MORE:
            return value & _MASK64, at + 1
    raise WireError(f"varint before byte {at + 1} is longer than {_VARINT_BYTES} bytes")
