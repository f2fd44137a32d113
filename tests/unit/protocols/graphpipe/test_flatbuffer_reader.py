"""Limits of the flatbuffer reader that no recorded message reaches: ends, aliases, counts, strings."""

from __future__ import annotations

import struct

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, InvalidTensor, MalformedMessage, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.items import ItemViews
from gateway.ir.tensors.tensor import Tensor, as_items
from gateway.protocols.graphpipe import flatbuffer_writer as writer
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage, table
from gateway.protocols.graphpipe.flatbuffer_writer import WireTensor, infer_request
from gateway.protocols.graphpipe.http import HttpCodec
from gateway.protocols.graphpipe.messages import open_request, read_infer_request
from gateway.wire.http import HttpRequest
from tests.cases import graphpipe_oracle as oracle
from tests.scheduling import within_processor_s

WORD = struct.Struct("<I")


def read(body: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> tuple[Tensor, ...]:
    call = HttpCodec(limits, {}).decode_call(HttpRequest("POST", "/graphpipe/m", body=(body,)))
    assert isinstance(call, InferRequest)
    return call.inputs


def strings(*items: bytes, shape: tuple[int, ...] | None = None) -> bytes:
    tensor = oracle.PlainTensor(12, (len(items),) if shape is None else shape, b"", items)
    return oracle.build_request(oracle.PlainRequest(b"", (), (tensor,), ()))


def numbers(shape: tuple[int, ...], data: bytes) -> bytes:
    tensor = oracle.PlainTensor(1, shape, data)
    return oracle.build_request(oracle.PlainRequest(b"", (), (tensor,), ()))


@pytest.mark.parametrize("count", [0, 1, 32, 33, 500])
def test_few_and_many_strings_are_read(count: int) -> None:
    """Few strings are read one by one, many at once, with the same result."""
    items = [str(number).encode() * (number % 5) for number in range(count)]
    [tensor] = read(strings(*items))
    found = as_items(tensor)
    assert items == [bytes(item) for item in found]
    assert items[3:9] == [bytes(item) for item in found[3:9]]
    assert count == len(found)
    if count > 32:
        assert isinstance(found, ItemViews)
        assert (items[-1], items[7]) == (bytes(found[-1]), bytes(found[7]))


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("distance", [0, 0x7FFFFFFF, 0xFFFFFFF0, 0xFFFFFFFF])
def test_element_outside_the_message_is_rejected(count: int, distance: int) -> None:
    """An offset out of the message is rejected at any index; the error names the tensor."""
    body = bytearray(strings(*[b"abcd"] * count))
    at = body.find(WORD.pack(count), 60) + 4 * count // 2
    assert WORD.unpack_from(body, at)[0] < 4000
    WORD.pack_into(body, at, distance)
    with pytest.raises(MalformedMessage, match="element of tensor '#0'"):
        read(bytes(body))


@pytest.mark.parametrize("count", [2, 40])
def test_element_longer_than_the_message_is_rejected(count: int) -> None:
    """A length beyond the end is rejected, even if the position overflows."""
    body = strings(*[b"abcd"] * (count - 1), b"wxyz")
    for length in (0xFFFFFFFF, 0x7FFFFFFF, len(body)):
        wrong = body.replace(WORD.pack(4) + b"wxyz", WORD.pack(length) + b"wxyz")
        assert wrong != body
        with pytest.raises(MalformedMessage, match="element of tensor '#0'"):
            read(wrong)


@pytest.mark.parametrize("count", [2, 40])
def test_element_over_its_limit_is_rejected(count: int) -> None:
    """The size limit of one element is enforced."""
    with pytest.raises(TooLarge, match="at most 9"):
        read(strings(*[b"a" * 10] * count), MessageLimits(bytes_element_size=9))


def aliased(copies: int, size: int) -> bytes:
    """Return a request whose String tensor has one string *copies* times."""
    body = bytearray(strings(*[b""] * copies, b"x" * size))
    first = body.find(WORD.pack(copies + 1), 60) + 4
    last = first + 4 * copies
    target = last + WORD.unpack_from(body, last)[0]
    for at in range(first, last, 4):
        WORD.pack_into(body, at, target - at)
    return bytes(body)


def test_strings_may_be_shared_up_to_a_limit() -> None:
    """Equal strings may be shared, but not to far more bytes than the message has."""
    [tensor] = read(aliased(100, 50))
    assert 101 * 50 == sum(map(len, as_items(tensor)))
    for copies, size in ((30, 200_000), (5000, 20_000)):
        message = aliased(copies, size)
        with within_processor_s(1), pytest.raises(TooLarge, match="overlap"):
            read(message)


def test_tensors_may_not_be_shared_without_limit() -> None:
    """Many entries for one tensor become as many copies, so their bytes are added up."""
    tensor = WireTensor(1, (1 << 20,), memoryview(bytes(1 << 20)))
    tiny = WireTensor(1, (1,), memoryview(b"1"))
    body = bytearray(b"".join(infer_request(b"", (), [tiny] * 99 + [tensor], ())))
    field = 72  # of the input tensors, in what our writer lays out
    first = field + WORD.unpack_from(body, field)[0] + 4
    target = first + 4 * 99 + WORD.unpack_from(body, first + 4 * 99)[0]
    for at in range(first, first + 4 * 99, 4):
        WORD.pack_into(body, at, target - at)
    with pytest.raises(TooLarge, match="overlap"):
        read(bytes(body))


def test_the_number_of_parts_is_bounded() -> None:
    """A message has at most 10,000 parts, even if its limits are higher."""
    limits = MessageLimits(tensors=1_000_000, outputs=1_000_000)
    names = oracle.PlainRequest(b"", (), (), ("",) * 10_001)
    with pytest.raises(TooLarge, match="10000 parts"):
        read(oracle.build_request(names), limits)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(b"\xff", MalformedMessage), (b"a\x00", MalformedMessage), (b"a" * 1025, TooLarge)],
)
def test_invalid_names_are_rejected(name: bytes, kind: type[GatewayError]) -> None:
    """Names are UTF-8 without control characters, of at most 1,024 bytes."""
    filler = "é" + "n" * (len(name) - 1)
    request = oracle.PlainRequest(b"", (), (), (filler[: len(name)],))
    body = oracle.build_request(request)
    data = filler[: len(name)].encode()
    with pytest.raises(kind, match="output name"):
        read(body.replace(WORD.pack(len(data)) + data, WORD.pack(len(name)) + name))


