"""Decoding of inference requests: every form of data, and invalid requests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import CallSequence
from gateway.ir.errors import GatewayError, InvalidRequest, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, as_items, as_numpy
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.json.parse import SIMD_FROM_BYTES
from gateway.wire.http import Headers, HttpRequest
from tests.cases.oip_http import LENGTH_HEADER, X_BINARY, X_JSON, X_RAW, one_input, post

# Padding makes a document large, so that simdjson reads it.
PAD = b" " * SIMD_FROM_BYTES
SIZES = [pytest.param(b"", id="small"), pytest.param(PAD, id="large")]


def decode(wire: HttpRequest, **limits: int) -> InferRequest:
    call = HttpCodec(MessageLimits(**limits), {}).decode_call(wire)
    assert isinstance(call, InferRequest)
    return call


def padded(document: Any, pad: bytes) -> HttpRequest:
    text = (
        document
        if isinstance(document, bytes)
        else json.dumps(document, ensure_ascii=False).encode()
    )
    return post(text + pad)


def decode_error(wire: HttpRequest, **limits: int) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        decode(wire, **limits)
    return caught.value


def values(datatype: str, shape: list[int], data: Any, pad: bytes) -> Any:
    (tensor,) = decode(padded(one_input(datatype, shape, data), pad)).inputs
    assert tuple(shape) == tensor.shape
    if tensor.datatype is Datatype.BYTES:
        return [bytes(item) for item in as_items(tensor)]
    return as_numpy(tensor).tolist()


GOOD: list[tuple[str, list[int], Any, Any]] = [
    ("BOOL", [2], [True, False], [True, False]),
    ("INT8", [2], [-128, 127], [-128, 127]),
    ("UINT8", [2], [0, 255], [0, 255]),
    ("INT16", [2], [-32768, 32767], [-32768, 32767]),
    ("UINT16", [1], [65535], [65535]),
    ("INT32", [2], [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1]),
    ("UINT32", [1], [2**32 - 1], [2**32 - 1]),
    ("INT64", [3], [-(2**63), 2**53 + 1, 2**63 - 1], [-(2**63), 2**53 + 1, 2**63 - 1]),
    ("UINT64", [2], [2**64 - 1, 2**53 + 1], [2**64 - 1, 2**53 + 1]),
    ("FP32", [3], [1, -0.5, 3.4028235e38], [1.0, -0.5, float(np.float32(3.4028235e38))]),
    ("FP64", [2], [0.1, 1e308], [0.1, 1e308]),
    ("FP64", [1], [10**20], [1e20]),
    ("BYTES", [2], ["é", ""], ["é".encode(), b""]),
    ("INT32", [2, 2], [1, 2, 3, 4], [[1, 2], [3, 4]]),
    ("INT32", [2, 2], [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    ("FP32", [1, 2, 1], [[[1], [2.5]]], [[[1.0], [2.5]]]),
    ("BYTES", [2, 1], [["a"], ["["]], [b"a", b"["]),
    ("INT32", [], [7], 7),
    ("FP32", [0], [], []),
    ("FP32", [2, 0], [], [[], []]),
    ("FP32", [2, 0], [[], []], [[], []]),
]


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize(("datatype", "shape", "data", "expected"), GOOD)
def test_json_data(datatype: str, shape: list[int], data: Any, expected: Any, pad: bytes) -> None:
    """Flat and nested data of every datatype is read exactly, by both parsers."""
    assert expected == values(datatype, shape, data, pad)


BAD: list[tuple[str, list[int], Any, str]] = [
    ("INT32", [1], [1.0], "index 0: expected an integer for INT32"),
    ("INT32", [2], [1, 1.5], "1.5 at index 1: expected an integer for INT32"),
    ("INT32", [1], ["1"], "'1' at index 0: expected an integer for INT32"),
    ("INT32", [1], [None], "null at index 0"),
    ("INT32", [1], [True], "true at index 0: expected an integer for INT32"),
    ("INT32", [1], [2**31], "2147483648 at index 0: out of the range of INT32"),
    ("INT8", [2], [0, 200], "200 at index 1: out of the range of INT8"),
    ("UINT8", [1], [-1], "-1 at index 0: out of the range of UINT8"),
    ("UINT64", [1], [-1], "-1 at index 0: out of the range of UINT64"),
    ("INT64", [1], [2**63], "9223372036854775808 at index 0"),
    ("FP32", [1], [None], "null at index 0: expected a number for FP32"),
    ("FP32", [1], ["NaN"], "expected a number for FP32"),
    ("FP32", [1], [True], "true at index 0: expected a number for FP32"),
    ("FP32", [2], [0, 1e39], "1e+39 at index 1: out of the range of FP32"),
    ("BOOL", [1], [1], "1 at index 0: expected true or false for BOOL"),
    ("BYTES", [1], [5], "5 at index 0: expected a string for BYTES"),
    ("BYTES", [1], [{"b64": "x"}], "an object at index 0: expected a string for BYTES"),
    ("FP16", [1], [1], "'x' is FP16, which JSON cannot represent"),
    ("BF16", [1], [1], "binary_data_size"),
    ("INT32", [2], [1], "1 elements in data: expected 2 for shape [2]"),
    ("INT32", [1], [1, 2], "2 elements in data: expected 1 for shape [1]"),
    ("INT32", [2, 2], [[1, 2, 3], [4]], "nested differently from its shape [2, 2]"),
    ("INT32", [2, 2], [[1, 2], 3, 4], "nested differently"),
    ("INT32", [4], [[1, 2], [3, 4]], "nested differently"),
    ("INT32", [1], [[1]], "a list at index 0"),
    ("INT32", [3], [1, [2, 3], []], "a list at index 1"),
    ("INT32", [1, 3], [[1, [2, 3], []]], "a list at index 1"),
    ("INT32", [1], 5, "has data 5: expected a list"),
    ("INT32", [1], "5", "has data '5'"),
    ("INT32", [1], {"a": 1}, "has data an object"),
    ("INT32", [1], None, "has no data"),
]


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize(("datatype", "shape", "data", "expected"), BAD)
def test_rejects_json_data(
    datatype: str, shape: list[int], data: Any, expected: str, pad: bytes
) -> None:
    """Data that do not fit the datatype are rejected with the input, the index and the expected form."""
    error = decode_error(padded(one_input(datatype, shape, data), pad))
    assert isinstance(error, InvalidRequest)
    assert "input 'x'" in error.message
    if not (pad and "a list at index" in expected):
        assert expected in error.message
    else:  # a proxy's lists are found by counting, without an index
        assert "list" in error.message or "nested" in error.message or "elements" in error.message


def test_brackets_and_colons_in_names_are_neither_lists_nor_keys() -> None:
    """Such characters, as in TensorFlow's input:0, lead to a closer check, not to a rejection."""
    data = list(range(5000))
    document = {"inputs": [{"name": "[x[", "shape": [5000], "datatype": "INT32", "data": data}]}
    (tensor,) = decode(post(document)).inputs
    assert data == as_numpy(tensor).tolist()
    document = {"inputs": [{"name": "a:0", "shape": [1], "datatype": "BYTES", "data": ["x:{["]}]}
    (tensor,) = decode(post(document)).inputs
    assert ("a:0", [b"x:{["]) == (tensor.name, list(as_items(tensor)))


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"inputs":[],"inputs":[]}', "'inputs' twice"),
        (b'{"inputs":[{"name":"a","name":"b"}]}', "'name' twice"),
        (b'{"parameters":{"a":1,"a":2},"inputs":[]}', "'a' twice"),
        (b'{"inputs":[],"extra":{"z":1,"z":2}}', "'z' twice"),
        (b'{"inputs":[],"outputs":[{"name":"y","parameters":{"q":1,"q":1}}]}', "'q' twice"),
        (b'{"inputs":[],"\\u0069nputs":[]}', "'inputs' twice"),
    ],
)
def test_duplicate_keys_are_rejected(text: bytes, expected: str, pad: bytes) -> None:
    """A key twice in one object is rejected, because parsers disagree on which one counts."""
    assert expected in decode_error(post(text + pad)).message


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1]",
        b"7",
        b"null",
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[Infinity]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1e999]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["\\ud800"]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["\xff"]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[' + b"9" * 5000 + b"]}]}",
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[1_0]}]}',
        b'{"inputs":[]}}',
        b'{"inputs":[],}',
        b"{'inputs':[]}",
        b'{"inputs":[' + b"[" * 3000 + b"]" * 3000 + b"]}",
        b"\x00" * 20,
    ],
)
def test_invalid_json_is_rejected(text: bytes, pad: bytes) -> None:
    """Anything but one JSON object raises InvalidRequest or TooLarge."""
    assert isinstance(decode_error(post(text + pad)), InvalidRequest | TooLarge)


