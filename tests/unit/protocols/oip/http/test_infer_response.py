"""Responses that servers really send: unusual, sparse, not quite JSON, or inconsistent."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import orjson
import pytest
from hypothesis import example, given

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    RepositoryIndexRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, MalformedMessage, UpstreamProtocolError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.tensor import RequestedOutput, as_items, as_numpy
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.json.parse import SIMD_FROM_BYTES
from gateway.wire.http import HttpRequest, HttpResponse
from tests.cases.oip_http import X_BINARY, X_JSON, X_RAW, M, answer, compact, post

CODEC = HttpCodec(DEFAULT_LIMITS, {})
CALL = InferRequest(model=M)
PAD = b" " * SIMD_FROM_BYTES
SIZES = [pytest.param(b"", id="small"), pytest.param(PAD, id="large")]


def decode(document: Any, binary: bytes | None = None, pad: bytes = b"") -> InferResponse:
    text = document if isinstance(document, bytes) else compact(document)
    return CODEC.decode_reply(CALL, answer(text + pad, binary))


def output(text: bytes, datatype: str = "FP32", count: int = 3) -> bytes:
    head = f'{{"outputs":[{{"name":"y","datatype":"{datatype}","shape":[{count}],"data":'
    return head.encode() + text + b"}]}"


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[NaN,Infinity,-Infinity]", [math.nan, math.inf, -math.inf]),
        (b"[null,1,-0.0]", [math.nan, 1.0, -0.0]),
        (b"[null,NaN,1e2]", [math.nan, math.nan, 100.0]),
    ],
)
def test_floats_as_servers_write_them(text: bytes, expected: list[float], pad: bytes) -> None:
    """Bare words (Triton) and null (MLServer, KServe) are read as the floats that they mean."""
    (tensor,) = decode(output(text), pad=pad).outputs
    np.testing.assert_array_equal(np.array(expected, "f4"), as_numpy(tensor))


@pytest.mark.parametrize("pad", SIZES)
def test_half_floats_as_numbers(pad: bytes) -> None:
    """MLServer writes FP16 as numbers."""
    (tensor,) = decode(output(b"[0.1,null,65504]", "FP16"), pad=pad).outputs
    np.testing.assert_array_equal(np.array([0.1, np.nan, 65504], "f2"), as_numpy(tensor))


@pytest.mark.parametrize("pad", SIZES)
def test_bytes_that_are_not_utf8(pad: bytes) -> None:
    """Triton writes such bytes into its JSON without an escape; they are read unchanged."""
    (tensor,) = decode(output(b'["a","\xff\xfe","\xc3\xa9"]', "BYTES"), pad=pad).outputs
    assert [b"a", b"\xff\xfe", b"\xc3\xa9"] == list(as_items(tensor))


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize("is_null", [True, False])
def test_null_and_missing_members(is_null: bool, pad: bytes) -> None:
    """Null members, which KServe writes, count as absent."""
    document: dict[str, Any] = {"outputs": [X_JSON]}
    if is_null:
        document = {
            "model_name": None,
            "model_version": None,
            "id": None,
            "parameters": None,
            "outputs": [{**X_JSON, "parameters": None}],
        }
    reply = decode(document, pad=pad)
    assert (ModelRef("m"), "", {}) == (reply.model, reply.id, reply.parameters)
    (output,) = reply.outputs
    assert ({}, [[0, 1, 2, 3]]) == (output.parameters, as_numpy(output).tolist())


def test_parameters_that_are_not_scalars() -> None:
    """A list or an object among the parameters is kept as its text; null is dropped."""
    document = {"parameters": {"a": None, "b": [1], "c": {"d": 2}, "e": 1}, "outputs": []}
    assert {"b": "[1]", "c": '{"d":2}', "e": 1} == decode(document).parameters


ENSEMBLE = (
    b'{"model_name":"m","model_version":"1","parameters":{"sequence_id":0,"sequence_start":false,'
    b'"sequence_end":false,"sequence_id":7,"sequence_start":true,"sequence_end":false},'
    b'"outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[1.5,%b]}]}'
)
"""A response of Triton 2.51.0 for an ensemble with outputs of two steps; the values are others."""


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize("element", [b"2", b"Infinity"])
def test_last_of_repeated_parameters_counts(element: bytes, pad: bytes) -> None:
    """Triton repeats sequence parameters in the response of an ensemble; the last one counts."""
    for _ in range(3):  # the template of a repeated message, too
        reply = decode(ENSEMBLE % element, pad=pad)
        expected = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
        assert expected == reply.parameters
        assert [1.5, float(element)] == as_numpy(reply.outputs[0]).tolist()


@pytest.mark.parametrize("pad", SIZES)
@pytest.mark.parametrize(
    "text",
    [
        b'{"outputs":[],"outputs":[]}',
        b'{"parameters":{"a":1},"outputs":[],"parameters":{"a":1}}',
        b'{"outputs":[{"name":"y","datatype":"INT8","shape":[1],"data":[1],"data":[2]}]}',
        b'{"x":[{"a":1,"a":1}],"outputs":[]}',
        b'{"parameters":{"x":{"a":1,"a":1}},"outputs":[]}',
        (
            b'{"outputs":[{"name":"y","datatype":"INT8","shape":[1],'
            b'"parameters":{"binary_data_size":1,"binary_data_size":0}}]}'
        ),
    ],
)
def test_other_repeated_keys_are_rejected(text: bytes, pad: bytes) -> None:
    """Only parameters may repeat a key, and never the size of a tensor."""
    with pytest.raises(MalformedMessage, match="twice"):
        decode(text, pad=pad)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"model_version": 3}, ModelRef("m", "3")),
        ({"model_version": 1.5, "model_name": ["a"]}, ModelRef("m")),
        ({"model_version": "a\nb", "model_name": "x" * 2000}, ModelRef("m")),
    ],
)
def test_model_name_or_version_of_another_type(members: dict[str, Any], expected: ModelRef) -> None:
    """An integer version is read as text; an unusable name or version counts as absent."""
    assert expected == decode(members | {"outputs": [X_JSON]}).model


@pytest.mark.parametrize("parameters", [{"a\n": 1, "b": 2}, {"x" * 2000: 1, "b": 2}])
def test_parameter_with_an_unusable_name_is_dropped(parameters: dict[str, Any]) -> None:
    """An unusable parameter is dropped from the reply and from its outputs."""
    reply = decode({"outputs": [X_JSON | {"parameters": parameters}], "parameters": parameters})
    (output,) = reply.outputs
    assert ({"b": 2}, {"b": 2}) == (reply.parameters, output.parameters)


@pytest.mark.parametrize("parameters", [[], "x", 5])
def test_parameters_of_another_type_are_ignored(parameters: object) -> None:
    """Parameters that are not an object count as absent."""
    reply = decode({"outputs": [X_JSON | {"parameters": parameters}], "parameters": parameters})
    (output,) = reply.outputs
    assert ({}, {}) == (reply.parameters, output.parameters)


def test_ids_of_another_type() -> None:
    """A number is the id that it spells; any other value counts as absent."""
    call = InferRequest(model=M, id="7")
    for found in (7, None, ["7"], 1.5):
        assert "7" == CODEC.decode_reply(call, answer(compact({"id": found, "outputs": []}))).id
    with pytest.raises(UpstreamProtocolError, match="has the id '8'"):
        CODEC.decode_reply(call, answer(compact({"id": 8, "outputs": []})))


def test_mixed_outputs_in_any_order() -> None:
    """A response may mix JSON and binary outputs, which keep the server's order."""
    document = {"outputs": [X_BINARY, {**X_JSON, "name": "y"}]}
    reply = decode(document, X_RAW)
    assert ["x", "y"] == [tensor.name for tensor in reply.outputs]
    assert [[[0, 1, 2, 3]]] * 2 == [as_numpy(tensor).tolist() for tensor in reply.outputs]


