"""Statuses of gRPC and the library's own: the tables are whole."""

from __future__ import annotations

import logging

import grpc
import pytest

from gateway.transports.reference.grpc_metadata import CODE_OF, STATUS_OF
from gateway.transports.reference.grpc_quirks import keep_log_quiet
from gateway.wire.grpc import GrpcStatus


def test_every_status_has_its_code() -> None:
    """Both tables are total and say the same, by number."""
    assert set(GrpcStatus) == set(CODE_OF)
    assert set(grpc.StatusCode) == set(STATUS_OF)
    assert all(int(status) == code.value[0] for status, code in CODE_OF.items())


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
