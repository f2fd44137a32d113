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
from gateway.wire.heads.url_names import decoded_name, url_segment


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


@pytest.mark.parametrize("letter", "!$&'()*+,;=:@-._~")
def test_letters_that_a_segment_may_have_are_not_encoded(letter: str) -> None:
    """Triton compares paths as they are; both forms are the same name to a frontend."""
    name = f"a{letter}b"
    assert name == url_segment(name) == decoded_name("model name", name, DEFAULT_LIMITS)
    encoded = f"a%{ord(letter):02X}b"
    assert name == decoded_name("model name", encoded, DEFAULT_LIMITS)


@pytest.mark.parametrize("letter", '/?#%\\"<>[]^`{|} ü')
def test_other_letters_are_encoded(letter: str) -> None:
    """They would end the segment or the path, or are not allowed in a URL."""
    escapes = "".join(f"%{byte:02X}" for byte in letter.encode())
    assert f"a{escapes}b" == url_segment(f"a{letter}b")


@pytest.mark.parametrize("name", ["..;x", ".;", ";x", "...;"])
def test_a_path_parameter_cannot_make_a_step_of_a_name(name: str) -> None:
    """Some servers ignore what follows a semicolon."""
    assert name.replace(";", "%3B") == url_segment(name)


@pytest.mark.parametrize("name", [".", ".."])
def test_dot_segment_is_rejected(name: str) -> None:
    """A configured name must not be a dot segment."""
    with pytest.raises(Unsupported, match="cannot stand in the path"):
        url_segment(name)
