"""Assignment of data to the tensors of an inference message, and use of the protobuf library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    TooLarge,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import as_raw
from gateway.protocols.oip.grpc.decode import InferReader
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.protobuf.library import parse
from gateway.wire.protobuf.wire_format import LEN, MAX_FIELDS, VARINT, tag, varint

READER = InferReader(DEFAULT_LIMITS)
Tensor = pb.ModelInferRequest.InferInputTensor
Output = pb.ModelInferResponse.InferOutputTensor
FLOATS = np.array([1, 2], "<f4").tobytes()
TYPED = pb.InferTensorContents(fp32_contents=[1, 2])
NO_SIZE = {"shared_memory_region": pb.InferParameter(string_param="r")}
SHARED = {**NO_SIZE, "shared_memory_byte_size": pb.InferParameter(int64_param=4)}


def request(*inputs: Tensor, raw: list[bytes] | None = None) -> memoryview:
    message = pb.ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw or [])
    return memoryview(message.SerializeToString())


def response(*outputs: Output, raw: list[bytes] | None = None) -> memoryview:
    message = pb.ModelInferResponse(model_name="m", outputs=outputs, raw_output_contents=raw or [])
    return memoryview(message.SerializeToString())


def fp32(name: str = "X", shape: tuple[int, ...] = (2,), **more: Any) -> Tensor:
    return Tensor(name=name, datatype="FP32", shape=shape, **more)


def output(name: str, **more: Any) -> Output:
    return Output(**{"name": name, "datatype": "FP32", "shape": (2,), **more})


def text(raw: bytes) -> memoryview:
    return request(Tensor(name="T", datatype="BYTES", shape=[1]), raw=[raw])


X, Y, Z = fp32("X"), fp32("Y"), fp32("Z")
TYPED_X, SHARED_X = fp32("X", contents=TYPED), fp32("X", parameters=SHARED)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (request(X, Y, raw=[FLOATS]), "message has 1 raw contents for 2 tensors"),
        (request(X, raw=[FLOATS, FLOATS]), "message has 2 raw contents for 1 tensors"),
        (
            request(TYPED_X, Y, raw=[FLOATS]),
            "the message has 1 raw contents: expected one of the two",
        ),
        (request(TYPED_X, raw=[FLOATS]), "'X' has contents, and the message has 1 raw contents"),
        (request(X, raw=[FLOATS[:4]]), r"'X' has 4 bytes, shape \[2\] of FP32 needs 8"),
        (
            request(X),
            r"'X' has neither contents nor raw contents: expected 2 elements for shape \[2\]",
        ),
        (request(fp32("X", shape=(0,)), raw=[b"\0"]), "has 1 bytes"),
        (request(X, X, raw=[FLOATS] * 2), "'X' occurs 2 times"),
        (text(b"\5\0\0\0plum"), "'T': 8 bytes hold only 0 complete BYTES elements"),
        (text(b"\0\0\0\0\0"), "'T' has bytes after its 1 BYTES elements"),
        (
            request(SHARED_X, Y, raw=[FLOATS] * 2),
            "2 raw contents for 2 tensors, some in shared memory",
        ),
        (
            request(SHARED_X, Y, Z, raw=[FLOATS]),
            "1 raw contents for 3 tensors, some in shared memory",
        ),
        (
            request(fp32("X", parameters=SHARED, contents=TYPED)),
            "'X' has contents and is in shared memory",
        ),
        (request(fp32("X", parameters=NO_SIZE)), "input 'X' has shared_memory_byte_size None"),
    ],
)
def test_rejects_request(view: memoryview, words: str) -> None:
    """Data that do not fit their tensors are rejected with the found and the expected data."""
    with pytest.raises(InvalidRequest if "byte_size" in words else InvalidTensor, match=words):
        READER.request(view)


def test_long_bytes_element_is_rejected() -> None:
    """A raw BYTES element over its limit is rejected under the limit's name; others pass."""
    reader = InferReader(MessageLimits(bytes_element_size=4))
    tensor = Tensor(name="T", datatype="BYTES", shape=[2])
    short = b"\4\0\0\0plum\0\0\0\0"
    _, _, (found,) = reader.request(request(tensor, raw=[short]))
    assert short == bytes(as_raw(found))
    with pytest.raises(TooLarge, match="'T' has an element of 5 bytes, at most 4") as caught:
        reader.request(request(tensor, raw=[b"\5\0\0\0plums\0\0\0\0"]))
    assert "bytes_element_size" == caught.value.limit


