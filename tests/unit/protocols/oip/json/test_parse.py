"""Large JSON documents with members other than tensor data: cost, limits, and numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, RepositoryIndexRequest
from gateway.ir.errors import InvalidTensor, MalformedMessage, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.tensor import as_numpy
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.json import parse as documents
from gateway.wire.http import Headers, HttpRequest

ROW = b'{"name": "X", "datatype": "INT32", "shape": [1], "data": [1]}'
MANY = b"[]," * 100_000 + b"[]"


def read(text: bytes) -> Any:
    return documents.read_document(memoryview(text), "the request", DEFAULT_LIMITS).members


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs": [%b], "x": [%b]}' % (ROW, MANY),
        b'{"inputs": [%b], "id": [%b]}' % (ROW, MANY),
        b'{"inputs": [%b], "parameters": {"a": [%b]}}' % (ROW, MANY),
        b'{"inputs": [{"name": "X", "x": {"a": [%b]}}]}' % MANY,
        b'{"inputs": [{"name": "X", "shape": [[%b]]}]}' % MANY,
        b'{"inputs": [{"name": "X", "data": {"a": [%b]}}]}' % MANY,
        b'{"inputs": [%b]}' % b",".join([b'{"x": "a", "y": [%b]}' % (b"1," * 4500 + b"1")] * 99),
    ],
    ids=["unknown", "id", "parameter", "of_tensor", "shape", "data", "in_sum"],
)
def test_large_unknown_members_are_rejected(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large members other than tensor data would be 40 times their size as Python objects."""
    closely = documents.check_closely

    def watched(text: bytes, *rest: Any) -> None:
        assert len(text) <= 1 << 18
        closely(text, *rest)

    monkeypatch.setattr(documents, "check_closely", watched)
    with pytest.raises(TooLarge, match="bytes in members other than tensor data") as caught:
        read(text)
    assert "json_bytes" == caught.value.limit


@pytest.mark.parametrize("text", ["x" * 300_000, r"\"[{\\" * 60_000], ids=["plain", "escaped"])
def test_long_strings_beside_tensor_data_are_read(text: str) -> None:
    """A string parameter of 300 KB was too large: a string takes no more than its size."""
    parameters = {"s": text, "l": {"a": [text[:9], {"b": "é"}]}}
    row = '{"name": "X", "x": ["%s"]}' % ("y" * 300_000)
    members = read(f'{{"inputs": [{row}], "parameters": {json.dumps(parameters)}}}'.encode())
    assert parameters == members["parameters"]
    assert ["name"] == sorted(members["inputs"][0])


def test_the_bound_on_other_members_follows_json_bytes() -> None:
    """The error names the limit that helps."""
    text = b'{"inputs": [%b], "x": [%b]}' % (ROW, MANY)
    with pytest.raises(TooLarge, match=r"at most 1/64 of json_bytes is allowed"):
        read(text)
    limits = MessageLimits(json_bytes=64 << 20)
    assert documents.read_document(memoryview(text), "the request", limits).members


def test_many_unknown_keys_are_rejected() -> None:
    """A lookup passes over all keys, so many unknown keys in many tensors are rejected."""
    row = json.dumps({"name": "X", **{f"k{n}": 0 for n in range(2000)}})
    with pytest.raises(TooLarge, match="too many unknown keys: 2000") as caught:
        read(f'{{"inputs": [{row}, {row}, {row}]}}'.encode())
    assert "json_keys" == caught.value.limit


def test_large_malformed_document_is_parsed_only_once() -> None:
    """Above a mebibyte, a document that simdjson rejects is not passed to another parser."""
    text = b'{"inputs": [%b], "x": [%b]' % (ROW, b"[]," * 400_000 + b"[]")
    with pytest.raises(MalformedMessage, match="not JSON, or has an integer beyond 64 bits"):
        read(text)


def test_unknown_members_of_large_documents_are_read() -> None:
    """Some kilobytes of unknown members do not lead to a rejection; those of tensors are left out."""
    data = b"1," * 50_000 + b"1"
    row = b'{"name": "X", "data": [%b], "x": {"a": [1, {"b": null}]}}' % data
    members = read(b'{"inputs": [%b], "trace": ["a", {"b": "c"}], "id": "1"}' % row)
    assert ["id", "inputs", "trace"] == sorted(members)
    assert ["data", "name"] == sorted(members["inputs"][0])


def test_key_with_nul_was_an_internal_error() -> None:
    """A key that simdjson cannot look up is rejected, in a large document as well."""
    text = b'{"outputs": [{"\\u0000": null}]}' + b" " * documents.SIMD_FROM_BYTES
    with pytest.raises(MalformedMessage, match=r"key '\\x00', which cannot be read"):
        read(text)


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 3000])
def test_misplaced_list_is_found_among_many_lists(rows: int) -> None:
    """A list in place of an element is rejected, whatever the number of arrays."""
    path = "/v2/models/m/infer"
    codec = HttpCodec(DEFAULT_LIMITS, {})
    space = b" " * documents.SIMD_FROM_BYTES
    body = b'{"inputs":[{"name":"X","shape":[%d,4],"datatype":"FP32","data":[%b]}]}'
    row = b"[1.0,2.0,3.0,4.000000000000000000000000000000000000]"
    good = body % (rows, b",".join([row] * rows)) + space
    call = codec.decode_call(HttpRequest("POST", path, body=(good,)))
    assert isinstance(call, InferRequest)
    assert (rows, 4) == as_numpy(call.inputs[0]).shape
    bad = body % (rows, b",".join([row] * (rows - 1) + [b"[1.0,[2.0],3.0,4.0]"]))
    with pytest.raises(InvalidTensor, match="nested differently"):
        codec.decode_call(HttpRequest("POST", path, body=(bad + space,)))


