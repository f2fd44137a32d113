"""The REST side of a client of Seldon's servers, and what its options and declarations are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    ModelMetadataRequest,
    OpaqueCall,
    RepositoryIndexRequest,
    ServerReadyRequest,
)
from gateway.ir.context import CallSequence, ModelRef, Origin
from gateway.ir.errors import GatewayError, Unsupported, UpstreamError
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, items_tensor
from gateway.protocols.seldon.declarations import read_declaration
from gateway.protocols.seldon.http.codec import HttpCodec
from gateway.protocols.seldon.options import check_options
from gateway.wire.http import Headers, HttpRequest, HttpResponse

X = array_tensor("x", np.array([[1.5, 2.0]], np.float32))


def call_of(*tensors: Tensor, **more: Any) -> InferRequest:
    return InferRequest(model=ModelRef("m"), inputs=tensors, **more)


def body_of(codec: HttpCodec, call: InferRequest) -> Any:
    return json.loads(bytes(codec.encode_call(call).view))


def of(*values: Any) -> Tensor:
    return array_tensor("x", np.array(values))


FLAG = {"dtype": "DT_BOOL", "tensorShape": {"dim": [{"size": "1"}]}, "tensorContent": "AQ=="}


@pytest.mark.parametrize(
    ("form", "tensor", "expected"),
    [
        ("auto", X, {"tensor": {"shape": [1, 2], "values": [1.5, 2.0]}}),
        ("ndarray", X, {"ndarray": [[1.5, 2.0]]}),
        ("auto", of(2**53), {"tensor": {"shape": [1], "values": [2**53]}}),
        ("auto", of(2**53 + 1), {"ndarray": [2**53 + 1]}),
        ("auto", of(True), {"ndarray": [True]}),
        ("auto", items_tensor("x", (1,), [b"a"]), {"ndarray": ["a"]}),
        ("tftensor", of(True), {"tftensor": FLAG}),
    ],
)
def test_a_tensor_is_sent_in_the_form_of_the_options(
    form: str, tensor: Tensor, expected: dict[str, Any]
) -> None:
    """Every value is exact in it."""
    found = body_of(HttpCodec(options={"form": form}), call_of(tensor, id="p", parameters={"t": 1}))
    assert found["meta"] == {"puid": "p", "tags": {"t": 1}}
    assert {"names": [], **expected} == found["data"]


def test_an_element_is_sent_as_text_or_bytes() -> None:
    """Bytes that are not UTF-8 are base64."""
    codec = HttpCodec(options={"form": "text"})
    assert body_of(codec, call_of(items_tensor("x", (1, 1), [b"a"])))["strData"] == "a"
    assert body_of(codec, call_of(items_tensor("x", (1,), [b"\xff"])))["binData"] == "/w=="


@pytest.mark.parametrize(
    "call",
    [
        call_of(X, X),
        call_of(),
        call_of(X, sequence=CallSequence(1)),
        call_of(X, outputs=(RequestedOutput("y", classes=1),)),
        InferRequest(model=ModelRef("m", "2"), inputs=(X,)),
        RepositoryIndexRequest(),
        OpaqueCall(message=Origin("oip.http", HttpRequest("POST", "/"))),
    ],
)
def test_what_the_protocol_lacks_is_refused(call: Any) -> None:
    """Nothing is dropped silently."""
    with pytest.raises(Unsupported):
        HttpCodec().encode_call(call)


def test_a_value_without_a_form_is_refused_as_an_input() -> None:
    """The text names the input, not an output."""
    with pytest.raises(Unsupported, match="input 'x' has 9007199254740993 at index 0"):
        HttpCodec(options={"form": "tensor"}).encode_call(call_of(of(2**53 + 1)))


def test_a_reply_with_the_status_of_a_failure_is_an_error() -> None:
    """Its HTTP status may be 200, and clients of Seldon get it as the server wrote it."""
    for status in (1, "FAILURE"):
        document = {"status": {"status": status, "info": "why", "reason": "R"}, "strData": "x"}
        wire = HttpResponse(200, Headers(), (json.dumps(document).encode(),))
        with pytest.raises(UpstreamError, match="why") as raised:
            HttpCodec().decode_reply(call_of(X), wire)
        again = HttpCodec().encode_error(None, raised.value)
        assert json.loads(bytes(again.view)) == document
        assert again.status == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b'{"data":{"ndarray":1}}'])
def test_a_reply_without_a_payload_is_an_error(body: bytes) -> None:
    """It is that of the server."""
    with pytest.raises(GatewayError):
        HttpCodec().decode_reply(call_of(X), HttpResponse(200, Headers(), (body,)))


def test_questions_have_paths_of_the_microservice() -> None:
    """Health has a status; an orchestrator has neither, and its models need a declaration."""
    codec, ready = HttpCodec(), ServerReadyRequest()
    assert codec.encode_call(ready).path == "/health/status"
    for status, is_ready in ((200, True), (500, False), (404, True)):
        assert codec.decode_reply(ready, HttpResponse(status)) is is_ready
    metadata = ModelMetadataRequest(model=ModelRef("m"))
    assert codec.encode_call(metadata).path == "/metadata"
    with pytest.raises(Unsupported, match=r"no metadata; expected models\.NAME"):
        codec.decode_reply(metadata, HttpResponse(404))


def test_tags_of_a_server_are_parameters_without_those_of_the_request() -> None:
    """A server sends the tags of a request back."""
    document = {"meta": {"puid": "p", "tags": {"a": 1, "b": "x"}}, "strData": "x"}
    wire = HttpResponse(200, Headers(), (json.dumps(document).encode(),))
    reply = HttpCodec().decode_reply(call_of(X, id="q", parameters={"a": 1}), wire)
    assert (reply.id, reply.parameters) == ("q", {"b": "x"})


@pytest.mark.parametrize(
    "options",
    [{"nope": 1}, {"form": "json"}, {"nonfinite": "null"}, {"feedback": "drop"}, {"bits": "maybe"}],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """The error names the key."""
    with pytest.raises(ValueError, match=next(iter(options))):
        check_options(options)


@pytest.mark.parametrize(
    "declared",
    [
        {"nope": 1},
        {"columns": {}},
        {"columns": {"a": []}},
        {"columns": {"a": ["0", "2"]}},
        {"columns": {"a": ["0"], "b": ["0"]}},
        {"columns": {"a": ["x"]}},
        {"columns": {"a": ["-1"]}},
        {"json": "object"},
        {"output": "a", "json_outputs": "true"},
    ],
)
def test_wrong_declarations_are_refused(declared: dict[str, Any]) -> None:
    """The error names the key."""
    with pytest.raises(ValueError, match=list(declared)[-1]):
        read_declaration(declared, str)


@pytest.mark.parametrize(
    ("query", "body", "passes"),
    [
        ("", b"json=%7B%22a%22%3A1%7D", True),
        ("", b"other=1&json=1", True),
        ("json=%5B1%5D", b"", True),
        ("json=1&json=1", b"", False),
        ("json=1", b"json=1", False),
        ("", b"json=1&%6Ason=2", False),
        ("", b"json=%7B%22a%22%3A1%2C%22a%22%3A2%7D", False),
        ("json=1", b"{}", False),
    ],
)
def test_a_form_passes_with_one_text(query: str, body: bytes, passes: bool) -> None:
    """A server may prefer the form to the query, and the last field to the first."""
    kind = "application/x-www-form-urlencoded"
    wire = HttpRequest("POST", "/predict", query, Headers([("Content-Type", kind)]), (body,))
    assert passes is HttpCodec().is_plain(wire)


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"strData": b"\xc3\xa9"}, '{"strData":"é"}'),
        ({"jsonData": b'{"a":1}', "meta": b"{}"}, '{"jsonData":{"a":1},"meta":{}}'),
        ({"jsonData": b'{"a":1,"a":2}'}, None),
        ({"jsonData": b"1, 2"}, None),
        ({"jsonData": b'1,"strData":"x"'}, None),
        ({"strData": b"\xff"}, None),
    ],
)
def test_parts_of_a_form_are_sent_as_json(fields: dict[str, bytes], sent: str | None) -> None:
    """No reader can take them otherwise than the gateway."""
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (key.encode(), value)
        for key, value in fields.items()
    ]
    headers = Headers([("Content-Type", "multipart/form-data; boundary=b")])
    wire = HttpRequest("POST", "/predict", "", headers, (b"".join([*parts, b"--b--\r\n"]),))
    codec = HttpCodec()
    assert codec.is_plain(wire) is (sent is not None)
    if sent is not None:
        call = InferRequest(model=ModelRef("m"))
        found = codec.send_on(call, Origin("seldon.http", wire, whole="seldon.http"))
        assert sent == bytes(found.view).decode()
        assert "application/json" == found.headers.get("content-type")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_recording_has_the_query_as_body(method: str) -> None:
    """Recordings keep no query, and a replay must find the message."""
    codec = HttpCodec(options={"default_model": "m"})
    wire = HttpRequest(method, "/predict", "a=1&json=%7B%22strData%22%3A%22x%22%7D", Headers(), ())
    kept = codec.for_record(wire)
    assert ("POST", "", b'{"strData":"x"}') == (kept.method, kept.query, bytes(kept.view))
    assert codec.decode_call(wire).model == codec.decode_call(kept).model
    assert codec.for_record(kept) is kept
