"""Errors in OpenAI's form: four members, statuses that clients do not repeat for ever."""

from __future__ import annotations

import json

import pytest

from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    InvalidMember,
    InvalidOutput,
    NotReady,
    RateExceeded,
)
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.openai.errors import STATUS, error_response

FINAL = "x-should-retry"


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_has_four_members_and_a_status(code: ErrorCode) -> None:
    """No error is 501, and a status of 500 says that clients need not repeat it."""
    response = error_response(ERROR_CLASSES[code]("text"), DEFAULT_LIMITS, names_message=False)
    document = json.loads(bytes(response.view))
    assert {"error"} == document.keys()
    assert {"message", "type", "param", "code"} == document["error"].keys()
    assert STATUS[code].status == response.status != 501
    assert ("false" if response.status == 500 else None) == response.headers.get(FINAL)
    assert (response.status in (429, 503)) is (response.headers.get("retry-after") is not None)


def test_the_table_has_every_code() -> None:
    """A new kind of error fails here until it has a row."""
    assert set(ErrorCode) == STATUS.keys()


def test_a_member_is_named() -> None:
    """`param` has the member, and `code` the reason."""
    error = InvalidMember("x", member="input", reason="unsupported_input")
    document = json.loads(bytes(error_response(error, DEFAULT_LIMITS, names_message=True).view))
    assert "x" == document["message"]
    assert "input" == document["error"]["param"]
    assert "unsupported_input" == document["error"]["code"]


def test_exact_kinds_have_rows_of_their_own() -> None:
    """Rates are 429, and outputs that cannot be written are told from failures."""
    rate = error_response(RateExceeded("x"), DEFAULT_LIMITS, names_message=False)
    assert 429 == rate.status
    assert "rate_limit_exceeded" == json.loads(bytes(rate.view))["error"]["code"]
    output = error_response(InvalidOutput("x"), DEFAULT_LIMITS, names_message=False)
    assert "model_output_invalid" == json.loads(bytes(output.view))["error"]["code"]
    error = NotReady("x")
    error.retry_after_s = 7.2
    response = error_response(error, DEFAULT_LIMITS, names_message=False)
    assert "8" == response.headers.get("retry-after")
