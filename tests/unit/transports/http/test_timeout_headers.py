"""Timeouts in header fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.http.timeout_headers import (
    coarse_timeout,
    format_grpc_timeout,
    grpc_timeout,
    request_timeout,
    timeout_of,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1H", 3600),
        ("2M", 120),
        ("3S", 3),
        ("250m", 0.25),
        ("5u", 5e-6),
        ("7n", 7e-9),
        ("0m", 0),
        ("99999999m", 99999.999),
        ("100000000m", None),
        ("1", None),
        ("m", None),
        ("1.5S", None),
        ("-1S", None),
        ("1_0S", None),
        ("\uff11S", None),
        ("1 S", None),
        ("1x", None),
        ("", None),
    ],
)
def test_grpc_timeout(value: str, seconds: float | None) -> None:
    """The format of gRPC is read; any other value is None."""
    assert grpc_timeout(value) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ("2s", 2),
        ("250ms", 0.25),
        ("800us", 8e-4),
        (" 1 ", 1),
        ("0", 0),
        ("-1", None),
        ("+1", None),
        ("1e3", None),
        ("inf", None),
        ("nan", None),
        ("1_0", None),
        ("\uff11", None),
        ("1m", None),
        (".5", None),
        ("", None),
        ("9" * 30, None),
    ],
)
def test_request_timeout(value: str, seconds: float | None) -> None:
    """Seconds or a number with a unit are read; any other value is None."""
    assert request_timeout(value) == (None if seconds is None else pytest.approx(seconds))


def test_the_shorter_timeout_holds() -> None:
    """The shorter of two timeouts counts, and a malformed one is ignored."""
    assert timeout_of("2S", "1") == 1.0
    assert timeout_of("2S", "soon") == 2.0
    assert timeout_of("soon", None) is None
    assert timeout_of(None, None) is None


@given(st.floats(min_value=1e-6, max_value=1e7))
def test_grpc_timeout_round_trip(seconds: float) -> None:
    """The formatted timeout is never longer than the original, and close to it."""
    read = grpc_timeout(format_grpc_timeout(seconds))
    assert read is not None
    assert seconds * 0.9 - 1e-6 <= read <= seconds * (1 + 1e-9)


@given(st.floats(min_value=1e-6, max_value=9e4))
def test_a_coarse_timeout_is_never_longer(seconds: float) -> None:
    """It is shorter by at most 11 ms, and below a second by at most a tenth."""
    read = grpc_timeout(coarse_timeout(seconds))
    assert read is not None
    assert read <= seconds * (1 + 1e-9)
    assert seconds - read <= (0.011 if seconds >= 1 else seconds * 0.1 + 1e-6)
    assert read > 0
