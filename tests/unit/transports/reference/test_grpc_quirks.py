"""Filtering the log of grpc.aio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from grpc import aio
from grpc._cython import cygrpc

from gateway.transports.reference.grpc_quirks import keep_log_quiet

LOGGER = logging.getLogger("grpc._cython.cygrpc")


@pytest.fixture(autouse=True)
def filters() -> Iterator[None]:
    """Restore the logger's filters afterwards."""
    before = LOGGER.filters[:]
    keep_log_quiet()
    yield
    LOGGER.filters[:] = before


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        UnicodeDecodeError("ascii", b"\xff", 0, 1, "x"),
        aio.InternalError("x"),
        cygrpc.ExecuteBatchError("x"),
    ],
    ids=repr,
)
def test_errors_of_clients_that_left_are_not_logged(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Cancellations, undecodable bytes and failed batches are dropped from the log."""
    LOGGER.error("raised in core", exc_info=error)
    assert [] == caplog.records


def test_bugs_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Any other exception stays in the log."""
    LOGGER.error("raised in core", exc_info=ValueError("a bug"))
    assert ["raised in core"] == [record.message for record in caplog.records]