@pytest.mark.parametrize(
    ("place", "word"), [("offset", 0), ("offset", 0xFFFFFFF0), ("length", 0xFFFFFFFF)]
)
def test_name_outside_the_message_is_rejected(place: str, word: int) -> None:
    """The offset and the length of a name must lead to bytes of the message."""
    body = bytearray(oracle.build_request(oracle.PlainRequest(b"", (), (), ("wxyz",))))
    length_at = body.find(WORD.pack(4) + b"wxyz")
    offset_at = next(
        at
        for at in range(0, length_at, 4)
        if at + WORD.unpack_from(body, at)[0] == length_at
        and WORD.unpack_from(body, at - 4)[0] == 1
    )
    WORD.pack_into(body, offset_at if place == "offset" else length_at, word)
    with pytest.raises(MalformedMessage, match="an output name would"):
        read(bytes(body))


@pytest.mark.parametrize(
    ("shape", "data", "limits", "kind"),
    [
        ((2, 3), bytes(6), {"rank": 1}, TooLarge),
        ((2, 3), bytes(6), {"elements": 5}, TooLarge),
        ((2, 3), bytes(6), {"dim": 2}, TooLarge),
        ((0, 1 << 40, 1 << 40), b"", {}, TooLarge),
        ((0, 1 << 20, 1 << 20), b"", {}, InvalidTensor),
        ((0, -1), b"", {}, InvalidTensor),
        ((-2, -3), bytes(6), {}, InvalidTensor),
        ((), b"", {}, InvalidTensor),
        ((1 << 40,), b"", {}, TooLarge),
    ],
)
def test_invalid_shapes_are_rejected(
    shape: tuple[int, ...], data: bytes, limits: dict[str, int], kind: type[GatewayError]
) -> None:
    """Rank, dimensions and elements are checked, whether or not the number of bytes fits."""
    with pytest.raises(kind):
        read(numbers(shape, data), MessageLimits(**limits))


