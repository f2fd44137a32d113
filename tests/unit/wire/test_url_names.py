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
def test_invalid_names_are_rejected(text: str, error: type[GatewayError], reason: str) -> None:
    """The error has the reason."""
    with pytest.raises(error, match=reason):
        decoded_name("model name", text, DEFAULT_LIMITS)


def test_segments_are_encoded() -> None:
    """Any name is encoded as one segment."""
    assert "a%2Fb%3F..." == url_segment("a/b?...")


@pytest.mark.parametrize("name", [".", ".."])
def test_dot_segment_is_rejected(name: str) -> None:
    """A configured name must not be a dot segment."""
    with pytest.raises(Unsupported, match="cannot stand in the path"):
        url_segment(name)
