"""Both TensorRT v1 codecs: encoded messages decode, and no bytes cause a crash."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ServerStatusRequest,
)
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, ModelStatus, ServerStatus, TensorMetadata
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw
from gateway.policies.complete.batch_axis import (
    apply_batch_size,
    merge_batch_size,
    split_reply,
    split_request,
)
from gateway.protocols.trtis.datatypes import NUMBERS
from gateway.protocols.trtis.grpc.codec import GrpcCodec
from gateway.protocols.trtis.http.codec import HttpCodec
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.cases.trtis_golden import EXCHANGES, Exchange

OPEN = {
    "model_control": True,
    "repository_index": True,
    "server_version": "1.12.0",
}
HTTP: Any = HttpCodec(DEFAULT_LIMITS, OPEN)
GRPC: Any = GrpcCodec(DEFAULT_LIMITS, OPEN)
CODECS = st.sampled_from([HTTP, GRPC])

NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=6)
DIMS = st.lists(st.integers(0, 3), max_size=3).map(tuple)
UINT64 = st.integers(0, 2**64 - 1)


@st.composite
def tensors(draw: DrawFn, name: str, batch: tuple[int, ...]) -> Tensor:
    """Draw a tensor of whole shape, its first axes given."""
    datatype = draw(st.sampled_from(list(NUMBERS)))
    shape = (*batch, *draw(DIMS))
    count = math.prod(shape)
    if datatype is Datatype.BYTES:
        items = draw(st.lists(st.binary(max_size=4), min_size=count, max_size=count))
        data = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    else:
        size = count * datatype.size_bytes
        data = draw(st.binary(min_size=size, max_size=size))
    return Tensor(name, datatype, shape, RawData(memoryview(data)))


@st.composite
def models(draw: DrawFn) -> tuple[ModelMetadata, InferRequest, InferResponse]:
    """Draw a model with a request of whole shapes to it and its reply."""
    batches = draw(st.booleans())
    batch = (draw(st.integers(1, 3)),) if batches else ()
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    inputs = tuple(draw(tensors(name, batch)) for name in names)
    outputs = tuple(draw(tensors(name, batch)) for name in names)
    metadata = ModelMetadata(
        name="m",
        inputs=_declared(inputs, batches=batches),
        outputs=_declared(outputs, batches=batches),
        max_batch_size=4 if batches else 0,
    )
    sequence = st.builds(CallSequence, st.integers(1, 2**64 - 1), st.booleans(), st.booleans())
    request = InferRequest(
        model=ModelRef("m", draw(st.sampled_from(["", "1", "9223372036854775807"]))),
        inputs=inputs,
        outputs=tuple(RequestedOutput(name) for name in names),
        id=draw(st.just("") | st.integers(1, 2**64 - 1).map(str)),
        sequence=draw(st.none() | sequence),
        priority=draw(st.integers(0, 2**32 - 1)),
        timeout_us=draw(st.none() | st.integers(1, 2**64 - 1)),
    )
    reply = InferResponse(
        model=ModelRef("m", draw(st.sampled_from(["1", "77"]))), outputs=outputs, id=request.id
    )
    return metadata, request, reply


def _declared(found: tuple[Tensor, ...], *, batches: bool) -> tuple[TensorMetadata, ...]:
    declared = []
    for tensor in found:
        shape = tensor.shape or ()
        declared.append(
            TensorMetadata(tensor.name, tensor.datatype, (-1, *shape[1:]) if batches else shape)
        )
    return tuple(declared)


def as_server(wire: Any) -> Any:
    """Return a request as a server gets it: its body in one piece."""
    body = memoryview(bytes(wire.view))
    if isinstance(wire, GrpcRequest):
        return GrpcRequest(wire.method, (body,), wire.metadata)
    return HttpRequest(wire.method, wire.path, wire.query, wire.headers, (body,))


def as_client(wire: Any) -> Any:
    """Return a response as a client gets it: its body in one piece."""
    body = (bytes(wire.view),)
    if isinstance(wire, GrpcResponse):
        return GrpcResponse(body)
    return HttpResponse(wire.status, wire.headers, body)


@given(models(), CODECS)
def test_requests_round_trip(drawn: Any, codec: Any) -> None:
    """A request split by batch, encoded, decoded and merged by the metadata is the same."""
    metadata, request, _reply = drawn
    wire = codec.encode_call(split_request(request, metadata))
    found = codec.decode_call(as_server(wire))
    assert request == apply_batch_size(found, metadata, whole=True).changed(context=Context())


@given(models(), CODECS)
def test_replies_round_trip(drawn: Any, codec: Any) -> None:
    """Bytes, shapes and version of a split, encoded, decoded and merged reply are the same."""
    metadata, request, reply = drawn
    split_call = split_request(request, metadata)
    call = codec.decode_call(as_server(codec.encode_call(split_call)))
    wire = codec.encode_reply(call, split_reply(reply, metadata, call.batch_size))
    found = merge_batch_size(codec.decode_reply(split_call, as_client(wire)), metadata)
    assert (reply.model, reply.id) == (found.model, found.id)
    assert [(one.name, one.shape, bytes(as_raw(one))) for one in reply.outputs] == [
        (one.name, one.shape, bytes(as_raw(one))) for one in found.outputs
    ]


@given(models(), CODECS)
def test_model_metadata_round_trip(drawn: Any, codec: Any) -> None:
    """A model's metadata survives the status that v1 clients read."""
    metadata, _request, _reply = drawn
    status = ServerStatus(is_ready=True, models=(ModelStatus(metadata),))
    call = codec.decode_call(_status_request(codec))
    assert call.about == ModelRef("m")
    wire = codec.encode_reply(call, status)
    found = codec.decode_reply(ModelMetadataRequest(model=ModelRef("m")), as_client(wire))
    assert metadata.max_batch_size == found.max_batch_size
    for expected, tensor in zip(
        (*metadata.inputs, *metadata.outputs), (*found.inputs, *found.outputs), strict=True
    ):
        assert (expected.name, expected.datatype) == (tensor.name, tensor.datatype)
        # A scalar is shown as one element; requests of one element fit it, see batching.
        assert expected.shape == tensor.shape or math.prod(tensor.shape[-1:]) == 1