def test_responses_may_omit_raw_contents_of_empty_outputs() -> None:
    """An output without elements may have raw contents or none."""
    empty = output("E", shape=(0,))
    for raw in ([FLOATS], [b"", FLOATS]):
        _, _, found = READER.response(response(empty, output("A"), raw=raw))
        assert [b"", FLOATS] == [bytes(as_raw(tensor)) for tensor in found]


@pytest.mark.parametrize("raw", [[], [FLOATS] * 3])
def test_wrong_number_of_raw_outputs(raw: list[bytes]) -> None:
    """A response with a wrong number of raw contents is rejected with both numbers."""
    with pytest.raises(InvalidTensor, match=f"has {len(raw)} raw contents for 2 outputs without"):
        READER.response(response(output("A"), output("B"), raw=raw))


def test_many_unpacked_elements_are_read() -> None:
    """The library reads a tensor with more unpacked elements than the limit of fields."""
    count = MAX_FIELDS + 1
    inner = Tensor(name="X", datatype="UINT8", shape=[count]).SerializeToString()
    contents = (varint(tag(4, VARINT)) + b"\7") * count
    inner += varint(tag(5, LEN)) + varint(len(contents)) + contents
    _, _, (tensor,) = READER.request(memoryview(varint(tag(5, LEN)) + varint(len(inner)) + inner))
    assert b"\7" * count == bytes(as_raw(tensor))


