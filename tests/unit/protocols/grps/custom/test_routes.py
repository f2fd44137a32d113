"""Customised routes: JSON and forms become tensors; outputs, errors and streams fill templates."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import orjson
import pytest
import yaml

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, InvalidTensor, Unsupported, UpstreamError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    Tensor,
    array_tensor,
    as_items,
    as_numpy,
    items_tensor,
    raw_tensor,
)
from gateway.protocols.grps.custom.json_path import lookup, read_place
from gateway.protocols.grps.errors import Unconvertible
from gateway.protocols.grps.http.codec import HttpCodec
from gateway.protocols.grps.options import check_options, custom_claims, read_options
from gateway.wire.http import Headers, HttpRequest, HttpResponse

# A chat endpoint without code. Source: docs/protocols/grps.md, "14. Customised routes".
CHAT = """
customized:
  - path: /v1/chat/completions
    model: chat/2
    inputs:
      - {name: prompt, place: "messages[-1].content", shape: [1, 1]}
      - {name: tokens, place: max_tokens, datatype: INT32, shape: [1], default: 16}
    parameters: {temperature: temperature, user: metadata.user}
    answer:
      object: chat.completion
      model: "${model}"
      choices: [{index: 0, message: {role: assistant, content: "${text[0][0]}"}}]
      usage: {tokens: "${count[0]}", note: "used ${count[0]} tokens"}
    error: {error: {message: "${message}", code: "${code}"}}
    stream:
      mode: body_param
      key: stream
      content_type: text/event-stream
      before: "data: "
      after: "\\n\\n"
      end: "data: [DONE]\\n\\n"
      answer: {choices: [{delta: {content: "${text[0][0]}"}}]}
  - path: /v1/score
    model: score
    body: form
    inputs: [{name: x, place: x, datatype: FP32, shape: [1]}]
    answer: "${y}"
  - path: /v1/alias
    model: plain
"""
OPTIONS: dict[str, Any] = yaml.safe_load(CHAT)
CODEC = HttpCodec(DEFAULT_LIMITS, OPTIONS)
BODY = {
    "messages": [{"role": "system", "content": "no"}, {"role": "user", "content": "hi"}],
    "temperature": 0.5,
}
REPLY = InferResponse(
    model=ModelRef("chat"),
    outputs=(
        items_tensor("text", (1, 1), ["höi".encode()]),
        array_tensor("count", np.array([7], np.int64)),
    ),
)


def decode_call(
    body: Any, path: str = "/v1/chat/completions", kind: str = "application/json"
) -> Any:
    """Return the call of a body at a path."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    headers = Headers((("Content-Type", kind),))
    return CODEC.decode_call(HttpRequest("POST", path, "", headers, (memoryview(data),)))


def json_of(wire: HttpResponse) -> Any:
    """Return the document of a response."""
    return orjson.loads(wire.view)


def test_places_become_inputs_and_parameters() -> None:
    """Each input comes from its place, or its default; absent parameters are left out."""
    call = decode_call(BODY)
    assert isinstance(call, InferRequest)
    prompt, tokens = call.inputs
    assert (ModelRef("chat", "2"), {"temperature": 0.5}) == (call.model, dict(call.parameters))
    assert ("prompt", (1, 1), [b"hi"]) == (prompt.name, prompt.shape, list(as_items(prompt)))
    assert (Datatype.INT32, [16]) == (tokens.datatype, as_numpy(tokens).tolist())


def test_outputs_fill_the_template() -> None:
    """A placeholder alone is the value itself; within a text it is written out."""
    document = json_of(CODEC.encode_reply(decode_call(BODY), REPLY))
    assert {
        "object": "chat.completion",
        "model": "chat",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "höi"}}],
        "usage": {"tokens": 7, "note": "used 7 tokens"},
    } == document


def test_stream_uses_the_templates_of_the_route() -> None:
    """The stream has server-sent events, and ends with the configured text."""
    call = decode_call({**BODY, "stream": True})
    assert isinstance(call, StreamInferRequest)
    first = CODEC.encode_item(call, REPLY.changed(is_final=False))
    last = CODEC.encode_end(call, REPLY)
    assert last is not None
    assert "text/event-stream" == first.headers.get("content-type")
    assert 'data: {"choices":[{"delta":{"content":"höi"}}]}\n\n' == bytes(first.view).decode()
    assert b"data: [DONE]\n\n" == bytes(last.view)


