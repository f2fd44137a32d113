"""The hand-written scanner against the protobuf library, over what both can be given.

The scanner knows no messages, so it is compared twice: on a message without fields, where the
library too only scans, and through `decoded` below, which reads messages by their descriptors
with nothing but `gateway.wire.protobuf.wire_format`.  It refuses one thing that the library takes: field
number 0 among unknown fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from gateway.schema import open_inference_pb2 as oip
from gateway.wire.protobuf import packed as arrays
from gateway.wire.protobuf import wire_format as pb

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message
    from hypothesis.strategies import DrawFn

F = FieldDescriptor
FIXED = {F.TYPE_FLOAT: ("<f4", pb.I32), F.TYPE_DOUBLE: ("<f8", pb.I64)}
VARINTS = {
    F.TYPE_BOOL: "?",
    F.TYPE_INT32: "<i4",
    F.TYPE_ENUM: "<i4",
    F.TYPE_UINT32: "<u4",
    F.TYPE_INT64: "<i8",
    F.TYPE_UINT64: "<u8",
}
STRANGE = "strange"
EMPTY: Any = oip.ServerLiveRequest
U64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
NUMBERS = st.integers(1, 9) | st.sampled_from([15, 16, 100, 2**29 - 1])


def padded(value: int, length: int) -> bytes:
    """Encode a varint in at least *length* bytes."""
    short = pb.varint(value)
    if len(short) >= length:
        return short
    filling = b"\x80" * (length - len(short) - 1) + b"\x00"
    return short[:-1] + bytes((short[-1] | 0x80,)) + filling


def any_tag(draw: DrawFn, number: int, kind: int) -> bytes:
    """Draw one of the encodings of a tag."""
    return padded(pb.tag(number, kind), draw(st.sampled_from([1, 1, 1, 2, 5])))


def sized(draw: DrawFn, data: bytes) -> bytes:
    """Draw one of the encodings of a length and what follows it."""
    return padded(len(data), draw(st.sampled_from([1, 1, 1, 3, 5]))) + data


@st.composite
def any_field(draw: DrawFn, depth: int = 2) -> bytes:
    """Draw a field of any number and wire type."""
    number = draw(NUMBERS)
    kind = draw(
        st.sampled_from([pb.VARINT, pb.LEN, pb.I32, pb.I64, pb.SGROUP][: 5 if depth else 4])
    )
    head = any_tag(draw, number, kind)
    if kind == pb.VARINT:
        return head + padded(draw(U64), draw(st.sampled_from([1, 1, 10])))
    if kind == pb.LEN:
        return head + sized(draw, draw(st.binary(max_size=200)))
    if kind == pb.SGROUP:
        inner = b"".join(draw(st.lists(any_field(depth - 1), max_size=3)))
        return head + inner + any_tag(draw, number, pb.EGROUP)
    size = 4 if kind == pb.I32 else 8
    return head + draw(st.binary(min_size=size, max_size=size))


@st.composite
def known_field(draw: DrawFn, field: Any, most: int = 5) -> bytes:
    """Draw one occurrence of *field*: packed or not, and messages in any of their forms."""
    if field.type == F.TYPE_MESSAGE:
        data = draw(any_message(field.message_type, most // 2))
    elif field.type == F.TYPE_STRING:
        data = draw(st.text(max_size=8)).encode()
    elif field.type == F.TYPE_BYTES:
        data = draw(st.binary(max_size=8))
    else:
        packed = draw(st.lists(U64, max_size=4)) if field.is_repeated else []
        kind = FIXED[field.type][1] if field.type in FIXED else pb.VARINT
        if not packed:
            return any_tag(draw, field.number, kind) + scalar(draw(U64), kind)
        data = b"".join(scalar(value, kind) for value in packed)
    return any_tag(draw, field.number, pb.LEN) + sized(draw, data)


def scalar(value: int, kind: int) -> bytes:
    """Encode any bits as one value of *kind*."""
    if kind == pb.VARINT:
        return pb.varint(value)
    return value.to_bytes(8, "little")[: 4 if kind == pb.I32 else 8]


@st.composite
def any_message(draw: DrawFn, descriptor: Descriptor, most: int = 5) -> bytes:
    """Draw an encoding: its fields in any order and number, strangers in between."""
    fields = list(descriptor.fields)
    out = b""
    for _ in range(draw(st.integers(0, most))):
        stranger = draw(st.integers(0, 3)) == 3
        one = any_field() if stranger else known_field(draw(st.sampled_from(fields)), most)
        out += draw(one)
    return out


@st.composite
def damaged(draw: DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Draw an encoding with a byte changed, some lost, or the end cut off."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        stop = start + draw(st.integers(0, 3))
        data[start:stop] = draw(st.binary(max_size=3))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def scanned(view: memoryview) -> list[Any]:
    """Give all fields in the form of `known_to_library`, groups opened."""
    found = []
    for key, value in pb.fields(view):
        kind = key & 7
        plain: Any = value
        if kind == pb.SGROUP:
            plain = scanned(value)
        elif kind == pb.LEN:
            plain = bytes(value)
        elif kind != pb.VARINT:
            plain = int.from_bytes(value, "little")
        found.append((key >> 3, kind, plain))
    return found


def known_to_library(fields: Any) -> list[Any]:
    """Give an UnknownFieldSet as plain values."""
    return [
        (
            one.field_number,
            one.wire_type,
            known_to_library(one.data) if one.wire_type == 3 else one.data,
        )
        for one in fields
    ]


def has_field_0(fields: list[Any]) -> bool:
    """Return whether field number 0 occurs, in groups too."""
    return any(
        number == 0 or (kind == pb.SGROUP and has_field_0(value)) for number, kind, value in fields
    )


def decoded(descriptor: Descriptor, view: memoryview) -> dict[str, Any]:
    """Read a message with our functions only, in the form of `plain`."""
    seen: dict[int, list[Any]] = {}
    oneof_numbers: dict[str, int] = {}
    fields_by_number: dict[int, Any] = {field.number: field for field in descriptor.fields}
    strange = False
    for key, value in pb.fields(view):
        field = fields_by_number.get(key >> 3)
        if field is None or key & 7 not in kinds(field):
            strange = True
            continue
        seen.setdefault(field.number, []).append(value)
        if field.containing_oneof is not None:
            oneof_numbers[field.containing_oneof.name] = field.number
    values = {n: read(fields_by_number[n], found) for n, found in seen.items()}
    found = {
        fields_by_number[n].name: value
        for n, value in values.items()
        if fields_by_number[n].containing_oneof is None
        or oneof_numbers[fields_by_number[n].containing_oneof.name] == n
    }
    # upb keeps a map entry that holds an unknown field as an unknown field itself.
    return found | {STRANGE: True} if strange and descriptor.GetOptions().map_entry else found


def kinds(field: Any) -> set[int]:
    """Name the wire types that a parser takes for *field*."""
    if field.type in FIXED:
        own = FIXED[field.type][1]
    else:
        own = pb.VARINT if field.type in VARINTS else pb.LEN
    return {own, pb.LEN} if field.is_repeated else {own}


def read(field: Any, found: list[Any]) -> Any:
    """Read the occurrences of one field."""
    if field.type in VARINTS:
        numbers = arrays.varint_array(found, VARINTS[field.type])
        return numbers.tobytes() if field.is_repeated else numbers[-1:].tobytes()
    if field.type in FIXED:
        dtype = np.dtype(FIXED[field.type][0])
        run = arrays.fixed_run(found, dtype.itemsize)
        return bytes(run) if field.is_repeated else bytes(run)[-dtype.itemsize :]
    if field.type == F.TYPE_MESSAGE:
        if field.is_repeated:
            return [decoded(field.message_type, one) for one in found]
        for one in found:
            decoded(field.message_type, one)
        return decoded(field.message_type, memoryview(b"".join(found)))
    read_one = bytes if field.type == F.TYPE_BYTES else lambda one: pb.text(one, field.name)
    return (
        [read_one(one) for one in found]
        if field.is_repeated
        else [read_one(one) for one in found][-1]
    )


def normal(descriptor: Descriptor, message: dict[str, Any]) -> dict[str, Any]:
    """Leave out what equals its default, and make dictionaries of maps."""
    out = {}
    for field in descriptor.fields:
        value = message.get(field.name)
        if value is None or (value in ([], "", b"") and field.containing_oneof is None):
            continue
        kind: Any = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            entries = [normal(kind, one) for one in value if STRANGE not in one]
            if not entries:
                continue
            value = {one.get("key", ""): one.get("value", {}) for one in entries}
        elif kind is not None:
            value = (
                [normal(kind, one) for one in value] if field.is_repeated else normal(kind, value)
            )
        elif isinstance(value, bytes) and not (
            field.is_repeated or field.containing_oneof or any(value)
        ):
            continue
        out[field.name] = value
    return out


def plain(message: Message) -> dict[str, Any]:
    """Return the library's message as plain values: numbers as bytes, so that NaN equals itself."""
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        kind: Any = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            is_scalar = kind.fields_by_name["value"].message_type is None
            out[field.name] = {key: one if is_scalar else plain(one) for key, one in value.items()}
        elif kind is not None:
            out[field.name] = [plain(one) for one in value] if field.is_repeated else plain(value)
        elif field.type in VARINTS or field.type in FIXED:
            dtype = VARINTS[field.type] if field.type in VARINTS else FIXED[field.type][0]
            out[field.name] = np.array(value, dtype).tobytes()
        else:
            out[field.name] = list(value) if field.is_repeated else value
    return out


