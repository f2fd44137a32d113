"""Calls that the dialects reject, over HTTP and gRPC."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import InvalidRequest, SequenceIdTooLarge, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.http.codec import HttpCodec

CODECS: tuple[type[HttpCodec | GrpcCodec], ...] = (HttpCodec, GrpcCodec)
CALL_TYPES: tuple[type[Call[Any]], ...] = (
    InferRequest,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", CALL_TYPES)
@pytest.mark.parametrize(
    "version", ["1.5", "1e3", "1a", "-1", "+1", " 1", "1 ", "0x1", "1_0", "1\uff11"]
)
def test_version_that_triton_misreads_is_rejected(
    codec: type[HttpCodec | GrpcCodec], kind: type[Call[Any]], version: str
) -> None:
    """Triton reads the number that a version begins with, and would run that version."""
    call = kind(model=ModelRef("m", version))
    with pytest.raises(InvalidRequest, match="is not a whole number"):
        codec(DEFAULT_LIMITS, {"dialect": "triton"}).encode_call(call)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("dialect", "version"),
    [("triton", "1"), ("triton", "007"), ("triton", "v1"), ("mlserver", "1.5"), ("ovms", "1.5")],
)
def test_other_versions_are_sent(
    codec: type[HttpCodec | GrpcCodec], dialect: str, version: str
) -> None:
    """Whole numbers, and versions that the server itself rejects or reads as text, are sent."""
    call = InferRequest(model=ModelRef("m", version))
    wire = codec(DEFAULT_LIMITS, {"dialect": dialect}).encode_call(call)
    assert version in getattr(wire, "path", "") or version.encode() in wire.view.tobytes()


@pytest.mark.parametrize("dialect", ["triton", "gateway"])
def test_large_sequence_id_has_its_own_error_class(dialect: str) -> None:
    """After this error, `Complete` omits the id if the model has no sequences."""
    codec = GrpcCodec(DEFAULT_LIMITS, {"dialect": dialect})
    request = InferRequest(model=ModelRef("m"), sequence=CallSequence(1 << 63))
    for call in (request, StreamInferRequest(model=ModelRef("m"), request=request)):
        with pytest.raises(SequenceIdTooLarge, match=f"sequence_id.* is {1 << 63}"):
            codec.encode_call(call)
    other = InferRequest(model=ModelRef("m"), parameters={"other": 1 << 63})
    with pytest.raises(Unsupported) as caught:
        codec.encode_call(other)
    assert Unsupported is type(caught.value)
