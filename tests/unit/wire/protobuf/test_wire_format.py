"""Corner cases of protobuf's wire format, each against a literal."""

from __future__ import annotations

import struct

import pytest

from gateway.schema import open_inference_pb2 as oip
from gateway.wire.protobuf import wire_format as pb

KEY = [pb.varint(pb.tag(number, pb.LEN)) for number in range(8)]

INVALID_MESSAGES = {
    "tag_without_value": b"\x08",
    "tag_cut": b"\x88",
    "varint_cut": b"\x08\x80",
    "varint_of_11_bytes": b"\x08" + b"\x80" * 10 + b"\x00",
    "tag_of_6_bytes": b"\x88\x80\x80\x80\x80\x00\x05",
    "field_number_0": b"\x00\x01",
    "field_number_0_with_contents": b"\x02\x00",
    "field_number_2_to_29": b"\x80\x80\x80\x80\x10\x01",
    "size_cut": b"\x0a",
    "size_past_end": b"\x0a\x05abcd",
    "size_of_6_bytes": b"\x0a\x81\x80\x80\x80\x80\x00x",
    "size_2_to_31": b"\x0a\x80\x80\x80\x80\x08",
    "i32_cut": b"\x0d\x00\x00\x00",
    "i64_cut": b"\x09" + bytes(7),
    "wire_type_6": b"\x0e\x00",
    "wire_type_7": b"\x0f\x00",
    "end_group_alone": b"\x0c\x00",
    "group_open": b"\x0b\x08\x01",
    "group_closed_by_another": b"\x0b\x08\x01\x14",
    "group_with_value_cut": b"\x0b\x0a\x05a\x0c",
    "groups_101_deep": b"\x0b" * 101 + b"\x0c" * 101,
}


def view(data: bytes) -> memoryview:
    """Return *data* as transports do."""
    return memoryview(data)


@pytest.mark.parametrize("name", INVALID_MESSAGES)
def test_rejects_invalid_messages(name: str) -> None:
    """Invalid bytes raise WireError, small or behind a large field."""
    for data in (INVALID_MESSAGES[name], b"\x3a\xff\x7f" + bytes(0x3FFF) + INVALID_MESSAGES[name]):
        with pytest.raises(pb.WireError):
            pb.fields(view(data))


def test_finds_fields_in_order() -> None:
    """Every wire type is found, in the order sent."""
    data = b"\x08\x96\x01" + b"\x11" + bytes(range(8)) + b"\x1a\x02hi" + b"\x25abcd" + b"\x08\x01"
    expected = [(8, 150), (0x11, bytes(range(8))), (0x1A, b"hi"), (0x25, b"abcd"), (8, 1)]
    assert expected == pb.fields(view(data))


def test_returns_views_of_the_buffer() -> None:
    """Contents are slices of the received buffer, in small messages and large ones."""
    for size in (5, 5000):
        data = bytearray(KEY[1] + pb.varint(size) + bytes(size))
        ((_, found),) = pb.fields(memoryview(data))
        data[-1] = 7
        assert found[-1] == 7


def test_cuts_varints_to_64_bits() -> None:
    """Bits above the 64th are dropped, as protobuf's parser does."""
    assert [(8, 2**63 - 1)] == pb.fields(view(b"\x08" + b"\xff" * 9 + b"\x02"))
    assert (2**64 - 1, 10) == pb.read_varint(b"\xff" * 9 + b"\x7f", 0)


def test_reads_padded_tags_and_sizes() -> None:
    """A tag or size may be padded to five bytes."""
    assert [(0x0A, b"x")] == pb.fields(view(b"\x8a\x80\x80\x80\x00\x81\x80\x80\x80\x00x"))


def test_largest_field_number() -> None:
    """Field numbers go up to 2**29 - 1."""
    assert [(pb.tag(2**29 - 1, pb.VARINT), 1)] == pb.fields(view(b"\xf8\xff\xff\xff\x0f\x01"))


def test_reads_groups_as_one_field() -> None:
    """The contents of a group are the bytes between its tags; groups nest up to 100 deep."""
    assert [(0x0B, b"\x08\x01\x13\x14"), (8, 2)] == pb.fields(
        view(b"\x0b\x08\x01\x13\x14\x0c\x08\x02")
    )
    ((key, _),) = pb.fields(view(b"\x0b" * 100 + b"\x0c" * 100))
    assert key == 0x0B


def test_limits_the_number_of_fields() -> None:
    """A message of more fields than the limit is rejected, one of exactly that many is not."""
    data = b"\x0a\x00\x0a\x03abc" * 10
    assert len(pb.fields(view(data), limit=20)) == 20
    with pytest.raises(pb.WireError, match="more than 19 fields"):
        pb.fields(view(data), limit=19)


def test_reads_varint() -> None:
    """A varint is read at any offset; one that does not end is rejected."""
    assert (300, 3) == pb.read_varint(view(b"x\xac\x02"), 1)
    with pytest.raises(pb.WireError, match="does not end"):
        pb.read_varint(b"\x80", 0)


