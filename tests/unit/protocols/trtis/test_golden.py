"""Every recorded exchange, decoded and encoded by both codecs as the index requires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, text_format

from gateway.ir.calls import (
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerMetadataRequest,
    ServerStatusRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelStatus, RepositoryEntry, ServerMetadata, ServerStatus
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import as_numpy
from gateway.policies.complete.batch_axis import apply_batch_size
from gateway.protocols.trtis.grpc.codec import GrpcCodec
from gateway.protocols.trtis.http.codec import HttpCodec
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.cases.trtis_golden import EXCHANGES, INDEX, METADATA, Exchange, array_of, typed

OPEN: Mapping[str, Any] = {"model_control": True, "repository_index": True}
CODECS: dict[str, Any] = {
    "http": HttpCodec(DEFAULT_LIMITS, OPEN),
    "grpc": GrpcCodec(DEFAULT_LIMITS, OPEN),
}
# Errors that do not reach a handler of a real server, and so have no NV-Status.
SILENT = {"http-manual-wrong-method", "http-manual-unknown-path", "http-manual-health-bad-mode"}
# Recorded without NV-Status; ours has one, so that the caller knows the cause
# (docs/protocols/tensorrt-v1.md, "4. Inference request over HTTP").
WITHOUT_STATUS = {"http-manual-bad-header", "http-manual-missing-header"}
# Servers from 1.12 on write a data_type; ours never does, since older clients cannot read it.
WITH_TYPE = {"http-manual-v112-response", "http-manual-v112-request", "grpc-manual-v112-no-dims"}

INFERS = [one for one in EXCHANGES if one.is_infer]
SUCCEEDED = [one for one in INFERS if one.succeeds]
OTHERS = [one for one in EXCHANGES if not one.is_infer and one.succeeds]
REFUSED = [one for one in EXCHANGES if not one.succeeds]


def name_of(exchange: Exchange) -> str:
    return exchange.name


def case_of(exchange: Exchange) -> str:
    return exchange.name.rpartition(".")[0]


def decoded(exchange: Exchange) -> Any:
    return CODECS[exchange.carrier].decode_call(exchange.request)


def remote_response(exchange: Exchange) -> Any:
    """Return the recorded response as a server sends it to a request for binary."""
    response = exchange.response
    if exchange.carrier == "grpc" or "format=binary" in exchange.request.query:
        return response
    header = text_format.Parse(response.headers.get("nv-inferresponse"), pb.InferResponseHeader())
    size = sum(output.raw.batch_byte_size for output in header.output)
    body = bytes(response.view)
    text_format.Parse(body[size:].decode(), header.__class__())
    return HttpResponse(
        response.status, response.headers, (body[:size], header.SerializeToString())
    )


def completed_call(exchange: Exchange) -> InferRequest:
    call = decoded(exchange)
    return apply_batch_size(call, METADATA[call.model.name], whole=False)


def test_every_case_has_an_exchange() -> None:
    """None of the 128 cases is left out."""
    assert len(INDEX["cases"]) == 128
    assert {case["case"] for case in INDEX["cases"]} == {case_of(one) for one in EXCHANGES}


@pytest.mark.parametrize("exchange", SUCCEEDED, ids=name_of)
def test_decodes_recorded_request(exchange: Exchange) -> None:
    """A recorded inference is decoded like its header by the library, inputs in order."""
    call = decoded(exchange)
    header = exchange.header
    assert [entry.name for entry in header.input] == [one.name for one in call.inputs]
    assert [tuple(entry.dims) or None for entry in header.input] == [
        one.shape for one in call.inputs
    ]
    assert [(one.name, one.cls.count) for one in header.output] == [
        (one.name, one.classes) for one in call.outputs
    ]
    assert header.batch_size == call.batch_size
    assert (str(header.id) if header.id else "") == call.id
    assert header.priority == call.priority
    assert header.timeout_microseconds == (call.timeout_us or 0)
    assert header.correlation_id == (0 if call.sequence is None else call.sequence.id)
    if call.sequence is not None:
        assert header.flags == call.sequence.start + 2 * call.sequence.end


@pytest.mark.parametrize("exchange", [one for one in SUCCEEDED if one.inputs], ids=name_of)
def test_inputs_have_the_values_of_the_client(exchange: Exchange) -> None:
    """With the model's metadata, each input is the array of the client."""
    call = decoded(exchange)
    metadata = METADATA[call.model.name]
    whole = apply_batch_size(call, metadata, whole=True)
    arrays = {name: array_of(items) for name, items in exchange.inputs.items()}
    for tensor in whole.inputs:
        if isinstance(tensor.data, SharedMemoryData):
            continue
        expected = arrays[tensor.name] if metadata.supports_batching else arrays[tensor.name][0]
        np.testing.assert_array_equal(expected, as_numpy(tensor))


