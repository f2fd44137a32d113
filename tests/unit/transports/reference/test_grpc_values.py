"""Statuses of gRPC and the library's own, and the log of grpc.aio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import grpc
import pytest
from grpc import aio

from gateway.transports.reference.grpc_values import CODE_OF, STATUS_OF, keep_log_quiet
from gateway.wire.grpc import GrpcStatus

LOGGER = logging.getLogger("grpc.any.module")


class Kept(logging.Handler):
    """What the handlers of the process get."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def kept() -> Iterator[list[str]]:
    """Return the messages that stay; restore the loggers afterwards."""
    logger, root, handler = logging.getLogger("grpc"), logging.getLogger(), Kept()
    before = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [], True
    keep_log_quiet()
    keep_log_quiet()
    root.addHandler(handler)
    yield handler.messages
    root.removeHandler(handler)
    logger.handlers[:], logger.propagate = before


def test_every_status_has_its_code() -> None:
    """Both tables are complete and agree by number."""
    assert set(GrpcStatus) == set(CODE_OF)
    assert set(grpc.StatusCode) == set(STATUS_OF)
    assert all(int(status) == code.value[0] for status, code in CODE_OF.items())


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        UnicodeDecodeError("ascii", b"\xff", 0, 1, "x"),
        aio.InternalError("x"),
    ],
    ids=repr,
)
def test_errors_of_clients_that_left_are_not_logged(error: BaseException, kept: list[str]) -> None:
    """Cancellations, undecodable bytes and failed batches are dropped from the log."""
    LOGGER.error("raised in core", exc_info=error)
    assert [] == kept


def test_bugs_are_logged(kept: list[str]) -> None:
    """Any other exception stays in the log, once."""
    LOGGER.error("raised in core", exc_info=ValueError("a bug"))
    LOGGER.error("plain")
    assert ["raised in core", "plain"] == kept