@pytest.mark.parametrize(
    ("value", "int64", "uint32", "int32"),
    [
        (0, 0, 0, 0),
        (1, 1, 1, 1),
        (2**31, 2**31, 2**31, -(2**31)),
        (2**32 + 5, 2**32 + 5, 5, 5),
        (2**64 - 1, -1, 2**32 - 1, -1),
        (2**64 - 2, -2, 2**32 - 2, -2),
    ],
)
def test_reads_integers(value: int, int64: int, uint32: int, int32: int) -> None:
    """One varint has three readings."""
    actual = (pb.int64(value), pb.uint32(value), pb.int32(value))
    assert (int64, uint32, int32) == actual


def test_reads_doubles() -> None:
    """A view of eight bytes is read little-endian."""
    assert pb.float64(view(struct.pack("<d", -0.1))) == -0.1


def test_reads_text() -> None:
    """Text is UTF-8, and the error names the field."""
    assert pb.text(view("é".encode()), "model_name") == "é"
    for data in (b"a\xff", b"\xed\xa0\x80"):
        with pytest.raises(pb.WireError, match="model_name is not UTF-8"):
            pb.text(view(data), "model_name")


def test_reads_shapes() -> None:
    """A packed shape is read with short axes, long axes and unknown ones."""
    assert [] == pb.int64s(view(b""))
    assert [1, 3, 7] == pb.int64s(view(b"\x01\x03\x07"))
    assert [-1, 224] == pb.int64s(view(b"\xff" * 9 + b"\x01\xe0\x01"))
    with pytest.raises(pb.WireError):
        pb.int64s(view(b"\x01\x80"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (2**64 - 1, b"\xff" * 9 + b"\x01"),
        (-1, b"\xff" * 9 + b"\x01"),
        (-(2**63), b"\x80" * 9 + b"\x01"),
    ],
)
def test_writes_varint(value: int, expected: bytes) -> None:
    """Varints are written as short as they can be, negative ones in ten bytes."""
    assert expected == pb.varint(value)


def test_rejects_values_that_cannot_be_encoded() -> None:
    """Integers beyond 64 bits and lone surrogates raise WireError."""
    for value in (2**64, -(2**63) - 1):
        with pytest.raises(pb.WireError, match="does not fit"):
            pb.varint(value)
    with pytest.raises(pb.WireError, match="not UTF-8"):
        pb.put_text(bytearray(), KEY[1], "\ud800")


def test_writes_scalars() -> None:
    """Each scalar is written as the library writes it."""
    head = bytearray()
    pb.put_text(head, KEY[3], "x" * 200)
    assert oip.InferParameter(string_param="x" * 200).SerializeToString() == head
    head = bytearray()
    pb.put_double(head, pb.varint(pb.tag(4, pb.I64)), 0.1)
    assert oip.InferParameter(double_param=0.1).SerializeToString() == head
    head = bytearray()
    pb.put_varint(head, pb.varint(pb.tag(2, pb.VARINT)), -5)
    assert oip.InferParameter(int64_param=-5).SerializeToString() == head


@pytest.mark.parametrize("size", [0, 100, pb.TAIL_BYTES, pb.TAIL_BYTES + 4, 100_000])
def test_writes_messages_around_tails(size: int) -> None:
    """Nested messages with small and large contents are those that the library writes."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    contents: pb.Parts = []
    pb.put_tail(contents, KEY[6], memoryview(data))
    inner: pb.Parts = [bytearray()]
    head = bytearray()
    pb.put_text(head, KEY[1], "x")
    pb.put_int64s(head, KEY[3], (1, 224, -1))
    inner = [head]
    pb.put_message(inner, KEY[5], contents)
    outer: pb.Parts = []
    pb.put_message(outer, KEY[5], inner)
    pb.put_tail(outer, KEY[7], memoryview(data))
    expected = oip.ModelInferRequest(raw_input_contents=[data])
    tensor = expected.inputs.add(name="x", shape=[1, 224, -1])
    tensor.contents.MergeFromString(KEY[6] + pb.varint(size) + data)
    message = b"".join(outer)
    assert expected == oip.ModelInferRequest.FromString(message)
    assert len(message) == pb.size_bytes(outer)


def test_carries_tails_without_a_copy() -> None:
    """A large value is the same memory in the finished message, between two heads."""
    data = bytearray(pb.TAIL_BYTES + 1)
    inner: pb.Parts = []
    pb.put_tail(inner, KEY[6], memoryview(data))
    outer: pb.Parts = []
    pb.put_message(outer, KEY[5], inner)
    pb.put_tail(outer, KEY[7], memoryview(b"small"))
    data[0] = 9
    assert [bytearray, memoryview, bytearray] == [type(part) for part in outer]
    assert outer[1][0] == 9
