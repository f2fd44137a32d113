"""Recordings of TorchServe 0.12.0: requests get responses of the same meaning, and are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    UpstreamError,
    VersionNotFound,
)
from gateway.ir.tensors.data import UntypedData
from gateway.protocols.torchserve.declarations import BodyForm
from gateway.protocols.torchserve.http.codec import HttpCodec
from gateway.wire.http import HttpResponse
from tests.golden.members import AlwaysSent
from tests.golden.recorded import recorded_request, recorded_response
from tests.unit.protocols.torchserve.models import answers

GOLDEN = Path(__file__).parents[3] / "golden" / "torchserve"
ENTRIES = json.loads((GOLDEN / "index.json").read_text())["entries"]
FORMS = {
    "raw": {"request": "bytes", "response": "bytes", "content_type": "application/octet-stream"},
    "text": {"request": "text", "response": "text"},
}
# Models that tell what their handler got, or that fail on purpose, have none like them here.
OTHERS = ("/echo", "model_name=echo", "/fail", "/v1/", "/v2/", "/stream", "/explanations")
SENT = AlwaysSent(GOLDEN, ENTRIES)
DIFFERENT = {
    "009-get-predictions-digits": 405,  # the server runs the handler without a body, which fails
    "048-put-models-digits": 405,  # the management is read-only
    "049-put-models-digits-1-0-set-default": 405,
    "050-delete-models-none": 405,
}


OWN = [entry for entry in ENTRIES if not any(each in entry["request_line"] for each in OTHERS)]


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry["name"])
async def test_recorded_requests_get_responses_of_the_same_meaning(entry: dict[str, Any]) -> None:
    """Status, content type and values are those of the server; texts of errors are ours."""
    name = entry["name"]
    (found,) = await answers(recorded_request(GOLDEN, name), FORMS)
    assert found.status == DIFFERENT.get(name, entry["status"])
    body = bytes(found.view)
    assert [] == SENT.missing(entry, found.status, body)
    if name in DIFFERENT or entry["request_line"].startswith("OPTIONS"):
        return
    assert found.headers.get("content-type") == entry["response_content_type"]
    if entry["status"] >= 400:
        expected, document = json.loads(entry["response_body"]), json.loads(body)
        assert document["code"] == expected["code"]
        assert document["type"] == expected["type"]
    elif "/models" in entry["request_line"]:
        check_management(json.loads(bytes(recorded_response(GOLDEN, name).view)), json.loads(body))
    elif "/text" in entry["request_line"]:
        assert body == b"x"  # the recorded handler answers a text of its own
    elif "/raw" in entry["request_line"]:
        assert body == bytes(recorded_response(GOLDEN, name).view)
    else:
        assert json.loads(body) == json.loads(entry["response_body"])


def check_management(expected: Any, found: Any) -> None:
    """Compare the keys that clients read; the models and their workers are others."""
    if isinstance(expected, dict):
        assert set(expected) == set(found)
        assert set(expected["models"][0]) == set(found["models"][0])
        return
    assert {each["modelName"] for each in found} == {"digits"}
    assert {each["modelVersion"] for each in expected} <= {each["modelVersion"] for each in found}
    assert set(found[0]) == set(expected[0])
    assert set(found[0]["workers"][0]) == set(expected[0]["workers"][0])


ECHO = [
    entry
    for entry in ENTRIES
    if "echo" in entry["request_line"]
    and entry["request_line"].startswith("POST")
    and not any(each in entry["request_line"] for each in ("/v1/", "/v2/", "/explanations"))
]


# The server leaves to its handlers what is no JSON, in spite of its content type.
BROKEN = ("012", "016")


@pytest.mark.parametrize("entry", ECHO, ids=lambda entry: entry["name"])
def test_what_a_handler_gets_is_what_an_input_gets(entry: dict[str, Any]) -> None:
    """The recorded handler tells its fields: bytes are the same, and so are values of JSON."""
    codec = HttpCodec()
    wire = recorded_request(GOLDEN, entry["name"])
    form = {"echo": BodyForm(request="columns")} if b"a=1&b" in bytes(wire.view) else {}
    codec.declare(form)
    got = json.loads(bytes(recorded_response(GOLDEN, entry["name"]).view))["got"]
    if entry["name"][:3] in BROKEN:
        with pytest.raises(InvalidRequest, match="the body is not JSON"):
            codec.decode_call(wire)
        return
    call = codec.decode_call(wire)
    assert isinstance(call, InferRequest)
    assert call.model == ModelRef("echo", "1" if "1.0" in entry["request_line"] else "")
    kind, value = got.get("body") or got.get("data") or ("form", "")
    data = [each.data for each in call.inputs]
    assert all(isinstance(each, UntypedData) for each in data)
    first = data[0]
    assert isinstance(first, UntypedData)
    if kind == "dict":
        assert {each.name: each.data.value for each in call.inputs} == value  # type: ignore[union-attr]
    elif kind == "form":
        names = [(each.name, bytes(each.data.raw)) for each in call.inputs]  # type: ignore[union-attr, arg-type]
        assert names == [(name, text.encode()) for name, (_, text) in got.items()]
    else:
        assert first.raw is not None
        assert bytes(first.raw) == value.encode("latin1")


REPLIES = [entry for entry in ENTRIES if "/predictions/" in entry["request_line"]]


@pytest.mark.parametrize("entry", REPLIES, ids=lambda entry: entry["name"])
def test_recorded_responses_are_read(entry: dict[str, Any]) -> None:
    """As an upstream: values wait for the model, and each error is of its kind."""
    if entry["request_line"].startswith("OPTIONS"):
        return
    codec = HttpCodec()
    call = InferRequest(model=ModelRef("m"))
    wire = recorded_response(GOLDEN, entry["name"])
    if "transfer-encoding" in {key.lower() for key, _ in wire.headers.pairs}:
        wire = HttpResponse(wire.status, wire.headers, (b"part0 part1 part2 last",))
    if entry["status"] == 200:
        reply = codec.decode_reply(call, wire)
        assert isinstance(reply, InferResponse)
        assert reply.outputs
        return
    kinds: dict[str, type[GatewayError]] = {
        "ModelNotFoundException": ModelNotFound,
        "ModelVersionNotFoundException": VersionNotFound,
        "InternalServerException": UpstreamError,
    }
    document = json.loads(entry["response_body"])
    with pytest.raises(GatewayError) as caught:
        codec.decode_reply(call, wire)
    if "type" in document:
        expected = kinds.get(document["type"])
        assert expected is None or type(caught.value) is expected
        assert document["message"] in caught.value.message
    # A client of the same protocol gets the server's own answer.
    again = codec.encode_error(None, caught.value)
    assert (again.status, bytes(again.view)) == (wire.status, bytes(wire.view))
