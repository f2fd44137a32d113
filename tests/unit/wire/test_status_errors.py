"""Errors over gRPC: what each protocol's form writes, the form reads, and what it keeps."""

import pytest

from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import ERROR_CLASSES, ErrorCode, UpstreamError
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.oip.grpc.codec import ERRORS
from gateway.wire.errors import GRPC_STATUS, error_class_of_grpc
from gateway.wire.grpc import GrpcResponse, GrpcStatus
from gateway.wire.status_errors import StatusErrorForm

MODEL = ModelRef("m")
FORM = StatusErrorForm(
    codec="x.grpc",
    status=lambda error: GRPC_STATUS[error.code],
    error_class=lambda status, _text: error_class_of_grpc(status),
)


@pytest.mark.parametrize("form", [FORM, ERRORS], ids=lambda form: form.codec)
@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.value)
def test_form_reads_what_it_writes(form: StatusErrorForm, code: ErrorCode) -> None:
    """Status and text of an error survive, and an error of the same codec keeps its response."""
    wire = form.write(ERROR_CLASSES[code]("it broke"), DEFAULT_LIMITS)
    found = form.read(MODEL, wire)
    assert found is not None
    assert found.message.endswith("it broke")
    assert (MODEL, Origin(form.codec, wire)) == (found.model, found.origin)
    assert wire == form.write(found, DEFAULT_LIMITS)


def test_success_is_no_error() -> None:
    """A response of status OK has no error."""
    assert FORM.read(MODEL, GrpcResponse()) is None


def test_texts_are_cut_and_tracebacks_lose_their_frames() -> None:
    """The text of a server has the limit of every text, and only the reason of a traceback."""
    details = 'Traceback (most recent call last):\n  File "x"\nKeyError: 1'
    found = FORM.read(MODEL, GrpcResponse(status=GrpcStatus.UNKNOWN, details=details))
    assert found is not None
    assert "KeyError: 1" == found.message
    written = FORM.write(UpstreamError("x" * 99), MessageLimits(error_text_bytes=16))
    assert "x" * 13 + "..." == written.details


def test_status_without_a_text_has_one() -> None:
    """An error is never without a text."""
    found = FORM.read(None, GrpcResponse(status=GrpcStatus.INTERNAL))
    assert found is not None
    assert "upstream responded with the status INTERNAL and no text" == found.message
