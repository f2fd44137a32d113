"""The texts of servers in the log, in the status and in spans: cut and marked by default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError, InvalidRequest, NotReady, UpstreamError
from gateway.telemetry.log import error_texts
from gateway.telemetry.log.error_texts import brief_text, error_text
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import HttpRequest

LONG = "input 'note' is invalid: " + "card 4111 1111 1111 1111 " * 40


@pytest.fixture(autouse=True)
def setting() -> Iterator[None]:
    yield
    error_texts.configure("brief")


def served(text: str) -> GatewayError:
    return UpstreamError(text, origin=Origin("oip.http", None))


def test_the_text_of_a_server_is_cut_and_marked() -> None:
    """A short one is marked only."""
    shown = error_text(served(LONG))
    assert shown == f"server said: {LONG[:120]}... ({len(LONG) - 120} more characters)"
    assert error_text(served("dims [64]")) == "server said: dims [64]"


def test_a_key_shows_the_whole_text() -> None:
    """The setting is one of the process."""
    error_texts.configure("full")
    assert error_text(served(LONG)) == LONG
    assert brief_text(LONG) == LONG


def test_own_texts_are_whole() -> None:
    """They quote no element of a tensor."""
    assert error_text(InvalidRequest(LONG)) == LONG
    assert error_text(ValueError("x")) == error_text("x") == "x"


def test_a_text_within_another_one_is_cut_too() -> None:
    """A pipeline or a policy adds to the text, and has the server's error as its cause."""
    try:
        try:
            raise served(LONG)
        except GatewayError as error:
            raise NotReady(f"pipeline 'p', step 1: {error.message}") from error
    except NotReady as error:
        found = error_text(error)
    assert found.startswith(f"pipeline 'p', step 1: server said: {LONG[:120]}... (")
    assert LONG not in found


@pytest.mark.parametrize("wire", [HttpRequest("POST", "/v2"), GrpcRequest("/a/b", (b"",))])
def test_the_refusal_of_a_request_is_the_gateways_own_text(wire: object) -> None:
    """Its origin is the request, in whose form the client gets the error."""
    error = InvalidRequest("body is no inference request", origin=Origin("oip.http", wire))
    assert error_text(error) == error.message
