"""Tests of the statuses that protocols share."""

from __future__ import annotations

import pytest

from gateway.ir.errors import ErrorCode
from gateway.wire.errors import (
    GRPC_STATUS,
    HTTP_STATUS,
    clip,
    error_class_of_grpc,
    error_class_of_http,
)
from gateway.wire.grpc import GrpcStatus


def test_every_code_has_an_http_and_a_grpc_status() -> None:
    """Both tables are total, and no error is a success."""
    assert set(ErrorCode) == set(HTTP_STATUS) == set(GRPC_STATUS)
    assert min(HTTP_STATUS.values()) == 400
    assert GrpcStatus.OK not in GRPC_STATUS.values()


@pytest.mark.parametrize("status", [status for status in GrpcStatus if status is not GrpcStatus.OK])
def test_every_grpc_status_is_an_error(status: GrpcStatus) -> None:
    """Each gRPC status but OK means a class of error."""
    assert error_class_of_grpc(status).code in ErrorCode


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (404, ErrorCode.NOT_FOUND),
        (409, ErrorCode.INVALID_ARGUMENT),
        (418, ErrorCode.INVALID_ARGUMENT),
        (302, ErrorCode.UPSTREAM),
        (599, ErrorCode.UPSTREAM),
    ],
)
def test_an_http_status_is_an_error_of_client_or_server(status: int, expected: ErrorCode) -> None:
    """A status without a code of its own is the client's fault below 500, else the server's."""
    assert expected is error_class_of_http(status).code


def test_texts_are_cut_between_characters() -> None:
    """A text that is too long is cut to whole characters, however small the limit."""
    assert clip("é" * 10, 10) == "ééé..."
    assert clip("\ud800", 10) == "?"
    assert clip("text", 2) == "..."