def _status_request(codec: Any) -> Any:
    if codec is HTTP:
        return HttpRequest("GET", "/api/status/m", "format=binary")
    return GrpcRequest("/nvidia.inferenceserver.GRPCService/Status", (b"\x0a\x01m",))


@st.composite
def damaged(draw: DrawFn) -> tuple[Exchange, Any, Any]:
    """Draw a recorded exchange with bytes of both messages changed."""
    exchange = draw(st.sampled_from(EXCHANGES))
    request, response = exchange.request, exchange.response
    body = _damage(draw, bytes(request.view))
    response_body = _damage(draw, bytes(response.view))
    if isinstance(request, GrpcRequest):
        return exchange, GrpcRequest(request.method, (body,)), GrpcResponse((response_body,))
    path = _damage(draw, request.path.encode()).decode("latin-1")
    return (
        exchange,
        HttpRequest(request.method, path, request.query, _lines(draw, request.headers), (body,)),
        HttpResponse(response.status, _lines(draw, response.headers), (response_body,)),
    )


def _lines(draw: DrawFn, headers: Headers) -> Headers:
    return Headers(
        [
            (name, _damage(draw, value.encode()).decode("latin-1"))
            if name.lower().startswith("nv-")
            else (name, value)
            for name, value in headers
        ]
    )


def _damage(draw: DrawFn, data: bytes) -> bytes:
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 4)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[end:]
    return data


@given(damaged())
def test_damaged_messages_decode_or_are_rejected(drawn: tuple[Exchange, Any, Any]) -> None:
    """A codec decodes any bytes, or raises a GatewayError that it can encode."""
    exchange, request, response = drawn
    codec = HTTP if exchange.carrier == "http" else GRPC
    call = None
    try:
        call = codec.decode_call(request)
    except GatewayError as error:
        written = codec.encode_error(None, error)
        assert isinstance(written, HttpResponse | GrpcResponse)
    sent_call = codec.decode_call(exchange.request) if exchange.succeeds else call
    if sent_call is None or isinstance(sent_call, ServerStatusRequest):
        return
    try:
        reply = codec.decode_reply(sent_call, response)
        codec.encode_reply(sent_call, reply)
    except GatewayError as error:
        codec.encode_error(sent_call, error)


@given(st.binary(max_size=64), st.text(max_size=32), CODECS)
def test_any_bytes_decode_or_are_rejected(data: bytes, line: str, codec: Any) -> None:
    """Arbitrary bytes raise no other exception than a GatewayError."""
    if codec is HTTP:
        headers = Headers((("NV-InferRequest", line),))
        wire: Any = HttpRequest("POST", "/api/infer/m", "format=\x00", headers, (data,))
    else:
        wire = GrpcRequest("/nvidia.inferenceserver.GRPCService/StreamInfer", (data,))
    try:
        call = codec.decode_call(wire)
    except GatewayError as error:
        codec.encode_error(None, error)
        return
    assert isinstance(call, InferRequest)
    assert sum(tensor.nbytes for tensor in call.inputs) <= len(data)
