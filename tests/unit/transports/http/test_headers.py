"""Headers: safe values, and headers that are forwarded."""

from __future__ import annotations

import pytest

from gateway.transports.http.headers import decode_field, end_to_end, safe_value, writable


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        ("plain value\t1", "plain value\t1"),
        ("a\r\nB: c", "a%0D%0AB: c"),
        ("\x00\x7f", "%00%7F"),
        ("é", "%C3%A9"),
        ("\udc80", "%3F"),
        ("100%", "100%"),
    ],
)
def test_safe_value(value: str, safe: str) -> None:
    """Control and non-ASCII characters are percent-escaped; all others stay."""
    assert safe == safe_value(value)


@pytest.mark.parametrize(("raw", "text"), [(b"abc", "abc"), ("é".encode(), "é"), (b"\xe9", "é")])
def test_decode_field(raw: bytes, text: str) -> None:
    """UTF-8 is decoded as such, other bytes as ISO 8859-1."""
    assert text == decode_field(raw)


def test_framing_headers_are_not_writable() -> None:
    """Only the transport writes framing headers; malformed names are dropped."""
    pairs = [
        ("Content-Length", "9"),
        ("transfer-encoding", "x"),
        ("Transfer_Encoding", "chunked"),
        ("A:b", "c"),
        ("X", "y"),
        ("", ""),
    ]
    assert list(writable(pairs)) == [("X", "y")]


def test_hop_by_hop_headers_are_dropped() -> None:
    """Connection, the headers it names and Keep-Alive are dropped; all others are forwarded."""
    pairs = [("Connection", "close, X-Hop"), ("x-hop", "1"), ("Keep-Alive", "5"), ("X-Kept", "2")]
    assert end_to_end(pairs) == [("X-Kept", "2")]