@pytest.mark.parametrize("read", [READER.request, READER.response])
@pytest.mark.parametrize("field", [b"\x22\0", b"\x2a\0", b"\x32\0", b"\x3a\0", b"\x98\6\1"])
def test_million_empty_fields_are_rejected_without_the_library(
    read: Any, field: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of empty fields took 40 times its size as objects, so the scan rejects it."""
    monkeypatch.setattr("gateway.protocols.oip.grpc.decode.parse", None)
    with pytest.raises(TooLarge, match=r"message has more than 7232 fields"):
        read(memoryview(field * 1_000_000))


def test_excess_elements_are_rejected_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed contents with more fields than any shape needs are rejected by the scan, too."""
    monkeypatch.setattr("gateway.protocols.oip.grpc.decode.parse", None)
    inner = Tensor(name="X", datatype="INT32", shape=[1]).SerializeToString()
    contents = b"\x42\0" * 100_000
    inner += varint(tag(5, LEN)) + varint(len(contents)) + contents
    # Those of the message and the tensor around them count too.
    with pytest.raises(TooLarge, match=f"more than {MAX_FIELDS - 5} fields"):
        READER.request(memoryview(varint(tag(5, LEN)) + varint(len(inner)) + inner))


def test_large_message_is_not_passed_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library holds the interpreter's lock while it parses, so large messages are rejected."""
    monkeypatch.setattr("gateway.protocols.oip.grpc.decode._LIBRARY_BYTES", 1000)
    count = MAX_FIELDS + 1
    inner = Tensor(name="X", datatype="UINT8", shape=[count]).SerializeToString()
    contents = (varint(tag(4, VARINT)) + b"\7") * count
    inner += varint(tag(5, LEN)) + varint(len(contents)) + contents
    with pytest.raises(TooLarge, match="at most 1000 bytes are read then"):
        READER.request(memoryview(varint(tag(5, LEN)) + varint(len(inner)) + inner))


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x02a", b"\x0a\x01\xff", b"\x0b", b"\0\0"])
def test_broken_bytes(data: bytes) -> None:
    """Bytes that are not a message, and text that is not UTF-8, are rejected."""
    with pytest.raises(MalformedMessage, match="bytes are not a message of type"):
        READER.request(memoryview(data))
    with pytest.raises(MalformedMessage, match="bytes are not a message of type"):
        parse(memoryview(data), pb.ServerMetadataResponse)


def test_inputs_in_shared_memory_have_no_raw_contents() -> None:
    """Raw contents belong to the inputs outside shared memory, in order."""
    view = request(
        fp32("X", parameters=SHARED), fp32("Y"), fp32("Z", parameters=SHARED), raw=[FLOATS]
    )
    _, _, tensors = InferReader(DEFAULT_LIMITS).request(view)
    place = SharedMemoryData("r", 0, 4)
    assert [place, FLOATS, place] == [
        tensor.data if isinstance(tensor.data, SharedMemoryData) else bytes(as_raw(tensor))
        for tensor in tensors
    ]


def test_outputs_in_shared_memory_have_no_data() -> None:
    """The raw contents may have an empty entry for such an output, or none; both are read."""
    place = SharedMemoryData("r", 0, 4)
    for raw in ([b"", FLOATS], [FLOATS]):
        outputs = [
            pb.ModelInferResponse.InferOutputTensor(name=name, datatype="FP32", shape=shape)
            for name, shape in (("A", [1]), ("B", [2]))
        ]
        message = pb.ModelInferResponse(outputs=outputs, raw_output_contents=raw)
        view = memoryview(message.SerializeToString())
        _, _, tensors = InferReader(DEFAULT_LIMITS).response(view, {"A": place})
        assert (place, FLOATS) == (tensors[0].data, bytes(as_raw(tensors[1])))


def test_typed_inputs_may_accompany_shared_memory() -> None:
    """Without raw contents, an input outside shared memory may have typed contents."""
    view = request(fp32("X", parameters=SHARED), fp32("Y", contents=TYPED))
    _, _, tensors = InferReader(DEFAULT_LIMITS).request(view)
    assert FLOATS == bytes(as_raw(tensors[1]))


def _read(reader: InferReader, view: memoryview, *, is_request: bool) -> object:
    """Return the decoded message, or the type and text of the error."""
    try:
        message, request_id, tensors = reader.request(view) if is_request else reader.response(view)
    except GatewayError as error:
        return type(error), error.message
    own = np.frombuffer(view, np.uint8)
    assert all(np.shares_memory(own, as_raw(each)) for each in tensors)
    return message.model, request_id, tensors


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("is_request", [False, True])
@pytest.mark.parametrize(
    "request_id", [b"", b"a", b"id-9", b"\xff", "\u00e9\u00fc".encode(), b"a\n", b"x" * 2000]
)
def test_cached_message_is_read_as_an_uncached_one(is_request: bool, request_id: bytes) -> None:
    """A reader with cached messages reads changed messages as a new reader does."""
    own, raw = "i" * len(request_id), [FLOATS, b"abcd"]
    if is_request:
        sent = pb.ModelInferRequest(model_name="m", id=own, raw_input_contents=raw)
        sent.inputs.extend([fp32("X"), fp32("Y", ())])
        data = sent.SerializeToString()
    else:
        reply = pb.ModelInferResponse(model_name="m", id=own, raw_output_contents=raw)
        reply.outputs.extend([output("X"), output("Y", shape=())])
        data = reply.SerializeToString()
    reader = InferReader(DEFAULT_LIMITS)
    for _ in range(3):
        _read(reader, memoryview(data), is_request=is_request)
    repeated = data.replace(own.encode(), request_id) if own else data
    repeated = repeated.replace(b"abcd", b"efgh")
    for changed in (repeated, repeated[:-1], *(repeated.replace(b, b"\x7f") for b in (b"X", b"m"))):
        expected = _read(InferReader(DEFAULT_LIMITS), memoryview(changed), is_request=is_request)
        found = _read(reader, memoryview(changed), is_request=is_request)
        assert expected == found, changed