def with_x(**members: Any) -> dict[str, Any]:
    """Return a request whose only input has other members."""
    return {"inputs": [{**X_JSON, **members}]}


def with_inputs(**members: Any) -> dict[str, Any]:
    return {"inputs": [X_JSON], **members}


def with_output(**parameters: Any) -> dict[str, Any]:
    return with_inputs(outputs=[{"name": "y", "parameters": parameters}])


TWO_OUTPUTS = [{"name": "y"}, {"name": "y", "parameters": {"a": 1}}]


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, "no 'inputs'"),
        ({"inputs": None}, "no 'inputs'"),
        ({"inputs": {}}, "'inputs' of the message is an object"),
        ({"inputs": [3]}, "input 0 is 3: expected an object"),
        ({"inputs": [[]]}, "input 0 is"),
        ({"inputs": [{}]}, "input 0 has no 'name'"),
        ({"inputs": [{"name": ""}]}, "'name' of input 0 is ''"),
        ({"inputs": [{"name": "a\u0007"}]}, "U+0007"),
        ({"inputs": [{"name": "x"}]}, "input 'x' has no 'datatype'"),
        ({"inputs": [{"name": "x", "datatype": 5}]}, "'datatype' of input 'x' is 5"),
        ({"inputs": [{"name": "x", "datatype": "FLOAT"}]}, "datatype 'FLOAT'"),
        ({"inputs": [{"name": "x", "datatype": "INT8"}]}, "input 'x' has no 'shape'"),
        (with_x(shape=4), "'shape' of input 'x' is 4"),
        (with_x(shape=[4.0]), "'shape' of input 'x' is a list"),
        (with_x(shape=[True]), "'shape' of input 'x'"),
        (with_x(shape=[-1, -4]), "must not be negative"),
        ({"inputs": [X_JSON, X_JSON]}, "input 'x' occurs twice"),
        (with_x(parameters=3), "'parameters' of input 'x' is 3"),
        (with_x(parameters={"a": [1]}), "parameter 'a' of input 'x' is a list"),
        (with_inputs(parameters={"a": [1]}), "parameter 'a' of the request is a list"),
        (with_inputs(parameters=[]), "'parameters' of the request is a list"),
        (with_inputs(parameters={"triton_x": 1}), "'triton_x'"),
        (with_inputs(parameters={"sequence_id": -1}), "'sequence_id' is -1"),
        (with_inputs(parameters={"binary_data_output": 1}), "'binary_data_output'"),
        (with_inputs(id=5), "'id' of the message is 5"),
        (with_inputs(outputs=5), "'outputs' of the message is 5"),
        (with_inputs(outputs=[5]), "output 0 is 5"),
        (with_inputs(outputs=TWO_OUTPUTS), "output 'y' occurs twice"),
        (with_output(binary_data=1), "'binary_data' of output 'y' is 1"),
        (with_output(binary_data=0), "'binary_data' of output 'y' is 0"),
        (with_output(binary_data="true"), "of output 'y' is 'true': expected true or false"),
        (with_output(classification=-1), "'classification' of output 'y'"),
    ],
)
def test_rejects_members(document: Any, expected: str, pad: bytes) -> None:
    """A member that is missing or of a wrong type is named in the error, with its value."""
    error = decode_error(padded(document, pad))
    assert isinstance(error, InvalidRequest)
    assert expected in error.message


REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": 8}
SHARED_INPUT: dict[str, Any] = {"name": "x", "shape": [1], "datatype": "INT32"}
SHARED_INPUT["parameters"] = REGION


def test_outputs_may_be_classes_or_in_shared_memory() -> None:
    """Inputs may be in a region, too; a classification of 0 requests the values."""
    document = {"inputs": [SHARED_INPUT], "outputs": [{"name": "y", "parameters": REGION}]}
    call = decode(post(document))
    assert SharedMemoryData("r", 8, 4) == call.inputs[0].data == call.outputs[0].shared
    assert ({}, {}) == (call.inputs[0].parameters, call.outputs[0].parameters)
    for count in (0, 2):
        output = {"name": "y", "parameters": {"classification": count}}
        call = decode(post({"inputs": [X_JSON], "outputs": [output]}))
        assert (RequestedOutput("y", classes=count),) == call.outputs


def shared_x(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{**SHARED_INPUT, **fields}]}


CLASSES = {"name": "y", "parameters": {**REGION, "classification": 1}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (shared_x(data=[1]), "'x' has data and is in shared memory"),
        (shared_x(parameters={"shared_memory_region": "r"}), "shared_memory_byte_size None"),
        (shared_x(parameters={**REGION, "shared_memory_region": ""}), "shared_memory_region ''"),
        ({"inputs": [X_JSON], "outputs": [CLASSES]}, "as classes and in shared memory"),
    ],
)
def test_invalid_shared_memory_parameters_are_rejected(document: Any, expected: str) -> None:
    """An incomplete region, or one together with data or classes, is rejected."""
    error = decode_error(post(document))
    assert isinstance(error, InvalidRequest)
    assert expected in error.message