def test_stream_error_is_an_event_or_a_separate_response() -> None:
    """An error is an event once the stream has begun, also as an item, and a response before."""
    call = decode_call({**BODY, "stream": True})
    assert isinstance(call, StreamInferRequest)
    document, error = b'{"error":{"message":"boom","code":500}}', UpstreamError("boom")
    event = b"data: %b\n\n" % document
    assert event == bytes(CODEC.encode_late_error(call, error).view)
    # A stream of Triton may continue after it.
    failed = InferResponse(model=ModelRef("m"), outputs=(), is_final=False, error=error)
    assert event == bytes(CODEC.encode_item(call, failed).view)
    early = CODEC.encode_error(call, error)
    assert (500, document) == (early.status, bytes(early.view))
    assert "application/json" == early.headers.get("content-type")


def test_error_of_an_invalid_body_fills_the_template() -> None:
    """The response to a body without an input has status 400."""
    with pytest.raises(InvalidRequest, match=r"no value at messages\[-1\].content") as caught:
        decode_call({"messages": []})
    wire = CODEC.encode_error(None, caught.value)
    assert (400, 400) == (wire.status, json_of(wire)["error"]["code"])


def test_form_is_decoded() -> None:
    """Numbers in a form are text, and read as the input's datatype."""
    call = decode_call(b"x=1.5&y=2", "/v1/score", "application/x-www-form-urlencoded")
    assert [1.5] == as_numpy(call.inputs[0]).tolist()
    reply = InferResponse(model=ModelRef("score"), outputs=(array_tensor("y", np.eye(2)),))
    assert [[1.0, 0.0], [0.0, 1.0]] == json_of(CODEC.encode_reply(call, reply))


def test_route_without_inputs_is_an_alias_of_predict() -> None:
    """It accepts the messages of grps; the route's model is the default."""
    call = decode_call({"str_data": "x"}, "/v1/alias")
    assert (ModelRef("plain"), [b"x"]) == (call.model, list(as_items(call.inputs[0])))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"messages": [{"content": 5}]}, InvalidTensor),
        ({"messages": [{"content": [["a", "b"]]}]}, InvalidRequest),
        ({"messages": [{"content": [["a"], "b"]}]}, InvalidRequest),
        ({**BODY, "max_tokens": 2**31}, InvalidTensor),
        ({**BODY, "max_tokens": 1.5}, InvalidTensor),
        ({**BODY, "temperature": [1]}, InvalidRequest),
        ([], InvalidRequest),
    ],
)
def test_invalid_bodies_are_rejected(body: Any, error: type[Exception]) -> None:
    """Wrong types, counts and ranges are errors of the caller."""
    with pytest.raises(error):
        decode_call(body)


def test_missing_output_of_a_template_is_a_failure() -> None:
    """The error names the output that the template needs."""
    reply = InferResponse(model=ModelRef("chat"), outputs=(array_tensor("z", np.zeros(1)),))
    with pytest.raises(Unconvertible, match="no output 'text'"):
        CODEC.encode_reply(decode_call(BODY), reply)


def test_paths_of_custom_routes_are_listed() -> None:
    """The listener mounts them besides the protocol's prefixes."""
    found = [each.path for each in custom_claims(OPTIONS)]
    assert ["/v1/chat/completions", "/v1/score", "/v1/alias"] == found


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [
        ("BOOL", [True, False], [True, False]),
        ("UINT16", [65535], [65535]),
        ("UINT64", [2**63 - 1], [2**63 - 1]),
        ("UINT64", [2**64 - 1, "18446744073709551615", 0], [2**64 - 1, 2**64 - 1, 0]),
        ("BF16", [1.0], [0x3F80]),
        ("FP16", ["NaN"], ["nan"]),
    ],
)
def test_inputs_of_every_datatype_are_decoded(
    datatype: str, value: list[Any], expected: list[Any]
) -> None:
    """This includes datatypes that grps lacks; the nesting is the default shape."""
    place = {"name": "a", "place": "a", "datatype": datatype}
    route = {"path": "/x", "model": "m", "inputs": [place], "answer": "${a}"}
    codec = HttpCodec(DEFAULT_LIMITS, {"customized": [route]})
    wire = HttpRequest("POST", "/x", body=(memoryview(orjson.dumps({"a": value})),))
    call: Any = codec.decode_call(wire)
    [tensor] = call.inputs
    assert (Datatype(datatype), (len(value),)) == (tensor.datatype, tensor.shape)
    assert [str(one) for one in expected] == [str(one) for one in as_numpy(tensor).tolist()]