def compare_scan(data: bytes) -> None:
    """Scanner and library agree on *data*, but for field number 0."""
    try:
        message = EMPTY.FromString(data)
    except DecodeError:
        expected = None
    else:
        expected = known_to_library(UnknownFieldSet(message))
    try:
        actual = scanned(memoryview(data))
    except pb.WireError:
        assert expected is None or has_field_0(expected)
    else:
        assert expected == actual


def compare_message(kind: Any, data: bytes) -> None:
    """Reader and library agree on *data*, but for field number 0 in an unknown group."""
    try:
        expected = plain(kind.FromString(data))
    except DecodeError:
        expected = None
    actual: Any = None
    refusal = ""
    try:
        actual = normal(kind.DESCRIPTOR, decoded(kind.DESCRIPTOR, memoryview(data)))
    except pb.WireError as error:
        refusal = str(error)
    if "field number 0" not in refusal:
        assert expected == actual


FIELDS = st.lists(any_field(), max_size=6).map(b"".join)
KINDS: list[Any] = [
    oip.InferParameter,
    oip.InferTensorContents,
    oip.ModelInferRequest,
    oip.ModelStatistics,
]


@given(FIELDS | st.binary(max_size=40) | damaged(FIELDS))
def test_scans_as_protobuf(data: bytes) -> None:
    """Any bytes are accepted exactly when the library accepts them, with the same fields."""
    compare_scan(data)


@given(st.sampled_from(KINDS).flatmap(lambda k: st.tuples(st.just(k), any_message(k.DESCRIPTOR))))
def test_reads_messages_as_protobuf(case: tuple[Any, bytes]) -> None:
    """The last value wins, packed and unpacked mix, messages merge, unknown fields are skipped."""
    compare_message(*case)


@given(
    st.sampled_from(KINDS).flatmap(
        lambda k: st.tuples(st.just(k), damaged(any_message(k.DESCRIPTOR)))
    )
)
def test_rejects_damage_as_protobuf(case: tuple[Any, bytes]) -> None:
    """Damaged messages are rejected by both or read with the same result."""
    compare_message(*case)


@given(st.lists(U64, max_size=50))
def test_packs_varints_as_protobuf(values: list[int]) -> None:
    """Packed varints have the library's bytes, and decode again."""
    array = np.array(values, np.uint64)
    expected = oip.InferTensorContents(uint64_contents=values).SerializeToString()
    head: pb.Parts = []
    if values:
        pb.put_tail(head, b"\x2a", arrays.packed_varints(array))
    assert expected == b"".join(head)
    assert values == arrays.varint_array([arrays.packed_varints(array)], np.uint64).tolist()