def test_null_members_are_absent() -> None:
    """Some clients write every member; MLServer's write null for unused parameters."""
    nulls = {"id": None, "parameters": None, "outputs": None}
    call = decode(post({"inputs": [{**X_JSON, "parameters": None}], **nulls}))
    assert ("", {}, ()) == (call.id, call.parameters, call.outputs)
    unused = {"parameters": {"headers": None, "k": 1}}
    call = decode(
        post({"inputs": [X_JSON | unused], "outputs": [{"name": "y"} | unused], **unused})
    )
    found = [call.parameters, call.inputs[0].parameters, call.outputs[0].parameters]
    assert [{"k": 1}] * 3 == found


@pytest.mark.parametrize("key", ["sequence_id", "priority", "binary_data_output", "triton_x"])
def test_null_reserved_parameter_is_rejected(key: str) -> None:
    """As in Triton, null is a wrong type for a parameter that has a type."""
    assert "is null" in decode_error(post(with_inputs(parameters={key: None}))).message


def test_parameters_of_every_type() -> None:
    """Reserved parameters are split off; others keep their types."""
    reserved = {"sequence_id": 2**64 - 1, "sequence_end": True, "priority": 1, "timeout": 5}
    others = {"i": -(2**63), "f": 1.0, "b": False, "s": "é"}
    call = decode(post(with_inputs(parameters={**reserved, **others})))
    assert CallSequence(2**64 - 1, end=True) == call.sequence
    assert (1, 5) == (call.priority, call.timeout_us)
    assert repr(others) == repr(dict(call.parameters))


def test_mixed_json_and_binary() -> None:
    """One request may have JSON and binary inputs; only the binary ones consume bytes."""
    second = {**X_BINARY, "name": "z", "parameters": {"binary_data_size": 16, "k": "v"}}
    call = decode(post({"inputs": [X_BINARY, {**X_JSON, "name": "y"}, second]}, X_RAW + X_RAW))
    assert [[[0, 1, 2, 3]]] * 3 == [as_numpy(tensor).tolist() for tensor in call.inputs]
    assert {"k": "v"} == call.inputs[2].parameters