@pytest.mark.parametrize("exchange", SUCCEEDED, ids=name_of)
def test_encodes_recorded_response(exchange: Exchange) -> None:
    """The recorded response, decoded as an upstream's, is encoded byte by byte the same."""
    codec = CODECS[exchange.carrier]
    call = decoded(exchange)
    reply = typed(call, codec.decode_reply(completed_call(exchange), remote_response(exchange)))
    written = codec.encode_reply(call, reply)
    if exchange.carrier == "grpc":
        expected = pb.InferResponse.FromString(bytes(exchange.response.view))
        found = pb.InferResponse.FromString(bytes(written.view))
        expected.request_status.request_id = found.request_status.request_id
        for output in expected.meta_data.output:
            output.data_type = pb.TYPE_INVALID
        assert expected == found
        return
    assert exchange.response.status == written.status
    assert [name for name, _ in exchange.response.headers if name != "Content-Length"] == [
        name for name, _ in written.headers
    ]
    line, body = exchange.response.headers.get("nv-inferresponse"), bytes(exchange.response.view)
    if case_of(exchange) in WITH_TYPE:
        line = line.replace(" data_type: TYPE_INT32", "")
        body = body[:64] + _without_type(body[64:])
    assert line == written.headers.get("nv-inferresponse")
    if "format=binary" in exchange.request.query:
        assert body == bytes(written.view)
    else:
        # C++ writes 20, Python 20.0: the same number.
        at = body.index(b"model_name")
        assert body[:at] == bytes(written.view)[:at]
        texts = [bytes(one)[at:].decode() for one in (body, written.view)]
        parsed = [text_format.Parse(text, pb.InferResponseHeader()) for text in texts]
        assert parsed[0] == parsed[1]


def _without_type(trailer: bytes) -> bytes:
    header = pb.InferResponseHeader.FromString(trailer)
    for output in header.output:
        output.data_type = pb.TYPE_INVALID
    return header.SerializeToString()


@pytest.mark.parametrize("exchange", SUCCEEDED, ids=name_of)
def test_encodes_recorded_request(exchange: Exchange) -> None:
    """The recorded call, sent to an upstream, is the recorded request but for default dims."""
    codec = CODECS[exchange.carrier]
    call = completed_call(exchange)
    wire = codec.encode_call(call)
    expected = exchange.header
    for entry, tensor in zip(expected.input, call.inputs, strict=True):
        entry.dims[:] = tensor.shape or (1,)
        if case_of(exchange) == "http-manual-infer-id":
            entry.batch_byte_size = 0  # redundant for fixed-size inputs
    if exchange.carrier == "http":
        found = text_format.Parse(wire.headers.get("nv-inferrequest"), pb.InferRequestHeader())
        assert exchange.request.path == wire.path
        assert wire.query == "format=binary"
        assert bytes(exchange.request.view) == bytes(wire.view)
        expected.priority = expected.timeout_microseconds = 0  # an older server takes neither
    else:
        recorded = pb.InferRequest.FromString(bytes(exchange.request.view))
        sent = pb.InferRequest.FromString(bytes(wire.view))
        found = sent.meta_data
        assert recorded.model_name == sent.model_name
        assert recorded.model_version == sent.model_version
        assert list(recorded.raw_input) == list(sent.raw_input)
    assert expected == found


