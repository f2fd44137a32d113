from __future__ import annotations

import pytest

from gateway.ir.errors import GatewayError, InvalidRequest, MalformedMessage, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.wire.url_names import decoded_name


@pytest.mark.parametrize(
    ("text", "name"),
    [("m", "m"), ("a%20b", "a b"), ("a%2Fb", "a/b"), ("%C3%BC", "ü"), ("..", "..")],
)
def test_names_are_decoded(text: str, name: str) -> None:
    """An encoded slash stays in the name; dots mean nothing, for names are no paths."""
    assert name == decoded_name("model name", text, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("ü", MalformedMessage, "not percent-encoded"),
        ("%", MalformedMessage, "not percent-encoded"),
        ("%zz", MalformedMessage, "not percent-encoded"),
        ("%ff", MalformedMessage, "not UTF-8"),
        ("a%00", InvalidRequest, r"U\+0000"),
        ("n" * 256, TooLarge, "at most 255"),
    ],
)
def test_names_that_cannot_be_are_refused(
    text: str, error: type[GatewayError], reason: str
) -> None:
    """The error says what the name lacks."""
    with pytest.raises(error, match=reason):
        decoded_name("model name", text, DEFAULT_LIMITS)
