from __future__ import annotations

import pytest

from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    TooLarge,
    Unsupported,
)
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.wire.url_names import decoded_name, url_segment


@pytest.mark.parametrize(
    ("text", "name"),
    [("m", "m"), ("a%20b", "a b"), ("a%2Fb", "a/b"), ("%C3%BC", "ü"), ("...", "...")],
)
def test_names_are_decoded(text: str, name: str) -> None:
    """An encoded slash stays in the name."""
    assert name == decoded_name("model name", text, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("ü", MalformedMessage, "not percent-encoded"),
        ("%", MalformedMessage, "not percent-encoded"),
        ("%zz", MalformedMessage, "not percent-encoded"),
        ("%ff", MalformedMessage, "not UTF-8"),
        ("a%00", InvalidRequest, r"U\+0000"),
        ("..", InvalidRequest, "is a dot segment of a path"),
        ("%2e%2E", InvalidRequest, "is a dot segment of a path"),
        ("%2e", InvalidRequest, "is a dot segment of a path"),
        ("n" * 256, TooLarge, "at most 255"),
    ],
)
def test_names_that_cannot_be_are_refused(
    text: str, error: type[GatewayError], reason: str
) -> None:
    """The error says what the name lacks."""
    with pytest.raises(error, match=reason):
        decoded_name("model name", text, DEFAULT_LIMITS)


def test_segments_are_encoded() -> None:
    """Whatever a name holds, it is one segment."""
    assert "a%2Fb%3F..." == url_segment("a/b?...")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_step_is_no_segment(name: str) -> None:
    """A configured name that a server would take for a step is refused."""
    with pytest.raises(Unsupported, match="cannot stand in the path"):
        url_segment(name)
