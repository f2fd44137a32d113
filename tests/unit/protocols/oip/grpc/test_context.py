"""The context of calls over gRPC: metadata, request ids and deadlines, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import ServerReadyRequest
from gateway.ir.context import Context, Need, Origin
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest
from tests.cases.oip_grpc import METHOD

CODEC = GrpcCodec(DEFAULT_LIMITS, {})


def infer(message: pb.ModelInferRequest, **fields: Any) -> GrpcRequest:
    return GrpcRequest(METHOD + "ModelInfer", (message.SerializeToString(),), **fields)


def test_context_of_a_call() -> None:
    """The context holds the metadata, request id, deadline and needs; bytes are base64."""
    metadata = (("x-request-id", "r-1"), ("trace-bin", b"\0"), ("traceparent", "00-1"))
    wire = GrpcRequest(METHOD + "ServerLive", (b"",), metadata, deadline=12.5)
    assert (
        Context(
            protocol="oip.grpc",
            metadata=(("x-request-id", "r-1"), ("trace-bin", "AA=="), ("traceparent", "00-1")),
            request_id="r-1",
            deadline=12.5,
            needs=frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES}),
        )
        == CODEC.decode_call(wire).context
    )


def test_generated_request_id_yields_to_that_of_the_client() -> None:
    """A generated id is used unless the client sent one that is fit for a log."""
    message = pb.ModelInferRequest(model_name="m")
    for sent, expected in (("own", "own"), ("a\nb", "made"), ("", "made")):
        wire = infer(message, metadata=(("x-request-id", sent),) if sent else ())
        context = CODEC.decode_call(wire).context.changed(request_id=expected)
        assert context == CODEC.decode_call(wire, "made").context


def test_origin_of_a_call() -> None:
    """The origin of a call is its wire request; it notes that the inputs have their bytes."""
    wire = infer(pb.ModelInferRequest(model_name="m"))
    assert Origin("oip.grpc", wire, has_bytes=True) == CODEC.decode_call(wire).context.origin


@pytest.mark.parametrize(
    ("sent", "arrived"),
    [
        (("traceparent", "00-1"), ("traceparent", "00-1")),
        (("content-type", "application/json"), None),
        (("grpc-timeout", "1S"), None),
        (("trace-bin", "AA=="), ("trace-bin", b"\0")),
        (("x-name", "Zoë"), ("x-name", "Zo%C3%AB")),
        (("x:y", "1"), None),
        # It is not added again.
        (("x-request-id", "r-1"), None),
    ],
)
def test_metadata_for_an_upstream(sent: Any, arrived: Any) -> None:
    """Metadata and request id are sent to the upstream, except entries that gRPC cannot carry."""
    context = Context(request_id="r-1", metadata=(sent,), deadline=3.0)
    found = CODEC.encode_call(ServerReadyRequest(context=context))
    assert [*[arrived] * (arrived is not None), ("x-request-id", "r-1")] == list(found.metadata)
    assert 3.0 == found.deadline


@pytest.mark.parametrize("text", ["a" * 129, "a\x7f"])
def test_request_id_not_fit_for_a_log_is_dropped(text: str) -> None:
    """A request id that is too long or not printable is dropped."""
    wire = GrpcRequest(METHOD + "ServerLive", (b"",), (("x-request-id", text),))
    assert "" == CODEC.decode_call(wire).context.request_id
