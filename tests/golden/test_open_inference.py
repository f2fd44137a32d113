"""Recorded exchanges of real servers and clients, decoded and encoded.

Sources: `oip/README.md`.  Each request is decoded as a listener does, each response as an upstream of
the server's dialect does; what we encode is decoded by our other half and by the oracle.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    TraceSettingRequest,
)
from gateway.ir.context import Context
from gateway.ir.errors import GatewayError, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.tensor import Tensor, as_raw
from gateway.protocols.oip.outputs import output_parameters
from gateway.registry import protocol
from gateway.wire.grpc import GrpcStatus
from tests.cases.oip_options import EVERYTHING
from tests.golden import open_inference_oracle as oracle
from tests.golden.open_inference import Exchange, exchanges
from tests.golden.open_inference_tables import (
    MLSERVER_ONLY,
    NOT_ENCODED,
    OTHER_PATHS,
    SHARED,
    STREAMS,
    WRONG,
)

SPEC = protocol("oip")
ALL = {exchange.name: exchange for exchange in exchanges()}
READ = {name: one for name, one in ALL.items() if name not in {SHARED, *STREAMS, *WRONG}}

_OK_HTTP = 200
_PATHS: tuple[tuple[str, type[Call[Any]]], ...] = (
    (r"GET /v2/health/live", ServerLiveRequest),
    (r"GET /v2/health/ready", ServerReadyRequest),
    (r"GET /v2", ServerMetadataRequest),
    (r"GET /v2/models/\w+(/versions/\d)?/ready", ModelReadyRequest),
    (r"GET /v2/models/\w+(/versions/\d)?", ModelMetadataRequest),
    (r"GET /v2/models/\w+(/versions/\d)?/config", ModelConfigRequest),
    (r"POST /v2/models/\w+(/versions/\d)?/infer", InferRequest),
    (r"POST /v2/repository/index", RepositoryIndexRequest),
    (r"POST /v2/repository/models/\w+/load", ModelLoadRequest),
    (r"POST /v2/repository/models/\w+/unload", ModelUnloadRequest),
    (r"GET /v2/models/\w+(/versions/\d)?/stats", ModelStatisticsRequest),
    (r"GET /v2/trace/setting", TraceSettingRequest),
    (r"(GET|POST) /v2/logging", LogSettingsRequest),
    (r"GET /v2/systemsharedmemory/status", SharedStatusRequest),
    (r"POST /v2/systemsharedmemory/region/\w+/register", SharedRegisterRequest),
    (r"POST /v2/systemsharedmemory/unregister", SharedUnregisterRequest),
)
# Their responses are equal member for member; those of other calls leave some out.
EXTENSIONS_OF_TRITON = (
    ModelConfigRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    TraceSettingRequest,
    LogSettingsRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
_METHODS: dict[str, type[Call[Any]]] = {
    "ServerLive": ServerLiveRequest,
    "ServerReady": ServerReadyRequest,
    "ModelReady": ModelReadyRequest,
    "ServerMetadata": ServerMetadataRequest,
    "ModelMetadata": ModelMetadataRequest,
    "RepositoryIndex": RepositoryIndexRequest,
    "ModelConfig": ModelConfigRequest,
    "ModelStatistics": ModelStatisticsRequest,
    "RepositoryModelLoad": ModelLoadRequest,
    "RepositoryModelUnload": ModelUnloadRequest,
    "TraceSetting": TraceSettingRequest,
    "LogSettings": LogSettingsRequest,
    "SystemSharedMemoryStatus": SharedStatusRequest,
    "ModelInfer": InferRequest,
}
# What clients take a status for (docs/protocols/open-inference.md, "16. Errors").
_CODES = {
    400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 422: "INVALID_ARGUMENT", 500: "UPSTREAM",
    501: "UNSUPPORTED", 503: "UNAVAILABLE",
    "INVALID_ARGUMENT": "INVALID_ARGUMENT", "NOT_FOUND": "NOT_FOUND", "UNKNOWN": "UPSTREAM",
    "INTERNAL": "UPSTREAM", "UNAVAILABLE": "UNAVAILABLE", "UNIMPLEMENTED": "UNSUPPORTED",
    "ALREADY_EXISTS": "INVALID_ARGUMENT", "CANCELLED": "BAD_UPSTREAM",
}  # fmt: skip
# Responses that the clients themselves cannot decode: FastAPI's lists, mostly.
_UNREAD = ("an exception occurred in the client", "{'detail': [{")
_HEALTH = (ServerLiveRequest, ServerReadyRequest, ModelReadyRequest)


def listener(exchange: Exchange) -> Any:
    """Return the codec of a listener that serves everything."""
    return _codec(exchange, dict(EVERYTHING))


def upstream(exchange: Exchange) -> Any:
    """Return the codec that an upstream of the exchange's server has."""
    return _codec(exchange, {"dialect": exchange.server})


def _codec(exchange: Exchange, options: dict[str, Any]) -> Any:
    binding: Any = SPEC.grpc if exchange.protocol == "grpc" else SPEC.http
    return binding.codec(DEFAULT_LIMITS, SPEC.options(options))