@pytest.mark.parametrize("exchange", REFUSED, ids=name_of)
def test_recorded_error_is_forwarded_unchanged(exchange: Exchange) -> None:
    """The response has the recorded code and text, or an error of the gateway."""
    codec = CODECS[exchange.carrier]
    call = None
    try:
        call = decoded(exchange)
        error = recorded_error(exchange, call)
    except GatewayError as local_error:
        error = local_error
    written = codec.encode_error(call, error)
    if exchange.carrier == "http":
        assert exchange.response.status == written.status
        assert bytes(exchange.response.view) == bytes(written.view)
        if case_of(exchange) in SILENT:
            assert {name for name, _ in written.headers.pairs} <= {"Allow"}  # which 405 requires
            return
        assert (
            exchange.response.headers.get("nv-inferresponse")
            == written.headers.get("nv-inferresponse")
            or case_of(exchange) in WITHOUT_STATUS
        )
        assert (
            exchange.response.headers.get("content-type") == written.headers.get("content-type")
            or case_of(exchange) in WITHOUT_STATUS
        )
        found = text_format.Parse(written.headers.get("nv-status"), pb.RequestStatus())
    else:
        message = pb.InferResponse.FromString(bytes(written.view))
        recorded = pb.InferResponse.FromString(bytes(exchange.response.view))
        found = message.request_status
        if exchange.is_infer:
            assert recorded.meta_data == message.meta_data
    if case_of(exchange) in WITHOUT_STATUS:
        assert found.code == pb.INVALID_ARG
        return
    assert exchange.status is not None
    assert exchange.status.code == found.code
    if call is not None:
        assert exchange.status.msg == found.msg
    assert found.server_id == "inference:0"
    assert found.request_id > 0


def recorded_error(exchange: Exchange, call: Any) -> GatewayError:
    """Return the error of the recorded response, as an upstream raises it."""
    codec = CODECS[exchange.carrier]
    upstream_call = call
    if isinstance(call, ServerStatusRequest):
        upstream_call = ModelMetadataRequest(model=call.about)
    with pytest.raises(GatewayError) as caught:
        codec.decode_reply(upstream_call, exchange.response)
    assert isinstance(caught.value, GatewayError)
    return caught.value


# Errors that the gateway finds itself, before it calls a server.
LOCAL = {
    "http-manual-short-body": "InvalidTensor",
    "http-manual-extra-body": "InvalidTensor",
    "http-manual-batch-too-big": "InvalidRequest",
    "http-manual-wrong-shape": "InvalidRequest",
    "grpc-manual-wrong-size": "InvalidTensor",
}


@pytest.mark.parametrize("exchange", [one for one in REFUSED if case_of(one) in LOCAL], ids=name_of)
def test_rejects_requests_that_do_not_match_the_model(exchange: Exchange) -> None:
    """With the model's metadata, the error has the code of the recorded response."""
    call = decoded(exchange)
    with pytest.raises(GatewayError) as caught:
        apply_batch_size(call, METADATA[call.model.name], whole=False)
    assert LOCAL[case_of(exchange)] == type(caught.value).__name__
    written = CODECS[exchange.carrier].encode_error(call, caught.value)
    assert exchange.status is not None
    if isinstance(written, GrpcResponse):
        message = pb.InferResponse.FromString(bytes(written.view))
        assert exchange.status.code == message.request_status.code
    else:
        line = written.headers.get("nv-status")
        assert exchange.status.code == text_format.Parse(line, pb.RequestStatus()).code


@pytest.mark.parametrize("exchange", OTHERS, ids=name_of)
def test_other_replies_are_encoded_as_recorded(exchange: Exchange) -> None:
    """A client reads the same health, status, control, regions and index."""
    codec = CODECS[exchange.carrier]
    call = decoded(exchange)
    written = codec.encode_reply(call, reply_to(exchange, call))
    if exchange.carrier == "http":
        assert exchange.response.status == written.status
        assert exchange.response.headers.get("content-type") == written.headers.get("content-type")
        status = text_format.Parse(written.headers.get("nv-status"), pb.RequestStatus())
    else:
        status = pb.HealthResponse.FromString(bytes(written.view)).request_status
        assert pb.HealthResponse.FromString(bytes(exchange.response.view)).health == (
            pb.HealthResponse.FromString(bytes(written.view)).health
        )
    assert (pb.SUCCESS, "", "inference:0") == (status.code, status.msg, status.server_id)
    if isinstance(call, ServerStatusRequest):
        recorded, found = (status_in(exchange, one) for one in (exchange.response, written))
        assert read_by_client(recorded) == read_by_client(found)
    elif exchange.carrier == "http":
        assert bytes(exchange.response.view) == bytes(written.view)
    else:
        listed = _index_in if isinstance(call, RepositoryIndexRequest) else _regions_in
        assert listed(exchange.response) == listed(written)