def _sized(size: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": [{**X_BINARY, "parameters": {"binary_data_size": size}, **more}]}


@pytest.mark.parametrize(
    ("document", "binary", "expected"),
    [
        (_sized(16), X_RAW + b"!", "1 bytes are left"),
        (_sized(16), X_RAW[:-3], "3 bytes of it are missing"),
        (_sized(12), X_RAW[:12], "has 12 bytes, shape [1, 4] of INT32 needs 16"),
        (_sized(-1), b"", "binary_data_size -1:"),
        (_sized(True), X_RAW, "binary_data_size True:"),
        (_sized("16"), X_RAW, "binary_data_size '16':"),
        (_sized(16, data=[1, 2, 3, 4]), X_RAW, "both data and binary_data_size"),
        (_sized(4, datatype="BYTES", shape=[1]), b"\x05\0\0\0", "only 0 complete BYTES elements"),
    ],
)
def test_rejects_binary_parts(document: Any, binary: bytes, expected: str) -> None:
    """Sizes that do not agree are rejected with both numbers."""
    error = decode_error(post(document, binary))
    assert isinstance(error, InvalidRequest)
    assert expected in error.message


def sized_body(body: bytes, *lengths: str) -> HttpRequest:
    """Return a request with these length headers."""
    headers = Headers([(LENGTH_HEADER, length) for length in lengths])
    return HttpRequest("POST", "/v2/models/m/infer", "", headers, (memoryview(body),))


@pytest.mark.parametrize(
    "value", ["-1", "+5", "1_0", " 5", "5 ", "abc", "", "1.0", "0x10", "٣", "9" * 30, "10000"]
)
def test_invalid_length_headers_are_rejected(value: str) -> None:
    """The length header must be ASCII digits, and at most the length of the body."""
    assert LENGTH_HEADER in decode_error(sized_body(b'{"inputs":[]}', value)).message


def test_length_headers_are_compared_with_each_body() -> None:
    """Headers that repeat are parsed once, but compared with the body of each request."""
    text = json.dumps({"inputs": [X_JSON]}).encode()
    codec = HttpCodec(DEFAULT_LIMITS, {})
    for body in (text, text[:-1], text, text + b"1"):
        wire = sized_body(body, str(len(text)))
        if body == text:
            assert codec.decode_call(wire).model is not None
        else:
            with pytest.raises(GatewayError, match=r"the complete body has|bytes are left"):
                codec.decode_call(wire)


BINARY_TEXT = json.dumps({"inputs": [X_BINARY]}).encode()
EXPLAINED = ("a binary request is the JSON followed by", LENGTH_HEADER, "data=json_bytes + tensor")


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (sized_body(BINARY_TEXT + X_RAW, *[str(len(BINARY_TEXT))] * 2), ["more than once"]),
        (sized_body(BINARY_TEXT + X_RAW, "10"), ["is not JSON"]),
        (sized_body(X_RAW), EXPLAINED),
        (sized_body(BINARY_TEXT), ["16 bytes of it are missing", LENGTH_HEADER]),
        (sized_body(BINARY_TEXT + X_RAW), [LENGTH_HEADER]),
        (sized_body(BINARY_TEXT + PAD + X_RAW), [LENGTH_HEADER]),
    ],
    ids=["twice", "cut", "no_json", "no_bytes", "no_length", "no_length_large"],
)
def test_error_of_a_binary_body_explains_the_format(wire: HttpRequest, expected: Any) -> None:
    """The error has the missing size, or explains how a binary request is built."""
    message = decode_error(wire).message
    assert [] == [words for words in expected if words not in message]


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", ""])
def test_content_type_is_ignored(content_type: str) -> None:
    """Some clients send no content type (tritonclient), or an unusual one."""
    wire = post({"inputs": [X_JSON]}, headers=(("Content-Type", content_type),))
    assert 1 == len(decode(wire).inputs)


def test_duplicate_requested_output_is_merged() -> None:
    """Equal duplicates of a requested output are merged; Triton accepts such a request."""
    call = decode(post(with_inputs(outputs=[{"name": name} for name in "yzy"])))
    assert ["y", "z"] == [output.name for output in call.outputs]


