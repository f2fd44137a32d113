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
    read_error_text,
    strip_traceback,
)
from gateway.wire.grpc import GrpcStatus

HEADER = "Traceback (most recent call last):\n"
FRAME = '  File "/srv/model.py", line 3, in infer\n    return x[9]\n           ~^^^\n'


def test_every_code_has_an_http_and_a_grpc_status() -> None:
    """Both tables are total, and no error is a success."""
    assert set(ErrorCode) == set(HTTP_STATUS) == set(GRPC_STATUS)
    assert min(HTTP_STATUS.values()) == 400
    assert GrpcStatus.OK not in GRPC_STATUS.values()


@pytest.mark.parametrize("status", [status for status in GrpcStatus if status is not GrpcStatus.OK])
def test_every_grpc_status_maps_to_an_error(status: GrpcStatus) -> None:
    """Each gRPC status but OK has an error class."""
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
def test_http_status_maps_to_a_client_or_server_error(status: int, expected: ErrorCode) -> None:
    """A 4xx status without a code of its own is a client error, any other a server error."""
    assert expected is error_class_of_http(status).code


def test_clip_cuts_texts_between_characters() -> None:
    """A long text is cut to whole characters, for any limit."""
    assert clip("é" * 10, 10) == "ééé..."
    assert clip("\ud800", 10) == "?"
    assert clip("text", 2) == "..."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("no traceback\nof two lines", "no traceback\nof two lines"),
        (f"{HEADER}{FRAME}IndexError: 9", "IndexError: 9"),
        (f"it failed:\n{HEADER}{FRAME}IndexError: 9\n\n", "IndexError: 9"),
        (
            f"{HEADER}{FRAME}KeyError: 1\n\nDuring\n\n{HEADER}{FRAME}ValueError: 2\n",
            "ValueError: 2",
        ),
        (f"{HEADER}{FRAME}", "the upstream failed and gave a traceback without a reason"),
    ],
)
def test_traceback_is_reduced_to_its_reason(text: str, reason: str) -> None:
    """The last line of a traceback is kept; any other text is kept whole."""
    assert reason == strip_traceback(text)


def test_reason_of_a_cut_traceback_is_kept() -> None:
    """A limit cuts the frames of a traceback, not the line that ends it."""
    data = memoryview(f"{HEADER}{FRAME * 1000}IndexError: 9\n".encode())
    assert "IndexError: 9" == read_error_text(data, 1024)


def test_other_texts_are_cut_at_the_limit() -> None:
    """A text without a traceback is cut at its end."""
    assert "abc" == read_error_text(memoryview(b"abcdef"), 3)
