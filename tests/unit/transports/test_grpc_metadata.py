"""Statuses and metadata of gRPC: the tables are whole, and what cannot be sent is left out."""

from __future__ import annotations

import logging

import grpc
import pytest

from gateway.transports.reference.grpc_core import keep_log_quiet
from gateway.transports.reference.grpc_metadata import CODE_OF, STATUS_OF, sendable
from gateway.wire.grpc import GrpcStatus


def test_every_status_has_its_code() -> None:
    """Both tables are total and say the same, by number."""
    assert set(GrpcStatus) == set(CODE_OF)
    assert set(grpc.StatusCode) == set(STATUS_OF)
    assert all(int(status) == code.value[0] for status, code in CODE_OF.items())


@pytest.mark.parametrize(
    "pair",
    [("x-a", "text ~!"), ("x-a", ""), ("a.b_c-9", "x"), ("x-bin", b"\0\xff"), ("triton-x", "1")],
)
def test_fit_metadata_is_kept(pair: tuple[str, str | bytes]) -> None:
    """Printable text, and bytes under a key that says so, pass."""
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
def test_unfit_metadata_is_left_out(pair: tuple[str, str | bytes]) -> None:
    """Reserved and illegal keys, and values the wire cannot carry, are dropped alone."""
    good = ("x-good", "yes")
    assert (good, good) == sendable([good, pair, good])


def test_log_keeps_what_is_not_a_strangers_doing(caplog: pytest.LogCaptureFixture) -> None:
    """Only cancelled calls and bytes that are no text are dropped from the library's log."""
    keep_log_quiet()
    keep_log_quiet()
    log = logging.getLogger("grpc._cython.cygrpc")
    for error in (
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
        ValueError("ours"),
    ):
        log.error("seen", exc_info=error)
    log.error("plain")
    assert ["ValueError", None] == [
        each.exc_info[0].__name__ if each.exc_info and each.exc_info[0] else None
        for each in caplog.records
    ]