def reply_to(exchange: Exchange, call: Any) -> Any:
    """Return the recorded response as the gateway's reply."""
    if isinstance(call, RepositoryIndexRequest):
        return tuple(RepositoryEntry(name) for name in sorted(METADATA))
    if not isinstance(call, ServerStatusRequest):
        return CODECS[exchange.carrier].decode_reply(call, exchange.response)
    names = list(METADATA) if call.about is None else [call.about.name]
    models = tuple(ModelStatus(METADATA[name]) for name in names)
    return ServerStatus(is_ready=True, uptime_s=1.0, models=models)


def status_in(exchange: Exchange, response: Any) -> pb.ServerStatus:
    body = bytes(response.view)
    if exchange.carrier == "grpc":
        return pb.StatusResponse.FromString(body).server_status
    if "format=binary" in exchange.request.query:
        return pb.ServerStatus.FromString(body)
    return text_format.Parse(body.decode(), pb.ServerStatus())


def read_by_client(status: pb.ServerStatus) -> Any:
    """Return the parts of a status that the real client reads."""
    models = {}
    for name, model in status.model_status.items():
        config = model.config
        tensors = [
            (one.name, one.data_type, list(one.dims), one.is_shape_tensor)
            for kind in (config.input, config.output)
            for one in kind
        ]
        versions = {number: one.ready_state for number, one in model.version_status.items()}
        models[name] = (config.name, config.max_batch_size, tensors, versions)
    return status.id, status.version, status.ready_state, models


def _index_in(response: GrpcResponse) -> list[str]:
    index = pb.RepositoryResponse.FromString(bytes(response.view)).index
    return [one.name for one in index.models]


def _regions_in(response: GrpcResponse) -> list[Any]:
    """Return the regions where real servers write them; none in other responses."""
    message = pb.SharedMemoryControlResponse.FromString(bytes(response.view))
    regions = message.shared_memory_status.shared_memory_region
    return [json_format.MessageToDict(one) for one in regions]


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_decodes_the_status_of_an_old_server(carrier: str) -> None:
    """Server metadata, models, signatures and readiness are in the recorded status."""
    codec = CODECS[carrier]
    recorded = next(one for one in EXCHANGES if one.name == f"{carrier}-status-server.1")
    response = recorded.response
    simple = ModelRef("simple")
    assert codec.decode_reply(ServerMetadataRequest(), response) == ServerMetadata(
        "inference:0", "1.11.0"
    )
    entries = codec.decode_reply(RepositoryIndexRequest(), response)
    assert sorted(METADATA) == list(dict.fromkeys(entry.name for entry in entries))
    for name, expected in METADATA.items():
        upstream_call = ModelMetadataRequest(model=ModelRef(name))
        assert expected == codec.decode_reply(upstream_call, response)
    assert codec.decode_reply(ModelReadyRequest(model=simple), response) is True
    assert codec.decode_reply(ModelReadyRequest(model=ModelRef("simple", "7")), response) is False


def test_names_in_json_status_depend_on_the_server_version() -> None:
    """JSON is protobuf's own mapping, in camel case up to 1.12 and in snake case from 1.13 on."""
    status = ServerStatus(is_ready=True, models=(ModelStatus(METADATA["simple"]),))
    accept = Headers((("Accept", "application/json"),))
    for version, key in (("1.11.0", "modelStatus"), ("1.13.0", "model_status")):
        codec = HttpCodec(DEFAULT_LIMITS, {"server_version": version})
        for wire in (
            HttpRequest("GET", "/api/status/simple", "format=json"),
            HttpRequest("GET", "/api/status/simple", "", accept),
        ):
            written = codec.encode_reply(codec.decode_call(wire), status)
            assert written.headers.get("content-type") == "application/json"
            text = bytes(written.view).decode()
            assert key in text
            assert json_format.Parse(text, pb.ServerStatus()).version == version
