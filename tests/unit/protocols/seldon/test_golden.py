"""Recordings of seldon-core 1.18.2's microservice: each request gets an answer of one meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.data import UntypedData
from gateway.protocols.seldon.http.codec import HttpCodec
from tests.golden.members import AlwaysSent
from tests.golden.recorded import recorded_request, recorded_response
from tests.unit.protocols.seldon.models import answer

GOLDEN = Path(__file__).parents[3] / "golden" / "seldon"
ENTRIES = json.loads((GOLDEN / "index.json").read_text())["entries"]
# The model of a request; others are for integers.
MODELS = {
    "009": "doubles",
    "012": "texts",
    "013": "texts",
    "014": "flags",
    "020": "upper",
    "021": "backwards",
    "022": "wrapped",
    "023": "upper",
    "030": "broken",
    "031": "broken",
    "033": "doubles",
    "034": "list",
    "036": "upper",
    "037": "backwards",
}
SENT = AlwaysSent(
    GOLDEN,
    [entry for entry in ENTRIES if "/health/status" not in entry["request_line"]],
    frozenset(("metrics", "tags", "messagetype", "schema")),
)
OTHER_STATUS = {
    "006": 405,
    "013": 400,  # a number is no text
    "016": 400,
    "017": 400,
    "018": 400,
    "031": 500,  # the model has no exception of Seldon
    "032": 400,  # floats for a model of integers
    "033": 400,  # 1e400 is no number of FP64
    "039": 400,
    "041": 404,
}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
async def test_recorded_requests_get_responses_of_the_same_meaning(entry: dict[str, Any]) -> None:
    """Status, content type and payload are those of the server; texts of errors are ours."""
    name = entry["name"]
    number = name[:3]
    declared = {"json": "text"} if number == "022" else None
    found = await answer(
        MODELS.get(number, "integers"), recorded_request(GOLDEN, name), None, declared
    )
    assert OTHER_STATUS.get(number, entry["status"]) == found.status
    body = bytes(found.view)
    assert [] == SENT.missing(entry, found.status, body)
    if number == "042":
        assert "/api/v1.0/predictions" in json.loads(body)["paths"]
        return
    if found.status >= 400:
        status = json.loads(body)["status"]
        assert (-1, 1) == (status["code"], status["status"])
        assert status["info"]
        assert {"status"} == json.loads(body).keys()
        return
    assert entry["response_content_type"] == found.headers.get("content-type")
    if number in ("001", "004", "005"):
        assert number != "001" or body == b"pong"
        return
    expected, reply = json.loads(entry["response_body"]), json.loads(body)
    for each in ("data", "strData", "binData", "jsonData"):
        if number == "038":
            assert reply["data"]["ndarray"] == []
        else:
            assert repr(expected.get(each)) == repr(reply.get(each))
    assert "meta" in reply
    if number == "029":
        assert reply["meta"] == {"puid": "p1", "tags": {"k": 1}}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_recorded_responses_are_read(entry: dict[str, Any]) -> None:
    """An answer of the server is one tensor without a datatype, or an error with its text."""
    codec, wire = HttpCodec(), recorded_response(GOLDEN, entry["name"])
    call = InferRequest(model=ModelRef("demo"))
    if "predict" not in entry["request_line"]:
        return
    if entry["status"] != 200:
        with pytest.raises(GatewayError) as raised:
            codec.decode_reply(call, wire)
        assert json.loads(entry["response_body"])["status"]["info"] == raised.value.message
        again = codec.encode_error(None, raised.value)
        assert entry["status"] == again.status
        assert json.loads(entry["response_body"]) == json.loads(bytes(again.view))
        return
    reply = codec.decode_reply(call, wire)
    (output,) = reply.outputs
    assert isinstance(output.data, UntypedData)
    assert reply.parameters["tag"] == "t"