LIMITS: list[tuple[str, int, Any]] = [
    ("json_bytes", 200, {"inputs": [{**X_JSON, "name": "x" * 107}]}),
    ("tensors", 2, {"inputs": [{**X_JSON, "name": str(i)} for i in range(2)]}),
    ("outputs", 2, {"inputs": [X_JSON], "outputs": [{"name": str(i)} for i in range(2)]}),
    ("rank", 2, {"inputs": [X_JSON]}),
    ("dim", 4, {"inputs": [X_JSON]}),
    ("elements", 4, {"inputs": [X_JSON]}),
    ("bytes_elements", 2, one_input("BYTES", [2], ["a", "b"])),
    ("bytes_element_size", 3, one_input("BYTES", [1], ["abc"])),
    ("name_bytes", 5, {"inputs": [{**X_JSON, "name": "abcde"}]}),
    ("name_bytes", 6, {"id": "abcdef", "inputs": [X_JSON]}),
    ("parameters", 2, {"inputs": [X_JSON], "parameters": {"a": 1, "b": 2}}),
    ("json_keys", 5, {"inputs": [X_JSON], "a:": 1, "b": 2, "c": 3, "d": 4}),
    ("json_depth", 4, {"inputs": [X_JSON], "a": [[[]]]}),
]


@pytest.mark.parametrize(("limit", "most", "document"), LIMITS)
def test_limits(limit: str, most: int, document: Any) -> None:
    """A value at a limit passes; one more is rejected under the limit's name."""
    if limit == "json_bytes":
        most = len(post(document).view)
    decode(post(document), **{limit: most})
    error = decode_error(post(document), **{limit: most - 1})
    assert isinstance(error, TooLarge)
    assert limit == error.limit


def test_limits_of_large_documents() -> None:
    """The same limits apply to documents that simdjson parses."""
    wire = post({"inputs": [], **{str(key): 0 for key in range(2000)}})
    decode(wire, json_keys=2001)
    assert "json_keys" == decode_error(wire, json_keys=2000).limit
    decode(post(b'{"inputs":[],"a":' + b"[" * 63 + b"]" * 63 + b"}" + PAD))
    too_deep = b'{"inputs":[],"a":' + b"[" * 64 + b"]" * 64 + b"}" + PAD
    assert "json_depth" == decode_error(post(too_deep)).limit


def test_binary_bytes_element_size_is_limited() -> None:
    """Elements of binary BYTES have the same limit as those in JSON."""
    wire = post(_sized(7, datatype="BYTES", shape=[1]), b"\x03\0\0\0abc")
    decode(wire, bytes_element_size=3)
    assert "bytes_element_size" == decode_error(wire, bytes_element_size=2).limit


def test_shape_that_overflows_is_rejected() -> None:
    """2**32 times 2**32 elements are not zero elements."""
    document = {"inputs": [{**X_JSON, "shape": [2**32, 2**32], "data": []}]}
    assert isinstance(decode_error(post(document)), TooLarge)


def test_every_truncated_request_is_rejected() -> None:
    """Each proper prefix of a valid request raises InvalidRequest."""
    body = bytes(post({"id": "1", "inputs": [X_JSON], "outputs": [{"name": "y"}]}).view)
    for end in range(len(body)):
        assert isinstance(decode_error(post(body[:end])), InvalidRequest)


def test_large_tensor_of_floats_is_read_exactly() -> None:
    """150,528 floats are read exactly, flat and nested."""
    floats = np.random.default_rng(1).random(150_528, np.float32)
    for array in (floats, floats.reshape(1, 3, 224, 224)):
        member = {"name": "x", "shape": [1, 3, 224, 224], "datatype": "FP32", "data": array}
        text = orjson.dumps({"inputs": [member]}, option=orjson.OPT_SERIALIZE_NUMPY)
        (tensor,) = decode(post(text)).inputs
        np.testing.assert_array_equal(floats.reshape(1, 3, 224, 224), as_numpy(tensor))