def with_input(**fields: Any) -> dict[str, Any]:
    return {"path": "/x", "answer": 1, "inputs": [{"name": "a", "place": "a", **fields}]}


@pytest.mark.parametrize(
    ("route", "text"),
    [
        ({"path": "v1"}, "expected a plain path"),
        ({"path": "/grps/v1/x"}, "outside /grps/"),
        ({"path": "/x", "nope": 1}, "no option 'nope'"),
        ({**with_input(), "answer": None}, "expected a template"),
        (with_input(place="a..b"), "is not a path"),
        (with_input(place=None), "place is None: expected text"),
        (with_input(datatype="Q"), "datatype is 'Q': expected one of BOOL"),
        (with_input(shape=[-1, -1]), "at most one"),
        ({"path": "/x", "body": "xml"}, "expected one of json, form, query"),
        ({"path": "/x", "stream": {"mode": "tea"}}, "expected one of query_param"),
        ({"path": "/x", "parameters": {"a": 1}}, "parameters.a is 1: expected text"),
        ({"path": "/x", "model": 1}, "model's name"),
        ({"path": "/x", "error": {"a": "${text}"}}, "error names 'text'"),
        ({"path": "/x", "stream": {"end": 1}}, "end is 1"),
        ({"path": "/x", "inputs": 1}, "expected a list"),
        (5, "expected a mapping"),
    ],
)
def test_error_names_the_invalid_part_of_a_route(route: Any, text: str) -> None:
    """A mistake in YAML fails at start."""
    with pytest.raises(ValueError, match=text):
        check_options({"customized": [route]})


def test_lookup_returns_the_value_or_missing() -> None:
    """A place has names, and indexes from either end."""
    document = {"a": [{"b": 1}, {"b": 2}]}
    missing = [lookup(document, read_place(place)) for place in ("a[2]", "b", "a.b", "a[0].b.c")]
    assert 2 == lookup(document, read_place("a[-1].b"))
    assert 1 == lookup(document, read_place("a[0].b"))
    assert 1 == len(set(map(id, missing)))


NUMBERS = HttpCodec(
    DEFAULT_LIMITS,
    {
        "customized": [
            {
                "path": f"/{datatype.value}",
                "model": "m",
                "body": body,
                "inputs": [{"name": "x", "place": "x", "datatype": datatype.value, **shape}],
                "answer": '{"y": "${x}"}',
            }
            for datatype, body, shape in (
                (Datatype.BOOL, "query", {"shape": ["1"]}),
                (Datatype.BF16, "json", {}),
                (Datatype.UINT16, "json", {"shape": ["-1", "2"]}),
                (Datatype.FP64, "json", {"shape": [0]}),
            )
        ]
    },
)


THREE = items_tensor("x", (3,), [b"a"] * 3)
NO_NUMBERS = raw_tensor("x", Datatype.INT8, ((1 << 32) - 1, 0), memoryview(b""))


def number(path: str, document: object, query: str = "") -> Any:
    """Return the input of a document or a query."""
    body = memoryview(orjson.dumps(document))
    call: Any = NUMBERS.decode_call(HttpRequest("POST", path, query, Headers(()), (body,)))
    return call.inputs[0]


def test_values_are_decoded_for_their_datatype() -> None:
    """Queries have booleans as words, BF16 has numbers; dimensions may be text."""
    assert [True] == as_numpy(number("/BOOL", {}, "x=true")).tolist()
    half = number("/BF16", {"x": [1.5, -2]})
    assert Datatype.BF16 is half.datatype
    assert (2,) == half.shape
    assert [0x3FC0, 0xC000] == as_numpy(half).tolist()
    # Nearest to what is above the middle of two values; FP32, and FP64, have the middle itself.
    for text, bits in (("1.00390625000000000001", 0x3F81), ("1.00390625", 0x3F80)):
        for body in (b'{"x":[%b]}', b'{"x":["%b"]}'):
            view = memoryview(body % text.encode())
            found: Any = NUMBERS.decode_call(HttpRequest("POST", "/BF16", "", Headers(()), (view,)))
            assert [bits] == as_numpy(found.inputs[0]).tolist(), (body, text)
    with pytest.raises(InvalidRequest, match="out of the range of BF16"):
        number("/BF16", {"x": [3.4e38]})
    pairs = number("/UINT16", {"x": [1, 2, 3, 65535]})
    assert ((2, 2), [[1, 2], [3, 65535]]) == (pairs.shape, as_numpy(pairs).tolist())
    assert (0,) == number("/FP64", {"x": []}).shape
    assert (1,) == number("/BF16", {"x": 1}).shape


