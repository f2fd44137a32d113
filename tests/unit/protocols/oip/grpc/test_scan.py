"""The scan of inference messages: names, shapes, parameters, limits, and the message cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.errors import GatewayError, InvalidRequest, InvalidTensor, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.oip.grpc.scan import (
    RAW_INPUTS,
    RAW_OUTPUTS,
    CachedMessage,
    InferMessageScanner,
    Scanned,
)
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.message_cache import MaskedMessageCache
from gateway.wire.protobuf.wire_format import LEN, TooManyFields, WireError, tag, varint

Tensor = pb.ModelInferRequest.InferInputTensor
Wanted = pb.ModelInferRequest.InferRequestedOutputTensor
TRUE, UNSET = pb.InferParameter(bool_param=True), pb.InferParameter()


def scan(data: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> Scanned:
    return InferMessageScanner(limits).scan(memoryview(data), RAW_INPUTS)


def request(**fields: Any) -> bytes:
    return bytes(pb.ModelInferRequest(**fields).SerializeToString(deterministic=True))


def nested(number: int, inner: bytes) -> bytes:
    return varint(tag(number, LEN)) + varint(len(inner)) + inner


def test_responses_have_raw_contents_in_another_field() -> None:
    """In a response, field 6 holds raw contents and field 7 is unknown."""
    data = nested(6, b"raw") + nested(7, b"unknown")
    found, _, raws = InferMessageScanner(DEFAULT_LIMITS).scan(memoryview(data), RAW_OUTPUTS)
    assert ([b"raw"], []) == ([bytes(raw) for raw in raws], found.outputs)


def read(scanner: InferMessageScanner, data: bytes) -> object:
    """Return the scanned message, or the type and text of the error."""
    try:
        found = scanner.scan(memoryview(data), RAW_INPUTS)
    except (GatewayError, WireError) as error:
        return type(error), str(error)
    return found


PIECES = st.sampled_from(
    [
        nested(1, b"m"),
        nested(1, b"n"),
        nested(3, b"id"),
        nested(5, nested(1, b"X") + nested(2, b"INT8") + b"\x1a\x01\x01"),
        nested(5, nested(1, b"Y") + nested(2, b"INT8") + b"\x1a\x01\x02"),
        nested(6, nested(1, b"out")),
        nested(7, b"1"),
        nested(7, b"22"),
        nested(9, nested(7, b"1")),  # unknown; raw contents to a reader that starts inside
        nested(7, b""),
    ]
)


@given(messages=st.lists(st.lists(PIECES, max_size=6), max_size=12))
def test_caching_does_not_change_the_result(messages: list[list[bytes]]) -> None:
    """A scanner with cached messages reads every message as a new scanner does."""
    caching = InferMessageScanner(DEFAULT_LIMITS)
    for pieces in messages:
        data = b"".join(pieces)
        for _ in range(4):
            assert read(InferMessageScanner(DEFAULT_LIMITS), data) == read(caching, data)


def test_repeated_message_is_scanned_at_most_twice() -> None:
    """From the third message on, only the raw contents and the id are read."""
    scanner = InferMessageScanner(DEFAULT_LIMITS)
    tensor = nested(5, nested(1, b"X") + nested(2, b"INT8") + b"\x1a\x01\x01")
    found = [
        scanner.scan(
            memoryview(nested(1, b"m") + nested(3, each) + tensor + nested(7, each)), RAW_INPUTS
        )
        for each in (b"1", b"2", b"3", b"4")
    ]
    assert ["1", "2", "3", "4"] == [request_id for _, request_id, _ in found]
    assert [b"1", b"2", b"3", b"4"] == [bytes(raws[0]) for _, _, raws in found]
    assert found[1][0] is found[2][0]
    assert found[2][0] is found[3][0]


@pytest.mark.parametrize(("texts", "sizes"), [(range(20), [4] * 20), ([0] * 20, range(20))])
def test_messages_that_always_differ_are_not_cached(
    texts: Sequence[int], sizes: Sequence[int]
) -> None:
    """Messages with unique parameters or sizes of data do not fill the cache."""
    scanner = InferMessageScanner(DEFAULT_LIMITS)
    for text, size in zip(texts, sizes, strict=True):
        data = request(
            inputs=[Tensor(name="T", datatype="BYTES", shape=[1])],
            parameters={"k": pb.InferParameter(string_param=f"{text:02}")},
            raw_input_contents=[bytes(size)],
        )
        scanner.scan(memoryview(data), RAW_INPUTS)
    assert 0 == len(scanner._outlines[RAW_INPUTS])


class FailingCache(MaskedMessageCache[CachedMessage]):
    """Fails when the scanner puts a message into the cache."""

    def put(self, view: memoryview, holes: Sequence[slice], _value: object) -> None:
        raise AssertionError(len(view), holes)


def test_message_too_long_for_the_cache_is_not_put() -> None:
    """A message too long for the cache is not split into slots, which costs as much as the scan."""
    scanner = InferMessageScanner(DEFAULT_LIMITS)
    scanner._outlines[RAW_INPUTS] = FailingCache(1, 1)
    names = [f"a long name of an input {number:03}" for number in range(40)]
    data = request(
        id="7" * 9,
        inputs=[Tensor(name=name, datatype="INT8", shape=[1]) for name in names],
        raw_input_contents=[b"1"] * len(names),
    )
    for _ in range(3):
        assert names == [
            each.name for each in scanner.scan(memoryview(data), RAW_INPUTS)[0].tensors
        ]


def test_change_of_any_byte_is_detected() -> None:
    """Each mutation of a cached message is read as by a new scanner."""
    scanner = InferMessageScanner(DEFAULT_LIMITS)
    one = nested(5, nested(1, b"X") + nested(2, b"INT8") + b"\x1a\x01\x01")
    two = nested(5, nested(1, b"Y") + nested(2, b"INT16") + b"\x1a\x02\x01\x02")
    data = nested(1, b"m") + nested(3, b"id-1") + one + two + nested(7, b"1") + nested(7, b"2345")
    whole = read(InferMessageScanner(DEFAULT_LIMITS), data)
    for _ in range(3):
        assert whole == read(scanner, data)
    for at in range(len(data)):
        changes = [data[:at] + bytes((byte,)) + data[at + 1 :] for byte in b"\0\1\7\x1a2:A\xff"]
        for changed in (*changes, data[:at], data[:at] + data[at + 1 :], data + data[at:]):
            first = read(InferMessageScanner(DEFAULT_LIMITS), changed)
            assert [first] * 3 == [read(scanner, changed) for _ in range(3)], changed
    assert whole == read(scanner, data)


def test_an_id_is_checked_each_time() -> None:
    """An id that is too long or not text is rejected, even if the rest of the message is cached."""
    scanner = InferMessageScanner(MessageLimits(name_bytes=3))
    tensor = nested(5, nested(1, b"X") + nested(2, b"INT8") + b"\x1a\x01\x01")
    for each in (b"abc", b"abd", b"abe", b"abcd", b"ab\xff", b"ab\n"):
        data = nested(3, each) + tensor + nested(7, b"1")
        assert read(InferMessageScanner(MessageLimits(name_bytes=3)), data) == read(scanner, data)


def test_typed_contents_are_not_cached() -> None:
    """Each of two equal messages has its own view of its typed contents."""
    scanner = InferMessageScanner(DEFAULT_LIMITS)
    contents = pb.InferTensorContents(uint_contents=[7])
    data = request(inputs=[Tensor(name="X", datatype="UINT8", shape=[1], contents=contents)])
    for view in (memoryview(data), memoryview(bytearray(data))):
        (tensor,) = scanner.scan(view, RAW_INPUTS)[0].tensors
        assert view.obj is tensor.contents.obj


def wanted(*names: str, **parameters: pb.InferParameter) -> bytes:
    """Return a request for outputs, the last with these parameters."""
    outputs = [Wanted(name=name) for name in names]
    outputs[-1].MergeFrom(Wanted(parameters=parameters))
    return request(outputs=outputs)


def described(shape: list[int], **fields: Any) -> bytes:
    """Return a request with an input of this shape."""
    tensor = {"name": "X", "datatype": "INT8", "shape": shape, **fields}
    return request(inputs=[Tensor(**tensor)])


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (request(model_name="a\n"), InvalidRequest, r"model name has the character U\+000A"),
        (request(model_version="\x7f"), InvalidRequest, "model version has the character"),
        (request(id="\x00"), InvalidRequest, "id has the character"),
        (request(inputs=[Tensor(name="\t")]), InvalidRequest, "tensor name has the character"),
        (wanted("\t"), InvalidRequest, "output name has the character"),
        (request(parameters={"\t": TRUE}), InvalidRequest, "parameter name has the character"),
        (request(parameters={"k": UNSET}), InvalidRequest, "'k' has no value: expected one"),
        (nested(4, b"\x0a\x01k\x18\x01"), InvalidRequest, "'k' has an unknown field in its"),
        (described([], datatype=""), InvalidTensor, "'X' has datatype '': expected one of"),
        (described([-1]), InvalidTensor, r"'X' has shape \[-1\]: dimensions must"),
        (wanted("Y", "Y", a=TRUE), InvalidTensor, "output 'Y' occurs 2 times"),
        (wanted(""), InvalidTensor, "^requested output 0 of the request has no name"),
        (described([0], name=""), InvalidTensor, "^input 0 of the request has no name"),
    ],
)
def test_rejects(data: bytes, kind: type[GatewayError], text: str) -> None:
    """Each invalid field is rejected by name; no server matches tensors by position."""
    with pytest.raises(kind, match=text):
        scan(data)


SMALL = MessageLimits(
    tensors=1,
    outputs=1,
    parameters=1,
    rank=2,
    dim=9,
    elements=20,
    bytes_elements=5,
    message_bytes=64,
    model_name_bytes=2,
    name_bytes=3,
)


X, Y = (Tensor(name=name, datatype="INT8", shape=[1]) for name in "XY")


@pytest.mark.parametrize(
    ("limit", "good", "bad"),
    [
        ("model_name_bytes", request(model_name="ab"), request(model_name="abc")),
        ("name_bytes", request(id="abc"), request(id="abcd")),
        ("name_bytes", request(model_version="abc"), request(model_version="abcd")),
        ("name_bytes", request(parameters={"abc": TRUE}), request(parameters={"abcd": TRUE})),
        ("parameters", request(parameters={"a": TRUE}), request(parameters={"a": TRUE, "b": TRUE})),
        ("outputs", wanted("X"), wanted("X", "Y")),
        ("tensors", request(inputs=[X]), request(inputs=[X, Y])),
        ("rank", described([1, 1]), described([1, 1, 1])),
        ("rank", described([1, 1]), described([1] * 100)),
        ("dim", described([9]), described([10])),
        ("elements", described([4, 5]), described([3, 7])),
    ],
)
def test_limits(limit: str, good: bytes, bad: bytes) -> None:
    """A value at a limit passes; one more is rejected under the limit's name."""
    scan(good, SMALL)
    with pytest.raises(TooLarge) as caught:
        scan(bad, SMALL)
    assert limit == caught.value.limit


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        nested(1, b"\xff"),
        nested(5, nested(5, b"") * 2),
        nested(4, nested(2, b"") * 2),
        nested(4, nested(2, nested(3, b"\xff"))),
    ],
)
def test_raises_wire_error(data: bytes) -> None:
    """Malformed bytes, and single messages that occur twice, are left to the library."""
    with pytest.raises(WireError):
        scan(data)


