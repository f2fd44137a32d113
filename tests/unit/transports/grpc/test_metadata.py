"""Metadata that gRPC can carry; all other is dropped."""

from __future__ import annotations

import pytest

from gateway.transports.grpc.metadata import sendable


@pytest.mark.parametrize(
    "pair",
    [("x-a", "text ~!"), ("x-a", ""), ("a.b_c-9", "x"), ("x-bin", b"\0\xff"), ("triton-x", "1")],
)
def test_valid_metadata_is_kept(pair: tuple[str, str | bytes]) -> None:
    """Printable text, and bytes under a key that ends with "-bin", pass."""
    assert (pair,) == sendable([pair])


@pytest.mark.parametrize(
    "pair",
    [
        ("X-A", "x"),
        ("x a", "x"),
        ("", "x"),
        (":path", "x"),
        ("x-a\n", "x"),
        ("grpc-timeout", "1S"),
        ("content-type", "x"),
        ("te", "x"),
        ("x-a", "ä"),
        ("x-a", "a\r\nb"),
        ("x-a", "a\0"),
        ("x-a", b"bytes"),
        ("x-bin", "text"),
    ],
)
def test_invalid_metadata_is_dropped(pair: tuple[str, str | bytes]) -> None:
    """Reserved or illegal keys, and values that gRPC cannot carry, are dropped; others stay."""
    good = ("x-good", "yes")
    assert (good, good) == sendable([good, pair, good])