@pytest.mark.parametrize(
    ("path", "document", "query", "text"),
    [
        ("/BOOL", {}, "x=yes", "x is not true or false"),
        ("/UINT16", {"x": [1, 65536]}, "", "x is out of the range of UINT16"),
        ("/UINT16", {"x": [1, 2, 3]}, "", r"x has 3 elements: input 'x' has shape \[-1, 2\]"),
        ("/FP64", {"x": [1]}, "", r"x has 1 elements: input 'x' has shape \[0\]"),
    ],
)
def test_error_names_the_place_of_an_invalid_value(
    path: str, document: object, query: str, text: str
) -> None:
    """The place is the path in the body."""
    with pytest.raises(InvalidRequest, match=text):
        number(path, document, query)


def test_templates_in_text_are_parsed_as_json() -> None:
    """A file's scalars are text; a template with invalid JSON fails at start."""
    (route,) = read_options({"customized": [{"path": "/x", "error": '{"n": 1}'}]}).customized
    assert {"n": 1} == route.error
    with pytest.raises(ValueError, match=r"customized\[0\].answer is not JSON"):
        check_options({"customized": [{"path": "/x", "answer": "{oops"}]})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_an_output_of_many_numbers_fills_a_template(dtype: type[np.generic]) -> None:
    """Long arrays are lists like short ones, since a template may name one of their elements."""
    call = NUMBERS.decode_call(HttpRequest("GET", "/BOOL", "x=true", Headers(()), ()))
    numbers = np.arange(200_000).reshape(2, -1) % 2048
    outputs = (array_tensor("x", numbers.astype(dtype)),)
    document = json_of(
        NUMBERS.encode_reply(call, InferResponse(model=ModelRef("m"), outputs=outputs))
    )
    assert numbers.tolist() == document["y"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), "a"), ((1, 1), [["a"]]), ((2, 0), [[], []]), ((0, 2), []), ((1, 0, 3), [[]])],
)
def test_an_output_of_text_is_nested_as_its_shape(shape: tuple[int, ...], expected: Any) -> None:
    """An output without elements is nested, too, like numbers."""
    call = NUMBERS.decode_call(HttpRequest("GET", "/BOOL", "x=true", Headers(()), ()))
    items = [b"a"] * math.prod(shape)
    for output in (items_tensor("x", shape, items), array_tensor("x", np.zeros(shape, np.int8))):
        reply = InferResponse(model=ModelRef("m"), outputs=(output,))
        found = json_of(NUMBERS.encode_reply(call, reply))["y"]
        assert json.dumps(expected) == json.dumps(found).replace("0", '"a"')


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        # An upstream of another protocol may send it.
        (
            {"outputs": (Tensor("x", Datatype.BYTES, (2, 2), THREE.data),)},
            Unconvertible,
            r"'x' has 3 elements, and shape \[2, 2\]",
        ),
        # A template writes a list for each row, and not a single number.
        ({"outputs": (NO_NUMBERS,)}, Unconvertible, "at most 1000000 are allowed"),
        ({"outputs": (), "parameters": {"x": 1 << 70}}, Unsupported, "cannot be written as JSON"),
    ],
)
def test_outputs_without_a_json_form_fail(
    fields: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """The error is one of the upstream, or names what JSON lacks."""
    call = NUMBERS.decode_call(HttpRequest("GET", "/BOOL", "x=true", Headers(()), ()))
    with pytest.raises(kind, match=text):
        NUMBERS.encode_reply(call, InferResponse(model=ModelRef("m"), **fields))


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"x=\xff", "application/x-www-form-urlencoded", "not percent-encoded ASCII"),
        (b"x=1", "text/plain", "expected application/x-www-form-urlencoded"),
    ],
)
def test_invalid_form_is_rejected(body: bytes, kind: str, text: str) -> None:
    """A form needs percent-encoded ASCII and its content type."""
    with pytest.raises(InvalidRequest, match=text):
        decode_call(body, "/v1/score", kind)