def test_the_fields_of_all_nested_messages_count_together() -> None:
    """The limit of fields applies to the sum over all tensors of a message."""
    unknown = b"\x7a\x00" * 150
    tensors = [nested(5, nested(1, b"%d" % n) + nested(2, b"INT8") + unknown) for n in range(200)]
    with pytest.raises(TooManyFields, match="more than"):
        scan(b"".join(tensors))
    assert 100 == len(scan(b"".join(tensors[:100]))[0].tensors)


@pytest.mark.parametrize(
    "data",
    [
        nested(5, nested(2, b"INT8") + b"\x7a\x00" * 200),
        nested(4, nested(1, b"k") * 65),
        nested(4, nested(1, b"k") + nested(2, b"\x08\x01" * 65)),
        nested(6, b"\x7a\x00" * 200),
        b"\x7b" + b"\x08\x01" * 20_000 + b"\x7c",
    ],
    ids=["tensor", "entry", "value", "output", "group"],
)
def test_many_unknown_or_repeated_fields_are_rejected(data: bytes) -> None:
    """Unknown and repeated fields count towards the limit of fields."""
    with pytest.raises(TooManyFields):
        scan(data)


def test_shape_is_rejected_at_the_first_excess_dimension() -> None:
    """A shape in many runs is rejected as soon as its rank exceeds the limit."""
    piece = nested(3, b"\x01" * 30)
    with pytest.raises(TooLarge, match="more than 32 dimensions") as caught:
        scan(nested(5, nested(2, b"INT8") + piece * 50))
    assert "rank" == caught.value.limit


def test_bytes_elements_of_all_tensors_count_together() -> None:
    """The limit of BYTES elements applies to the sum over all tensors of a message."""
    tensors = [
        nested(5, nested(1, b"%d" % n) + nested(2, b"BYTES") + b"\x18\x02") for n in range(3)
    ]
    assert 3 == len(scan(b"".join(tensors), MessageLimits(bytes_elements=6))[0].tensors)
    with pytest.raises(TooLarge, match="6 in all tensors") as caught:
        scan(b"".join(tensors), MessageLimits(bytes_elements=5))
    assert "bytes_elements" == caught.value.limit


def test_duplicate_requested_output_is_merged() -> None:
    """Equal duplicates of a requested output are merged; Triton accepts such a request."""
    message, *_ = scan(request(outputs=[Wanted(name=name) for name in ("Y", "Z", "Y")]))
    assert ["Y", "Z"] == [name for name, _ in message.outputs]
