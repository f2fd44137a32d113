"""Recordings of MLflow 3.17.2's scoring server: each request gets an answer of the same meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.members import AlwaysSent
from tests.golden.recorded import recorded_request, recorded_response
from tests.unit.protocols.mlflow.models import answers

GOLDEN = Path(__file__).parents[3] / "golden" / "mlflow"
ENTRIES = json.loads((GOLDEN / "index.json").read_text())["entries"]
# The model echo has no signature: numpy guesses its types, which the gateway does not.
ENTRIES = [entry for entry in ENTRIES if entry["server_model"] != "echo"]
SENT = AlwaysSent(GOLDEN, ENTRIES)
DIFFERENT = {
    "017-post-invocations": 200,  # without a content type, where the server fails
    "027-post-invocations": 400,  # fractions for integers, which the server truncates
    "034-post-invocations": 200,  # a parameter that the model here has not
}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
async def test_recorded_requests_get_responses_of_the_same_meaning(entry: dict[str, Any]) -> None:
    """Status, content type and predictions are those of the server; texts of errors are ours."""
    name = entry["name"]
    (response,) = await answers(entry["server_model"], recorded_request(GOLDEN, name))
    assert DIFFERENT.get(name, entry["status"]) == response.status
    body = bytes(response.view)
    assert [] == SENT.missing(entry, response.status, body)
    if name in DIFFERENT:
        return
    if entry["response_content_type"]:
        assert entry["response_content_type"] == response.headers.get("content-type")
    if response.status == 415:
        assert body
    elif entry["status"] >= 400:
        expected = json.loads(bytes(recorded_response(GOLDEN, name).view))
        found = json.loads(body)
        assert ("detail" in expected) == ("detail" in found)
        assert ("error_code" in expected) == ("error_code" in found)
    elif "predictions" in entry["response_body"]:
        expected, found = (
            json.loads(each)["predictions"] for each in (entry["response_body"], body)
        )
        if entry["server_model"] == "frame":  # a DataFrame, whose rows are objects
            expected = {key: [row[key] for row in expected] for key in expected[0]}
        assert repr(expected) == repr(found)
    else:
        assert entry["response_body"].encode() == body