def test_high_rank_is_read_if_the_limit_allows_it() -> None:
    """The limit of ranks is that of the configuration, not of the reader."""
    shape = (1,) * 40
    assert shape == read(numbers(shape, b"1"), MessageLimits(rank=64))[0].shape
    tensor = WireTensor(1, shape, memoryview(b"1"))
    body = b"".join(infer_request(b"", (), [tensor], ()))
    assert shape == read(body, MessageLimits(rank=64))[0].shape


def test_short_vtable_may_end_the_message() -> None:
    """Fields beyond the end of a vtable are absent, with or without bytes after it."""
    kind = table("a table", 4, 4)
    vtable = struct.pack("<2H", 4, 4)
    message = FlatbufferMessage(memoryview(struct.pack("<Ii", 4, -4) + vtable), DEFAULT_LIMITS)
    assert (0, 0) == message.fields(message.root(), kind)
    longer = FlatbufferMessage(
        memoryview(struct.pack("<Ii", 4, -4) + vtable + b"\xff" * 8), DEFAULT_LIMITS
    )
    assert (0, 0) == longer.fields(longer.root(), kind)


@pytest.mark.parametrize("vtable", [(3, 8), (5, 8), (8, 3), (0, 0)])
def test_invalid_vtable_is_rejected(vtable: tuple[int, int]) -> None:
    """Odd sizes, and sizes smaller than the header of a vtable, are rejected."""
    body = struct.pack("<Ii2H", 4, -4, *vtable) + bytes(16)
    message = FlatbufferMessage(memoryview(body), DEFAULT_LIMITS)
    with pytest.raises(MalformedMessage, match="and its vtable"):
        message.fields(4, table("a table", 4))


def test_bytes_after_the_message_are_ignored() -> None:
    """The end of a message is not known, so further bytes are no error."""
    body = numbers((2,), b"ab") + b"\xff" * 50
    message = FlatbufferMessage(memoryview(body), DEFAULT_LIMITS)
    at = open_request(message)
    assert at is not None
    assert 1 == len(read_infer_request(message, at, ModelRef("m"), lenient=False)[1])


def test_a_message_of_two_gigabytes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets reach 2 GiB, so a longer message is rejected before it is sent."""
    monkeypatch.setattr(writer, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(TooLarge, match="at most 1000"):
        infer_request(b"", (), [WireTensor(1, (1000,), memoryview(bytes(1000)))], ())
    with pytest.raises(TooLarge, match="at most 1000"):
        infer_request(b"", (), [WireTensor(12, (1,), None, [bytes(1000)])], ())


def test_shared_strings_count_for_each_tensor() -> None:
    """Strings in a vector shared by tensors count towards the limit once for each tensor."""
    items = tuple(b"" for _ in range(100))
    tensors = tuple(oracle.PlainTensor(oracle.STRING, (100,), b"", items) for _ in range(3))
    body = oracle.build_request(oracle.PlainRequest(b"", (), tensors, ()))
    assert 3 == len(read(body, MessageLimits(bytes_elements=300)))
    with pytest.raises(TooLarge, match="300 in all tensors") as caught:
        read(body, MessageLimits(bytes_elements=299))
    assert "bytes_elements" == caught.value.limit
