"""The JSON template cache: a template gives the same calls and the same errors as the parser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, MalformedMessage
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import RequestedOutput, as_numpy, as_raw
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.json.templates import JsonTemplateCache
from gateway.wire.http import Headers, HttpRequest, HttpResponse

pytestmark = pytest.mark.usefixtures("build")

LENGTH = "Inference-Header-Content-Length"
CALL = InferRequest(model=ModelRef("m"))
TWO = {
    "id": "a-1",
    "inputs": [
        {"name": "A", "shape": [1, 3], "datatype": "INT32", "data": [1, -2, 3]},
        {"name": "B", "shape": [2], "datatype": "FP32", "data": [0.5, 1]},
    ],
    "outputs": [{"name": "C", "parameters": {"classification": 2}}],
}
BINARY = {
    "parameters": {"binary_data_output": True, "mine": "x"},
    "inputs": [
        {"name": "A", "shape": [2], "datatype": "INT16", "parameters": {"binary_data_size": 4}},
        {"name": "B", "shape": [1], "datatype": "UINT8", "data": [7]},
        {"name": "C", "shape": [1], "datatype": "FP64", "parameters": {"binary_data_size": 8}},
    ],
}
REPLY = {
    "model_name": "m",
    "model_version": "3",
    "id": "x",
    "outputs": [
        {"name": "A", "shape": [2], "datatype": "INT16", "parameters": {"binary_data_size": 4}},
        {"name": "B", "shape": [2], "datatype": "INT64", "data": [7, 8]},
    ],
}


NESTED = [
    b"[[4,5,6]]",
    b"[4,5,6]",
    b"[[4],[5],[6]]",
    b"[[4,5],6]",
    b"[[[4,5,6]]]",
    b"[[4,5]]",
    b"[[4,5,6],[7,8,9]]",
    b"[[]]",
    b"[4,[5],6]",
    b"[[4,5,6]",
]


def compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def request(text: bytes, tail: bytes = b"", length: int | None = None) -> HttpRequest:
    pairs = ((LENGTH, str(len(text) if length is None else length)),) if tail else ()
    return HttpRequest("POST", "/v2/models/m/infer", "", Headers(pairs), (memoryview(text + tail),))


def reply(text: bytes, tail: bytes = b"") -> HttpResponse:
    pairs = ((LENGTH, str(len(text))),) if tail else ()
    return HttpResponse(200, Headers(pairs), (memoryview(text + tail),))


def codec(limits: MessageLimits = DEFAULT_LIMITS) -> HttpCodec:
    return HttpCodec(limits, {})


def decode_request(reader: HttpCodec, wire: HttpRequest) -> object:
    """Return the decoded call and its form, or the type and text of the error."""
    try:
        call = reader.decode_call(wire)
    except GatewayError as error:
        return type(error), error.message
    assert call.context.origin is not None
    return call, call.context.origin.form


def decode_response(reader: HttpCodec, wire: HttpResponse, call: InferRequest = CALL) -> object:
    """Return the decoded reply, or the type and text of the error."""
    try:
        return reader.decode_reply(call, wire)
    except GatewayError as error:
        return type(error), error.message


def read(reader: HttpCodec, wire: HttpRequest) -> InferRequest:
    """Return the inference call in *wire*."""
    call = reader.decode_call(wire)
    assert isinstance(call, InferRequest)
    return call


def templates_of(reader: HttpCodec) -> JsonTemplateCache[Any]:
    return reader.request_templates


def has_template(templates: JsonTemplateCache[Any], body: memoryview, json_bytes: int) -> bool:
    """Return whether a template reads this message."""
    found, _ = templates.parse(body, json_bytes)
    return found is not None


def mutations(text: bytes, within: bytes | None = None) -> list[bytes]:
    """Return copies of *text* with each byte, of a part *within* it, removed, doubled or replaced."""
    found = []
    start = 0 if within is None else text.index(within)
    for at in range(start, len(text) if within is None else start + len(within)):
        found += [text[:at] + text[at + 1 :], text[:at] + text[at : at + 1] + text[at:]]
        found += [text[:at] + bytes((byte,)) + text[at + 1 :] for byte in b'0e-.,"[]{}: \0x\xff']
    return found


@pytest.mark.parametrize("spaced", [False, True])
def test_request_read_by_a_template_equals_a_parsed_one(spaced: bool) -> None:
    """A template reads other elements and another id, in JSON with and without spaces."""
    dump = (lambda document: json.dumps(document).encode()) if spaced else compact
    reader = codec()
    for _ in range(2):
        reader.decode_call(request(dump(TWO)))
    assert 1 == len(templates_of(reader))
    other = json.loads(json.dumps(TWO).replace("a-1", "b_22").replace("-2, 3", "70000, 0"))
    call = read(reader, request(dump(other)))
    assert codec().decode_call(request(dump(other))) == call
    assert "b_22" == call.id
    assert [[1, 70000, 0]] == as_numpy(call.inputs[0]).tolist()
    assert 1 == len(templates_of(reader))


@pytest.mark.parametrize("nested", [False, True])
def test_change_of_any_byte_of_a_request_is_detected(nested: bool) -> None:
    """Each mutation of a cached text is read or rejected as by a new codec."""
    reader, text, part = codec(), compact(TWO), None
    if nested:
        part = b"[[1,-2,3]]"
        text = text.replace(b"[1,-2,3]", part)
    whole = decode_request(codec(), request(text))
    for changed in mutations(text, part):
        first = decode_request(codec(), request(changed))
        for _ in range(3):
            assert first == decode_request(reader, request(changed)), changed
    assert whole == decode_request(reader, request(text))


def test_change_of_any_byte_of_a_binary_request_is_detected() -> None:
    """A change of the JSON, the binary data or their lengths is read as by a new codec."""
    tail = bytes(range(12))
    text = compact(BINARY)
    reader = codec()
    for _ in range(3):
        reader.decode_call(request(text, tail))
    assert 1 == len(templates_of(reader))
    for changed in mutations(text):
        first = decode_request(codec(), request(changed, tail))
        assert first == decode_request(reader, request(changed, tail)), changed
        assert first == decode_request(reader, request(changed, tail)), changed
    for wire in (
        request(text, tail[1:]),
        request(text, tail + b"1"),
        request(text, tail, len(text) - 1),
        request(text, tail, len(text) + 1),
        request(text),
        request(text, bytes(12)),
    ):
        assert decode_request(codec(), wire) == decode_request(reader, wire)


def test_change_of_any_byte_of_a_response_is_detected() -> None:
    """Each mutation of a cached response is read or rejected as by a new codec."""
    reader = codec()
    text, tail = compact(REPLY), b"\1\2\3\4"
    for _ in range(3):
        reader.decode_reply(CALL, reply(text, tail))
    for changed in mutations(text):
        first = decode_response(codec(), reply(changed, tail))
        assert first == decode_response(reader, reply(changed, tail)), changed
        assert first == decode_response(reader, reply(changed, tail)), changed
    assert decode_response(codec(), reply(text, tail)) == decode_response(reader, reply(text, tail))


def test_response_shorter_than_its_json_is_rejected() -> None:
    """The length header is checked although the text has a template."""
    text, tail = compact(REPLY), b"\1\2\3\4"
    reader = codec()
    whole = reply(text, tail)
    for _ in range(3):
        reader.decode_reply(CALL, whole)
    short = HttpResponse(200, whole.headers, (memoryview(text[:-1]),))
    expected = f"{LENGTH} is {len(text)}: the complete body has {len(text) - 1} bytes"
    assert (MalformedMessage, expected) == decode_response(reader, short)


def test_nested_elements_are_read_by_a_template() -> None:
    """Elements nested otherwise than in the cached text are read as by a new codec."""
    nested = compact(TWO).replace(b"[1,-2,3]", b"[[1,-2,3]]")
    for text in (nested, compact(TWO)):
        reader = codec()
        for _ in range(3):
            reader.decode_call(request(text))
        for found in NESTED:
            wire = request(compact(TWO).replace(b"[1,-2,3]", found))
            assert decode_request(codec(), wire) == decode_request(reader, wire), found
        assert has_template(templates_of(reader), memoryview(text), len(text))


def test_leniently_parsed_response_is_read_identically() -> None:
    """A response with NaN, which is not JSON, gets no template and is read as the first time."""
    text = compact(REPLY).replace(b'"id":"x"', b'"parameters":{"a":NaN}')
    wire = reply(text, b"\1\2\3\4")
    reader = codec()
    found = [decode_response(reader, wire) for _ in range(4)]
    assert isinstance(found[0], InferResponse)
    assert found == found[:1] * 4
    assert not has_template(reader.reply_templates, wire.view, len(text))


def test_response_without_a_model_has_that_of_the_request() -> None:
    """The template of a response without a model name does not hold the requested model."""
    text = compact({"outputs": REPLY["outputs"]})
    reader = codec()
    for name in "abcd":
        call = InferRequest(model=ModelRef(name))
        assert ModelRef(name) == reader.decode_reply(call, reply(text, b"1234")).model


def test_response_with_another_id_is_rejected_by_a_template() -> None:
    """The id is read from each response, also by a template."""
    text = compact(REPLY)
    reader = codec()
    call = InferRequest(model=ModelRef("m"), id="x")
    for _ in range(3):
        reader.decode_reply(call, reply(text, b"1234"))
    other = reply(text.replace(b'"id":"x"', b'"id":"y"'), b"1234")
    assert decode_response(codec(), other, call) == decode_response(reader, other, call)
    assert not isinstance(decode_response(reader, other, call), InferResponse)


def test_output_in_shared_memory_is_not_cached() -> None:
    """The region of an output is that of the call, not that of an earlier call."""
    text = compact({"outputs": [{"name": "A", "shape": [1], "datatype": "INT32"}]})
    reader = codec()
    for region in "abcd":
        place = SharedMemoryData(region, 0, 4)
        call = InferRequest(model=ModelRef("m"), outputs=(RequestedOutput("A", shared=place),))
        assert place == reader.decode_reply(call, reply(text)).outputs[0].data
    assert decode_response(codec(), reply(text)) == decode_response(reader, reply(text))


LONG_ID = b'"' + b"x" * 1025 + b'"'
CHANGES: list[tuple[bytes, list[bytes]]] = [
    (
        b"[1,-2,3]",
        [b"[1,2]", b"[1,2,3,4]", b"[1,2,2147483648]", b"[1,2,3.0]", b"[]", b'"abc"', b"[1,2,]"],
    ),
    (b"[0.5,1]", [b"[1e39,1]", b"[1]", b"[1e400,1]", b"[%d,1]" % 10**400, b"[01,1]"]),
    (b'"id":"a-1"', [b'"data":[1]', b'"data":"a-1"']),
    (b'"data":[1,-2,3]', [b'"id":"123"']),
    (b'"a-1"', [b"[1]", b'""', LONG_ID]),
]


@pytest.mark.parametrize(("found", "others"), CHANGES)
def test_elements_that_do_not_fit_raise_the_same_error(found: bytes, others: list[bytes]) -> None:
    """Elements of another count, range or type are rejected as by a new codec."""
    reader, text = codec(), compact(TWO)
    for _ in range(3):
        reader.decode_call(request(text))
    for other in others:
        wire = request(text.replace(found, other))
        assert decode_request(codec(), wire) == decode_request(reader, wire), other


@pytest.mark.parametrize(
    "tensor",
    [
        {"datatype": "BOOL", "data": [True, False]},
        {"datatype": "BYTES", "data": ["a", "b"]},
        {"datatype": "INT32", "shape": [0], "data": []},
        {"datatype": "INT32", "data": [1, 2], "parameters": {"data": [3]}},
        {"datatype": "INT32", "data": [1, 2], "more": {'a"data': [3]}},
    ],
    ids=str,
)
def test_requests_without_a_template_are_read_identically(tensor: dict[str, Any]) -> None:
    """Elements that are not lists of numbers, and keys that resemble slots, are parsed each time."""
    text = compact({"inputs": [{"name": "A", "shape": [1, 2], **tensor}]})
    reader, expected = codec(), decode_request(codec(), request(text))
    for _ in range(4):
        assert expected == decode_request(reader, request(text))
    assert not has_template(templates_of(reader), memoryview(text), len(text))


@pytest.mark.parametrize("limit", [{"json_bytes": 150}, {"name_bytes": 2}, {"json_depth": 3}])
def test_limits_apply_to_repeated_messages(limit: dict[str, int]) -> None:
    """The first and the third message over a limit are rejected with the same error."""
    limits = MessageLimits(**limit)
    reader = codec(limits)
    first = decode_request(codec(limits), request(compact(TWO)))
    assert isinstance(first, tuple)
    assert not isinstance(first[0], InferRequest)
    assert [first] * 3 == [decode_request(reader, request(compact(TWO))) for _ in range(3)]


def test_binary_data_are_not_cached() -> None:
    """Binary elements are views of their own message."""
    reader = codec()
    text = compact(BINARY)
    bodies = [bytes((number,)) * 12 for number in range(4)]
    calls = [read(reader, request(text, body)) for body in bodies]
    assert [body[:4] for body in bodies] == [bytes(as_raw(call.inputs[0])) for call in calls]
    origin = calls[3].context.origin
    assert origin is not None
    assert np.shares_memory(
        np.frombuffer(origin.wire.view, np.uint8),
        np.frombuffer(as_raw(calls[3].inputs[0]), np.uint8),
    )


def test_text_without_slots_has_a_template() -> None:
    """A request with binary elements only, and without an id, is cached by its whole text."""
    size = {"parameters": {"binary_data_size": 4}}
    text = compact({"inputs": [{"name": "A", "shape": [2], "datatype": "INT16", **size}]})
    reader = codec()
    for body in (b"1234", b"5678", b"abcd", b"efgh"):
        assert body == bytes(as_raw(read(reader, request(text, body)).inputs[0]))
    assert 1 == len(templates_of(reader))
    short = request(text, b"123")
    assert decode_request(codec(), short) == decode_request(reader, short)


def test_templates_are_bounded() -> None:
    """Requests that differ in their id share one; the number of others has a limit."""
    reader = codec()
    for number in range(20):
        reader.decode_call(request(compact(TWO).replace(b"a-1", b"id-%d" % number)))
    assert 1 == len(templates_of(reader))
    for number in range(600):
        text = compact(TWO).replace(b'"C"', b'"C%d"' % number)
        for _ in range(2):
            reader.decode_call(request(text))
    assert 256 == len(templates_of(reader))


def test_origin_of_a_message_has_its_bytes() -> None:
    """`has_bytes` is set with a template and without one; inputs in shared memory have none."""
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    tensor = {"name": "A", "shape": [1], "datatype": "INT32"}
    for inputs, expected in (
        ([{**tensor, "data": [1]}], True),
        ([{**tensor, "parameters": shared}], False),
    ):
        reader, text = codec(), compact({"inputs": inputs})
        calls = [read(reader, request(text)) for _ in range(3)]
        origins = [call.context.origin for call in calls]
        assert [expected] * 3 == [origin is not None and origin.has_bytes for origin in origins]
        changed = calls[-1].changed(model=ModelRef("n"))
        assert changed.context.origin is None