def named(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test by the names of exchanges."""
    return pytest.mark.parametrize("exchange", [pytest.param(ALL[name], id=name) for name in names])


def ok(exchange: Exchange) -> bool:
    """Return whether the server's status is OK."""
    status = exchange.response.status
    return bool(status == (GrpcStatus.OK if exchange.protocol == "grpc" else _OK_HTTP))


def decoded_call(exchange: Exchange) -> Call[Any]:
    """Return the call that a server codec decodes, as the gateway forwards it."""
    call: Call[Any] = listener(exchange).decode_call(exchange.request)
    if isinstance(call, InferRequest) and not call.id and ok(exchange):
        # KServe makes an id up; we always send it one.
        made_up = message_of(exchange, "response").id
        call = call.with_context(request_id=made_up)
    return call


def message_of(exchange: Exchange, way: str, wire: Any = None) -> oracle.Message:
    """Return what the oracle reads in the exchange's "request" or "response", or in *wire*."""
    wire = getattr(exchange, way) if wire is None else wire
    if exchange.protocol == "grpc":
        read: Callable[[bytes], oracle.Message] = getattr(oracle, f"of_{way}")
        return read(bytes(wire.view))
    key = "inputs" if way == "request" else "outputs"
    return oracle.of_http(wire.headers, bytes(wire.view), key)


def message_tensors(tensors: tuple[Tensor, ...]) -> list[oracle.MessageTensor]:
    """Return tensors of the IR in the oracle's form."""
    return [
        oracle.MessageTensor(
            tensor.name,
            "" if tensor.datatype is None else tensor.datatype.value,
            list(tensor.shape or ()),
            bytes(as_raw(tensor)),
            dict(tensor.parameters),
        )
        for tensor in tensors
    ]


def in_order(tensors: tuple[Tensor, ...]) -> list[Any]:
    return sorted(tensor[:4] for tensor in message_tensors(tensors))


def test_the_tables_name_recorded_exchanges() -> None:
    """Every entry of a table is a recorded exchange, and the index has all 272 of them."""
    assert 272 == len(ALL)
    for table in ({SHARED}, STREAMS, WRONG, NOT_ENCODED, MLSERVER_ONLY, OTHER_PATHS):
        assert [] == [name for name in table if name not in ALL]


@named(WRONG)
def test_invalid_requests_are_rejected(exchange: Exchange) -> None:
    """An invalid request raises the error code and the text of the table."""
    code, text = WRONG[exchange.name]
    with pytest.raises(GatewayError, match=text) as caught:
        listener(exchange).decode_call(exchange.request)
    assert code is caught.value.code


@named(READ)
def test_requests_are_decoded_as_recorded(exchange: Exchange) -> None:
    """Call type, id, parameters and every tensor are those of the index and the oracle."""
    call = listener(exchange).decode_call(exchange.request)
    assert _kind(exchange) is type(call)
    if not isinstance(call, InferRequest) or exchange.name == "092-triton-raw-binary-request":
        return
    assert exchange.entry.get("inputs", {}).keys() <= {tensor.name for tensor in call.inputs}
    if exchange.entry.get("inputs"):
        assert sorted(oracle.of_index(exchange.entry["inputs"])) == in_order(call.inputs)
    message = message_of(exchange, "request")
    assert message.tensors == message_tensors(call.inputs)
    assert message.id == call.id
    assert message.outputs == [(output.name, output_parameters(output)) for output in call.outputs]
    reserved = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
    custom = {key: value for key, value in message.parameters.items() if key not in reserved}
    assert custom == call.parameters
    if call.sequence is not None:
        assert message.parameters["sequence_id"] == call.sequence.id
        assert message.parameters["sequence_start"] == call.sequence.start
    assert message.parameters.get("priority", 0) == call.priority
    assert message.parameters.get("timeout") == call.timeout_us


def test_a_raw_binary_request_decodes_to_one_unnamed_tensor() -> None:
    """A body that is the tensor alone is kept as bytes until the model is known."""
    exchange = ALL["092-triton-raw-binary-request"]
    (tensor,) = listener(exchange).decode_call(exchange.request).inputs
    assert ("", None, None) == (tensor.name, tensor.datatype, tensor.shape)
    assert bytes(exchange.request.view) == bytes(as_raw(tensor))


@named(READ)
def test_requests_are_encoded_as_recorded(exchange: Exchange) -> None:
    """The upstream request has the content of the received one, or encoding raises Unsupported."""
    call = decoded_call(exchange)
    codec = upstream(exchange)
    if exchange.name in NOT_ENCODED:
        with pytest.raises(Unsupported, match=NOT_ENCODED[exchange.name]):
            codec.encode_call(call)
        return
    wire = codec.encode_call(call)
    if isinstance(call, InferRequest):
        was, now = message_of(exchange, "request"), message_of(exchange, "request", wire)
        assert was == now._replace(id=was.id)  # a server that needs an id gets one
        call = call.changed(id=now.id)
    if exchange.name not in MLSERVER_ONLY:
        again = listener(exchange).decode_call(wire)
        assert call.changed(context=Context()) == again.changed(context=Context())
    if exchange.protocol == "grpc":
        assert exchange.request.method == wire.method
    elif exchange.name not in OTHER_PATHS:
        assert (exchange.request.method, exchange.request.path) == (wire.method, wire.path)


@named([name for name, one in READ.items() if not ok(one)])
def test_error_responses_are_decoded_and_forwarded(exchange: Exchange) -> None:
    """An error has the code of its status and the server's text; the client gets both."""
    call, response = decoded_call(exchange), exchange.response
    codec = upstream(exchange)
    if isinstance(call, _HEALTH):
        assert codec.decode_reply(call, response) is False
        return
    with pytest.raises(GatewayError) as caught:
        codec.decode_reply(call, response)
    error = caught.value
    status = response.status.name if exchange.protocol == "grpc" else response.status
    assert _CODES[status] == error.code.name
    words = exchange.entry.get("client_error", "")
    if not any(text in words for text in _UNREAD):
        assert error.message in words
    again = listener(exchange).encode_error(call, error)
    assert response.status == again.status
    shown = again.details if exchange.protocol == "grpc" else json.loads(bytes(again.view))["error"]
    assert error.message == shown


@named([name for name, one in READ.items() if ok(one)])
def test_responses_are_decoded_as_recorded(exchange: Exchange) -> None:
    """A decoded reply has the content of the index and the oracle."""
    call = decoded_call(exchange)
    reply = upstream(exchange).decode_reply(call, exchange.response)
    if isinstance(reply, InferResponse):
        message = message_of(exchange, "response")
        assert message.tensors == message_tensors(reply.outputs)
        assert message.model == (reply.model.name, reply.model.version)
        assert message.parameters == reply.parameters
        if exchange.entry.get("outputs"):
            assert sorted(oracle.of_index(exchange.entry["outputs"])) == in_order(reply.outputs)
    elif isinstance(call, _HEALTH):
        assert ("unknown" not in exchange.name and "unloaded" not in exchange.name) is reply
    elif isinstance(call, EXTENSIONS_OF_TRITON):
        _as_recorded(exchange, call, reply)
    elif exchange.protocol == "http":
        assert _shown(json.loads(bytes(exchange.response.view))) == _shown(_members(reply))


def _as_recorded(exchange: Exchange, call: Call[Any], reply: Any) -> None:
    """Check that the decoded reply encodes to the recorded response; some have no body."""
    recorded = bytes(exchange.response.view)
    if not recorded:
        assert not reply
    elif exchange.protocol == "http":
        assert json.loads(recorded) == json.loads(bytes(encoded_reply(exchange, call, reply).view))


def encoded_reply(exchange: Exchange, call: Call[Any], reply: Any) -> Any:
    """Return the response that a listener encodes."""
    return listener(exchange).encode_reply(call, reply)


@named([name for name, one in READ.items() if ok(one)])
def test_replies_are_encoded_as_recorded(exchange: Exchange) -> None:
    """The encoded response decodes to the same reply, and has the content of the server's."""
    call = decoded_call(exchange)
    codec = listener(exchange)
    reply = upstream(exchange).decode_reply(call, exchange.response)
    if isinstance(call, ServerMetadataRequest):
        codec = _codec(exchange, {})  # one that serves more says so
    wire = codec.encode_reply(call, reply)
    assert reply == upstream(exchange).decode_reply(call, wire)
    if isinstance(reply, InferResponse):
        was, now = message_of(exchange, "response"), message_of(exchange, "response", wire)
        assert isinstance(call, InferRequest)
        assert call.id == now.id
        assert was._replace(id="") == now._replace(id="")


def _kind(exchange: Exchange) -> type[Call[Any]]:
    if exchange.protocol == "grpc":
        return _METHODS[exchange.entry["method"].rpartition("/")[2]]
    line = exchange.entry["request_line"].removesuffix(" HTTP/1.1")
    return next(kind for pattern, kind in _PATHS if re.fullmatch(pattern, line))


def _shown(document: Any) -> Any:
    """Return a JSON document without what may be left out."""
    if isinstance(document, list):
        return [_shown(item) for item in document]
    if isinstance(document, dict):
        return {
            key: _shown(value) for key, value in document.items() if value not in ("", None, [], {})
        }
    return document


def _members(reply: Any) -> Any:
    """Return metadata or an index of the IR as the JSON of Open Inference, by their fields."""
    if isinstance(reply, tuple):
        return [_members(item) for item in reply]
    if not dataclasses.is_dataclass(reply):
        return reply.value if isinstance(reply, enum.Enum) else reply
    found = {field.name: getattr(reply, field.name) for field in dataclasses.fields(reply)}
    for other_field in ("max_batch_size", "labels", "stateful", "decoupled"):
        found.pop(other_field, None)
    return {key: list(value) if key == "shape" else _members(value) for key, value in found.items()}