def test_empty_binary_outputs_without_header() -> None:
    """Triton sends plain JSON when all binary outputs are empty."""
    member = {**X_BINARY, "shape": [0], "parameters": {"binary_data_size": 0}}
    (tensor,) = decode({"outputs": [member]}).outputs
    assert (0,) == as_numpy(tensor).shape


def test_outputs_not_requested_are_dropped() -> None:
    """Only requested outputs are returned; a missing one is an error."""
    call = InferRequest(model=M, outputs=(RequestedOutput("y"),))
    both = {"outputs": [X_JSON, {**X_JSON, "name": "y"}]}
    reply = CODEC.decode_reply(call, answer(compact(both)))
    assert ["y"] == [tensor.name for tensor in reply.outputs]
    with pytest.raises(InvalidRequest, match="lacks the requested output 'y'"):
        CODEC.decode_reply(call, answer(compact({"outputs": [X_JSON]})))


@pytest.mark.parametrize(
    ("document", "binary"),
    [
        (b"", None),
        (b"ok", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"outputs":[],"outputs":[]}', None),
        (b'{"outputs":[{"a":NaN,"a":1}]}', None),
        (b'{"x":NaN,"outputs":' + b"[" * 2000 + b"]" * 2000 + b"}", None),
        (b"[NaN]", None),
        (output(b"[1,2]"), None),
        (output(b'["a",1,2]'), None),
        (output(b"[1.5,1,1]", "INT32"), None),
        (output(b"[null,1,1]", "INT32"), None),
        (output(b'["\\ud800\\ud800"]', "BYTES", 1), None),
        (compact({"outputs": [X_BINARY]}), X_RAW[:-1]),
        (compact({"outputs": [X_BINARY]}), X_RAW + b"!"),
        (compact({"outputs": [X_BINARY]}), None),
        (compact({"outputs": [X_JSON, X_JSON]}), None),
    ],
)
def test_inconsistent_responses_are_rejected(document: bytes, binary: bytes | None) -> None:
    """A response that contradicts itself, or is not JSON, raises a GatewayError."""
    with pytest.raises(GatewayError):
        decode(document, binary)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
_MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text() | _JSON,
        "shape": st.lists(st.integers(-1, 3)) | _JSON,
        "datatype": st.sampled_from(["FP32", "INT8", "BYTES", "BOOL", "FP16"]) | _JSON,
        "parameters": _JSON,
        "data": _JSON,
    },
)
_DOCUMENTS = st.fixed_dictionaries(
    {"inputs": st.lists(_MEMBERS, max_size=3)},
    optional={"id": _JSON, "parameters": _JSON, "outputs": _JSON, "x": _JSON},
)


@given(_DOCUMENTS, st.sampled_from([b"", PAD]))
@example({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [[]]}]}, PAD)
def test_any_members_raise_only_gateway_errors(document: Any, pad: bytes) -> None:
    """A request with any members is decoded or rejected; both parsers agree."""
    try:
        text = orjson.dumps(document)
    except orjson.JSONEncodeError:  # integers beyond 64 bits, lone surrogates
        return
    try:
        CODEC.decode_call(post(text + pad))
        error_kind = None
    except GatewayError as error:
        error_kind = type(error)
    try:
        CODEC.decode_call(post(text + (b"" if pad else PAD)))
        other = None
    except GatewayError as error:
        other = type(error)
    assert (error_kind is None) is (other is None)


@given(st.binary(max_size=200))
def test_any_bytes_raise_only_gateway_errors(body: bytes) -> None:
    """Any bytes of a response are decoded or rejected, whatever the call."""
    calls: list[Call[Any]] = [CALL, RepositoryIndexRequest(), ModelReadyRequest(model=M)]
    for call in calls:
        try:
            CODEC.decode_reply(call, HttpResponse(200, body=(body,)))
        except GatewayError as error:
            assert error.message  # noqa: PT017


@given(st.text(max_size=40), st.sampled_from(["GET", "POST", "PUT"]))
def test_any_path_raises_only_gateway_errors(path: str, method: str) -> None:
    """Any path is decoded, or rejected with one of the expected statuses."""
    try:
        CODEC.decode_call(HttpRequest(method, "/v2/models/" + path))
    except GatewayError as error:
        assert CODEC.encode_error(None, error).status in (400, 404, 405, 413, 501)  # noqa: PT017


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'"a\xff"', "a\ufffd"),
        (b'["a\xff"]', '["a\ufffd"]'),
        (rb'"\ud800 \udcff"', "\ufffd \ufffd"),
        (b'["\xc3\xa9",null,1.5]', '["é",null,1.5]'),
        (b"[123456789012345678901234567890,NaN]", "[123456789012345678901234567890,NaN]"),
        (b'123456789012345678901234567890,"n":NaN', "123456789012345678901234567890"),
    ],
    ids=["text", "list", "surrogates", "utf8", "long_integers", "long_integer"],
)
def test_unusual_parameter_of_a_server_is_kept_as_text(value: bytes, expected: str) -> None:
    """A parameter that is not UTF-8, or an overlong integer, is kept as text and forwarded."""
    reply = decode(b'{"outputs":[],"parameters":{"k":' + value + b"}}")
    assert expected == reply.parameters["k"]
    again = CODEC.decode_reply(CALL, CODEC.encode_reply(CALL, reply))
    assert expected == again.parameters["k"]


@pytest.mark.parametrize("members", ['"shape":[0],"data":[]', '"shape":[],"data":[1]'])
def test_invalid_name_in_a_response_raises_malformed_message(members: str) -> None:
    """By this class, `Upstream` attributes an invalid name in a response to the server."""
    with pytest.raises(MalformedMessage):
        decode(f'{{"outputs":[{{"name":"a\\u0001","datatype":"FP32",{members}}}]}}'.encode())