@pytest.mark.parametrize("at", [1, 99_999, 199_999])
def test_misplaced_list_is_found_at_any_index(at: int) -> None:
    """A list in place of an element is rejected at any index; brackets are searched in pieces."""
    with pytest.raises(InvalidTensor, match="nested differently"):
        numbers(["0.5"] * at + ["[2.5]"] + ["0.5"] * (199_999 - at), "FP32")


LARGEST = float(np.finfo(np.float32).max)
# Halfway to the value that would follow if FP32 had more exponents.
TOO_LARGE = 2.0**128 - 2.0**103


def test_the_largest_floats_of_a_large_list() -> None:
    """A number that rounds to the largest FP32 is read as that."""
    near = math.nextafter(TOO_LARGE, 0)
    read = numbers([repr(near), repr(-near), "1e-320"] + ["0.5"] * 9_997, "FP32")
    assert [LARGEST, -LARGEST, 0.0] == read[:3].tolist()


@pytest.mark.parametrize("text", [f"{TOO_LARGE:.1f}", "-1e39", "1e300"])
@pytest.mark.parametrize("at", [0, 5, 9_999])
def test_float_out_of_range_is_rejected_in_a_large_list(text: str, at: int) -> None:
    """A number that would round to an infinity is rejected with its index."""
    with pytest.raises(InvalidTensor, match=f" at index {at}: out of the range of FP32"):
        numbers(["0.5"] * at + [text] + ["0.5"] * (9_999 - at), "FP32")


def numbers(texts: list[str], datatype: str) -> Any:
    """Return the array of one input with these numbers."""
    head = f'"name":"X","shape":[{len(texts)}],"datatype":"{datatype}"'
    body = f'{{"inputs":[{{{head},"data":[{",".join(texts)}]}}]}}'.encode()
    assert len(body) >= documents.SIMD_FROM_BYTES
    codec = HttpCodec(DEFAULT_LIMITS, {})
    call = codec.decode_call(HttpRequest("POST", "/v2/models/m/infer", body=(memoryview(body),)))
    assert isinstance(call, InferRequest)
    return as_numpy(call.inputs[0])


@pytest.mark.parametrize("rows", [60, 61])
def test_nested_lists_count_together(rows: int) -> None:
    """The limit of elements applies to the nested lists of all inputs together."""
    limits = MessageLimits(bytes_elements=120)
    row = b'{"name": "%b", "datatype": "INT32", "shape": [%d, 1], "data": [%b]}'
    data = b",".join([b"[1]"] * rows)
    inputs = b",".join(row % (name, rows, data) for name in (b"X", b"Y"))
    # Blanks make it a large document, whose lists are not Python objects.
    text = b'{"inputs": [%b]%b}' % (inputs, b" " * 9000)
    wire = HttpRequest("POST", "/v2/models/m/infer", body=(text,))
    codec = HttpCodec(limits, {})
    if rows == 60:
        call = codec.decode_call(wire)
        assert isinstance(call, InferRequest)
        assert 2 == len(call.inputs)
    else:
        with pytest.raises(TooLarge, match="122 in all tensors") as caught:
            codec.decode_call(wire)
        assert "bytes_elements" == caught.value.limit


@pytest.mark.parametrize("binary", [False, True])
def test_texts_of_all_tensors_count_together(binary: bool) -> None:
    """The limit of BYTES elements applies to all tensors together, binary or not."""
    limits = MessageLimits(bytes_elements=5)
    elements: dict[str, Any] = {"data": ["a", "b", "c"]}
    if binary:
        elements = {"parameters": {"binary_data_size": 12}}
    rows = [{"name": name, "datatype": "BYTES", "shape": [3], **elements} for name in ("X", "Y")]
    text = json.dumps({"inputs": rows}).encode()
    headers = Headers((("Inference-Header-Content-Length", str(len(text))),) if binary else ())
    body = text + bytes(24) if binary else text
    with pytest.raises(TooLarge, match="6 in all tensors"):
        HttpCodec(limits, {}).decode_call(
            HttpRequest("POST", "/v2/models/m/infer", "", headers, (body,))
        )


@pytest.mark.parametrize("count", [1, 2, 10_000])
def test_a_byte_order_mark_is_skipped(count: int) -> None:
    """A byte order mark before the JSON is skipped, also in a repeated message."""
    data = ",".join("7" * count)
    row = f'{{"name": "X", "datatype": "INT32", "shape": [{count}], "data": [{data}]}}'
    body = f'\ufeff {{"inputs": [{row}]}}'.encode()
    codec = HttpCodec(DEFAULT_LIMITS, {"repository_index": True})
    wire = HttpRequest("POST", "/v2/models/m/infer", "", Headers(()), (memoryview(body),))
    for _ in range(3):
        call = codec.decode_call(wire)
        assert isinstance(call, InferRequest)
        assert [7] * count == as_numpy(call.inputs[0]).tolist()
    ready = (memoryview('\ufeff{"ready": true}'.encode()),)
    index = codec.decode_call(HttpRequest("POST", "/v2/repository/index", "", Headers(()), ready))
    assert isinstance(index, RepositoryIndexRequest)
    assert index.ready_only


@pytest.mark.parametrize("text", ["", "\ufeff", "\ufeff\ufeff{}", "\ufffe{}"])
def test_other_text_before_the_object_is_rejected(text: str) -> None:
    """Only one byte order mark before the object is skipped."""
    with pytest.raises(MalformedMessage, match="is not a JSON object"):
        read(text.encode())
