"""Statuses of gRPC and the library's own: the tables are complete."""

from __future__ import annotations

import logging

import grpc
import pytest

from gateway.transports.reference.grpc_metadata import CODE_OF, STATUS_OF
from gateway.transports.reference.grpc_quirks import keep_log_quiet
from gateway.wire.grpc import GrpcStatus


def test_every_status_has_its_code() -> None:
    """Both tables are complete and agree by number."""
    assert set(GrpcStatus) == set(CODE_OF)
    assert set(grpc.StatusCode) == set(STATUS_OF)
    assert all(int(status) == code.value[0] for status, code in CODE_OF.items())


def test_only_errors_caused_by_clients_are_dropped_from_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bytes that are not UTF-8 are dropped from the library's log; other errors stay."""
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
