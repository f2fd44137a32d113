"""The HTTP codec of grps: paths, content types, models, forms of responses, streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    ServerSwitchRequest,
    ServerTrendsRequest,
    SharedStatusRequest,
    StreamInferRequest,
    rewritten,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.data import SharedMemoryData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    NotReady,
    Overloaded,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamError,
    VersionNotFound,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import (
    ModelMetadata,
    ModelStatus,
    ServerStatus,
    TensorMetadata,
    Trend,
)
from gateway.ir.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_items,
    as_numpy,
    items_tensor,
    raw_tensor,
)
from gateway.protocols.grps.brpc.codec import SERVICE, BrpcCodec
from gateway.protocols.grps.brpc.framing import frame_bytes
from gateway.protocols.grps.errors import Unconvertible
from gateway.protocols.grps.http.codec import HttpCodec
from gateway.protocols.grps.messages import ContentFormat, Flag, GrpsMessage
from gateway.protocols.grps.protobuf.message import read_message, write_message
from gateway.schema.baidu_std_pb2 import RpcMeta, RpcRequestMeta
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame

PREDICT = "/grps/v1/infer/predict"
CODEC = HttpCodec(DEFAULT_LIMITS, {"default_model": "m"})
ARRAY = np.array([[1.5, 2.0]], np.float32)
FP32 = array_tensor("y", ARRAY)
SUCCESS = {"code": 200, "msg": "OK", "status": "SUCCESS"}


def post(
    body: bytes, query: str = "", kind: str | None = "application/json", path: str = PREDICT
) -> HttpRequest:
    """Return a request as a client sends it."""
    headers = Headers(() if kind is None else (("content-type", kind),))
    return HttpRequest("POST", path, query, headers, (memoryview(body),))


def decode_call(wire: HttpRequest, codec: HttpCodec = CODEC) -> Any:
    """Return the call of a request."""
    return codec.decode_call(wire)


def response_to(call: Call[Any], *outputs: Tensor, codec: HttpCodec = CODEC, **fields: Any) -> Any:
    """Return the HTTP response to *call* with these outputs."""
    return codec.encode_reply(call, InferResponse(model=ModelRef("m"), outputs=outputs, **fields))


def json_of(wire: HttpResponse) -> Any:
    """Return the document of a response."""
    return orjson.loads(wire.view)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("health/online", ServerSwitchRequest),
        ("health/offline", ServerSwitchRequest),
        ("health/live", ServerLiveRequest),
        ("health/ready", ServerReadyRequest),
        ("metadata/server", ServerStatusRequest),
    ],
)
def test_requests_to_the_server_are_decoded(method: str, path: str, kind: type[Call[Any]]) -> None:
    """Health and server metadata accept GET and POST, whatever the body."""
    wire = HttpRequest(method, f"/grps/v1/{path}", body=(memoryview(b"not json"),))
    call = CODEC.decode_call(wire)
    assert kind is type(call)
    if isinstance(call, ServerSwitchRequest):
        assert (path.endswith("online"), False) == (call.is_online, call.is_allowed)
        codec = HttpCodec(DEFAULT_LIMITS, {"switch": True})
        allowed = codec.decode_call(HttpRequest("GET", f"/grps/v1/{path}"))
        assert isinstance(allowed, ServerSwitchRequest)
        assert allowed.is_allowed


@pytest.mark.parametrize("name", ["qps", "%2Aqps", "*latency_cdf%28ms%29"])
def test_series_is_encoded_as_points_of_a_trend(name: str) -> None:
    """The name may have the star of real servers; a distribution has its own label."""
    call = CODEC.decode_call(HttpRequest("GET", "/grps/v1/monitor/series", f"name={name}"))
    assert ServerTrendsRequest is type(call)
    points = ((0, 0.0), (1, 2.5))
    trends = {"qps": Trend(points), "latency_cdf(ms)": Trend(points, is_distribution=True)}
    wire = CODEC.encode_reply(call, trends)
    label = "trend" if "qps" in name else "cdf"
    assert {"label": label, "data": [[0, 0.0], [1, 2.5]]} == json_of(wire)


def test_unknown_series_is_not_found() -> None:
    """The error has a real server's text."""
    call = CODEC.decode_call(HttpRequest("GET", "/grps/v1/monitor/series", "name=*nope"))
    with pytest.raises(NotFound, match="key not found"):
        CODEC.encode_reply(call, {})


@pytest.mark.parametrize(
    ("healthy", "status", "body"),
    [
        (True, 200, SUCCESS),
        (False, 503, {"code": 503, "msg": "Service Unavailable", "status": "FAILURE"}),
    ],
)
def test_readiness_is_encoded_as_by_real_servers(
    healthy: bool, status: int, body: dict[str, Any]
) -> None:
    """Not ready is 503 in the Status and as HTTP status; ready is 200 OK SUCCESS."""
    wire = CODEC.encode_reply(ServerReadyRequest(), healthy)
    assert (status, {"status": body}) == (wire.status, json_of(wire))


@pytest.mark.parametrize(
    ("method", "path", "error", "status"),
    [
        ("GET", PREDICT, MethodNotAllowed, 405),
        ("DELETE", "/grps/v1/health/live", MethodNotAllowed, 405),
        ("GET", "/grps/v1/nope", NotFound, 404),
        ("GET", "/grps/v1/js/flot_min", NotFound, 404),
        ("POST", "/grps/v1/monitor/series", MethodNotAllowed, 405),
    ],
)
def test_unknown_path_is_404_and_wrong_method_is_405(
    method: str, path: str, error: type[GatewayError], status: int
) -> None:
    """A 405 response names the allowed methods."""
    with pytest.raises(error) as caught:
        CODEC.decode_call(HttpRequest(method, path))
    wire = CODEC.encode_error(None, caught.value)
    assert (status, status == 405) == (wire.status, wire.headers.get("allow") is not None)


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/json; charset=utf-8", "Application/JSON"],
)
def test_content_type_ignores_parameters_and_case(kind: str) -> None:
    """Real servers are stricter."""
    assert InferRequest is type(decode_call(post(b'{"str_data":"x"}', kind=kind)))


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"{}", None, "No content type"),
        (b"{}", "text/plain", "Unsupported content type"),
        (b"", "application/json", "body is empty"),
        (b"", "application/octet-stream", "body is empty"),
    ],
)
def test_invalid_content_is_rejected(body: bytes, kind: str | None, text: str) -> None:
    """A missing or unknown content type and an empty body are 400."""
    with pytest.raises(InvalidRequest, match=text) as caught:
        decode_call(post(body, kind=kind))
    assert 400 == CODEC.encode_error(None, caught.value).status


@pytest.mark.parametrize(
    ("body", "query", "model"),
    [
        (b'{"str_data":"x"}', "", "m"),
        (b'{"str_data":"x"}', "model=a-b-2-rc", "a-b-2-rc"),
        (b'{"str_data":"x","model":"p-1"}', "model=q-1", "p-1"),
        (b'{"str_data":"x","model":""}', "model=q-1", "q-1"),
        (b'{"str_data":"x","model":null}', "model=%E4%B8%AD", "中"),
    ],
)
def test_model_of_the_payload_takes_precedence(body: bytes, query: str, model: str) -> None:
    """The order is payload, query, default; a key is never split."""
    assert ModelRef(model) == decode_call(post(body, query)).model


def test_a_configured_key_is_a_model_with_a_version() -> None:
    """The option `models` maps keys to models."""
    codec = HttpCodec(DEFAULT_LIMITS, {"models": {"a-b-2-rc": "a-b/2-rc"}})
    call = decode_call(post(b'{"str_data":"x"}', "model=a-b-2-rc"), codec)
    assert ModelRef("a-b", "2-rc") == call.model


def test_no_model_and_no_default_is_not_found() -> None:
    """A listener without a default model cannot guess."""
    with pytest.raises(ModelNotFound, match="no default model"):
        decode_call(post(b'{"str_data":"x"}'), HttpCodec(DEFAULT_LIMITS, {}))


def test_text_is_one_input_and_is_returned_as_text() -> None:
    """str_data is an unnamed BYTES element without a shape, also in the response."""
    call = decode_call(post('{"str_data":"hällo"}'.encode()))
    [tensor] = call.inputs
    assert "" == tensor.name
    assert Datatype.BYTES is tensor.datatype
    assert tensor.shape is None
    assert ["hällo".encode()] == list(as_items(tensor))
    assert {"grps_form": "str_data"} == dict(call.parameters)
    wire = response_to(call, items_tensor("out", (1, 1), [b"bye"]))
    assert {"status": SUCCESS, "str_data": "bye"} == json_of(wire)


def test_bytes_are_returned_as_bytes() -> None:
    """An octet-stream request is one element; the response is raw bytes without a Status."""
    body = bytes(range(256))
    call = decode_call(post(body, "model=k", "application/octet-stream"))
    assert ([body], ModelRef("k")) == ([bytes(i) for i in as_items(call.inputs[0])], call.model)
    wire = response_to(call, items_tensor("out", (1,), [body]))
    assert 200 == wire.status
    assert "application/octet-stream" == wire.headers.get("content-type")
    assert body == bytes(wire.view)


def test_bytes_of_a_body_are_not_copied() -> None:
    """The element of an octet-stream is a view of the body."""
    wire = post(bytes(1000), "", "application/octet-stream")
    item = as_items(decode_call(wire).inputs[0])[0]
    assert np.shares_memory(np.frombuffer(item, np.uint8), np.frombuffer(wire.view, np.uint8))


def test_empty_bytes_are_returned_as_json() -> None:
    """An empty response has a Status, as on the Python server."""
    call = decode_call(post(b"x", "", "application/octet-stream"))
    wire = response_to(call, items_tensor("out", (1,), [b""]))
    assert {"status": SUCCESS, "bin_data": ""} == json_of(wire)


def test_invalid_text_is_returned_as_bytes() -> None:
    """Output bytes that are not UTF-8 are returned unchanged."""
    call = decode_call(post(b'{"str_data":"x"}'))
    assert b"\xff\xfe" == bytes(response_to(call, items_tensor("out", (1,), [b"\xff\xfe"])).view)


def test_tensors_are_returned_as_tensors() -> None:
    """Gtensors have int64 as text and no defaults."""
    call = decode_call(
        post(b'{"gtensors":{"tensors":[{"dtype":"DT_FLOAT32","shape":[1],"flat_float32":[1]}]}}')
    )
    wire = response_to(
        call, FP32, array_tensor("n", np.array(2**53 + 1)), items_tensor("t", (2,), [b"a", b"b"])
    )
    tensors = [
        {"name": "y", "dtype": "DT_FLOAT32", "shape": [1, 2], "flat_float32": [1.5, 2.0]},
        {"name": "n", "dtype": "DT_INT64", "flat_int64": [str(2**53 + 1)]},
        {"name": "t", "dtype": "DT_STRING", "shape": [2], "flat_string": ["a", "b"]},
    ]
    assert {"status": SUCCESS, "gtensors": {"tensors": tensors}} == json_of(wire)


WIDE = [
    ("BOOL", np.array([True, False]), "DT_UINT8", "flat_uint8", [1, 0]),
    ("UINT16", np.array([65535], np.uint16), "DT_INT32", "flat_int32", [65535]),
    ("UINT32", np.array([2**32 - 1], np.uint32), "DT_INT64", "flat_int64", [str(2**32 - 1)]),
    ("UINT64", np.array([2**63 - 1], np.uint64), "DT_INT64", "flat_int64", [str(2**63 - 1)]),
    ("BF16", np.array([0x3F80], np.uint16), "DT_FLOAT32", "flat_float32", [1.0]),
    ("FP16", np.array([0.1], np.float16), "DT_FLOAT16", "flat_float16", [0.099975586]),
]


@pytest.mark.parametrize(
    ("datatype", "array", "dtype", "member", "elements"), WIDE, ids=[row[0] for row in WIDE]
)
def test_outputs_are_widened_without_loss(
    datatype: str, array: Any, dtype: str, member: str, elements: list[Any]
) -> None:
    """A datatype that grps lacks is encoded as the next wider one."""
    call = decode_call(post(b'{"str_data":"x"}'))
    wire = response_to(call, array_tensor("y", array, Datatype(datatype)))
    [tensor] = json_of(wire)["gtensors"]["tensors"]
    assert (dtype, elements) == (tensor["dtype"], tensor[member])


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (array_tensor("y", np.array([1, 2**63], np.uint64)), "index 1"),
        (items_tensor("y", (2,), [b"ok", b"\xff"]), "not UTF-8 at index 1"),
    ],
)
def test_unrepresentable_output_is_a_failure(tensor: Tensor, text: str) -> None:
    """The error is 500 and names the element's index; no value is changed."""
    call = decode_call(post(b'{"str_data":"x"}'))
    with pytest.raises(Unconvertible, match=text) as caught:
        response_to(call, tensor)
    assert 500 == CODEC.encode_error(call, caught.value).status


def test_ndarray_is_decoded_and_encoded() -> None:
    """An ndarray is one unnamed FP32 tensor; a requested one has the one FP32 output."""
    call = decode_call(post(b'{"ndarray":[[1,2.5]]}', "return-ndarray=True"))
    assert ("", [[1.0, 2.5]]) == (call.inputs[0].name, as_numpy(call.inputs[0]).tolist())
    assert {"status": SUCCESS, "model": "", "ndarray": [[1.5, 2.0]]} == json_of(
        response_to(call, FP32)
    )
    odd = array_tensor("y", np.array([np.nan, np.inf, -np.inf, 0.1], np.float32))
    expected = ["NaN", "Infinity", "-Infinity", 0.1]
    assert expected == json_of(response_to(call, odd))["ndarray"]


@pytest.mark.parametrize("shape", [((1 << 32) - 1, 0), (65536, 65536, 0, 2)])
def test_an_ndarray_of_billions_of_empty_lists_is_rejected(shape: tuple[int, ...]) -> None:
    """A short request may name the shape, and its model may return it."""
    call = CODEC.decode_call(post(b'{"ndarray":0}', "return-ndarray=true"))
    with pytest.raises(Unconvertible, match=r"no elements and 429496729\d lists, at most 1000000"):
        response_to(call, raw_tensor("y", Datatype.FP32, shape, memoryview(b"")))
    few = raw_tensor("y", Datatype.FP32, (2, 0, 1 << 40), memoryview(b""))
    assert [[], []] == json_of(response_to(call, few))["ndarray"]


def test_a_scalar_ndarray_has_rank_0() -> None:
    """A bare number is a tensor without dimensions, in both directions."""
    call = decode_call(post(b'{"ndarray":0}', "return-ndarray=true"))
    assert () == call.inputs[0].shape
    assert 7.0 == json_of(response_to(call, array_tensor("y", np.array(7, np.float32))))["ndarray"]


@pytest.mark.parametrize("outputs", [(FP32, FP32.renamed("z")), (items_tensor("y", (1,), [b""]),)])
def test_other_outputs_cannot_be_an_ndarray(outputs: tuple[Tensor, ...]) -> None:
    """The error for several outputs, or one that is not FP32, names them."""
    call = decode_call(post(b'{"str_data":"x"}', "return-ndarray=true"))
    with pytest.raises(Unconvertible, match="'y' of"):
        response_to(call, *outputs)


def test_only_true_requests_an_ndarray_or_a_stream() -> None:
    """return-ndarray=1 has no effect."""
    call = decode_call(post(b'{"ndarray":[1]}', "return-ndarray=1&streaming=1"))
    assert (InferRequest, "gtensors") == (type(call), list(json_of(response_to(call, FP32)))[1])


GMAP = b'{"gmap":{"s_s":{"a":"b"},"s_b":{"k":"AAE="},"s_i32":{"i":1},"s_i64":{"j":"-9"},"s_f":{"f":0.1},"s_d":{"d":0.1}}}'


def test_gmap_is_parameters_and_tensors_and_is_returned() -> None:
    """Every field of gmap keeps its name in the IR, so that the response can be a map."""
    call = decode_call(post(GMAP))
    assert {
        "grps_form": "gmap",
        "gmap.s_s.a": "b",
        "gmap.s_i32.i": 1,
        "gmap.s_i64.j": -9,
        "gmap.s_f.f": float(np.float32(0.1)),
        "gmap.s_d.d": 0.1,
    } == dict(call.parameters)
    assert ["gmap.s_b.k"] == [tensor.name for tensor in call.inputs]
    wire = response_to(call, *call.inputs, parameters=call.parameters)
    assert orjson.loads(GMAP)["gmap"] == json_of(wire)["gmap"]


STREAM = "streaming=TRUE"


def test_stream_is_parts_of_one_response() -> None:
    """Each reply is one part with the configured type; an error is one more message."""
    call = decode_call(post(b'{"str_data":"x"}', STREAM))
    assert StreamInferRequest is type(call)
    item = InferResponse(
        model=ModelRef("m"), outputs=(items_tensor("t", (1,), [b"hi"]),), is_final=False
    )
    part = CODEC.encode_item(call, item)
    assert 200 == part.status
    assert "application/octet-stream" == part.headers.get("content-type")
    assert "hi" == json_of(part)["str_data"]
    failed = CODEC.encode_error(call, UpstreamError("boom"))
    assert {"code": 500, "msg": "boom", "status": "FAILURE"} == json_of(failed)["status"]


def test_stream_without_replies_is_an_empty_body() -> None:
    """After a reply, the end adds no part."""
    call = decode_call(post(b'{"str_data":"x"}', STREAM))
    end = CODEC.encode_end(call, None)
    assert end is not None
    assert 200 == end.status
    assert "application/octet-stream" == end.headers.get("content-type")
    assert b"" == bytes(end.view)
    assert CODEC.encode_end(call, InferResponse(model=ModelRef("m"), outputs=())) is None


def test_streamed_bytes_are_raw() -> None:
    """A part of bytes has no Status around it."""
    call = decode_call(post(b"x", STREAM, "application/octet-stream"))
    item = InferResponse(model=ModelRef("m"), outputs=(items_tensor("t", (1,), [b"\xff"]),))
    assert b"\xff" == bytes(CODEC.encode_item(call, item).view)


def test_a_stream_of_ndarrays_is_rejected() -> None:
    """Streaming with return-ndarray has the error text of real servers."""
    with pytest.raises(InvalidRequest, match="not supported at the same time"):
        decode_call(post(b'{"str_data":"x"}', f"{STREAM}&return-ndarray=true"))


@pytest.mark.parametrize(
    ("mode", "wire"),
    [
        ("header_param", "header"),
        ("body_param", "body"),
    ],
)
def test_request_for_a_stream_is_configurable(mode: str, wire: str) -> None:
    """A header, or a boolean in the body, requests a stream, also of an upstream."""
    options = {
        "default_model": "m",
        "streaming": {"mode": mode, "key": "X-Go", "content_type": "text/event-stream"},
    }
    codec = HttpCodec(DEFAULT_LIMITS, options)
    stream = StreamInferRequest(
        model=ModelRef("m"), request=InferRequest(model=ModelRef("m"), inputs=(FP32,))
    )
    sent = codec.encode_call(stream)
    assert (wire == "body", "") == (b'"X-Go":true' in bytes(sent.view), sent.query)
    call = codec.decode_call(sent)
    assert StreamInferRequest is type(call)
    part = codec.encode_item(call, InferResponse(model=ModelRef("m"), outputs=(FP32,)))
    assert "text/event-stream" == part.headers.get("content-type")


def test_text_true_in_a_body_requests_no_stream() -> None:
    """In the body only the boolean counts."""
    codec = HttpCodec(DEFAULT_LIMITS, {"default_model": "m", "streaming": {"mode": "body_param"}})
    assert InferRequest is type(decode_call(post(b'{"str_data":"x","streaming":"true"}'), codec))


def test_http_always_200_is_an_option() -> None:
    """Only the body has the error, as on the C++ server."""
    codec = HttpCodec(DEFAULT_LIMITS, {"http_always_200": True})
    wire = codec.encode_error(None, Unavailable("gone"))
    assert (200, 503) == (wire.status, json_of(wire)["status"]["code"])


def test_overload_has_a_retry_after_header() -> None:
    """The status is 503."""
    wire = CODEC.encode_error(None, Overloaded("too many"))
    assert (503, "1") == (wire.status, wire.headers.get("retry-after"))


METADATA = ModelMetadata(
    name="simple",
    versions=("1",),
    inputs=(TensorMetadata("INPUT0", Datatype.UINT16, (-1, 16)),),
    outputs=(TensorMetadata("OUT", Datatype.BYTES, None),),
    max_batch_size=8,
)


def test_yaml_of_model_metadata_is_decoded_by_a_gateway() -> None:
    """A version that looks like a number is quoted; a widened datatype is preserved."""
    call = decode_call(post(b'{"str_data":"simple"}', path="/grps/v1/metadata/model"))
    wire = CODEC.encode_reply(call, METADATA)
    text = json_of(wire)["str_data"]
    assert ("version: '1'" in text, "dtype: DT_INT32" in text) == (True, True)
    assert METADATA == CODEC.decode_reply(ModelMetadataRequest(model=ModelRef("simple")), wire)


def test_server_metadata_lists_all_models() -> None:
    """Each version is an entry; the HTML page at / escapes the names."""
    status = ServerStatus(is_ready=True, models=(ModelStatus(METADATA),))
    wire = CODEC.encode_reply(
        CODEC.decode_call(HttpRequest("GET", "/grps/v1/metadata/server")), status
    )
    assert "models:\n- name: simple\n" == json_of(wire)["str_data"][:23]
    page = CODEC.encode_reply(
        CODEC.decode_call(HttpRequest("GET", "/")),
        ServerStatus(is_ready=True, models=(ModelStatus(ModelMetadata(name="<b>")),)),
    )
    assert "text/html; charset=utf-8" == page.headers.get("content-type")
    assert b"&lt;b&gt;" in bytes(page.view)


@pytest.mark.parametrize("body", [b"{}", b'{"str_data":""}', b'{"gmap":{}}'])
def test_model_metadata_needs_a_name(body: bytes) -> None:
    """A request without one is 400."""
    with pytest.raises(InvalidRequest):
        decode_call(post(body, path="/grps/v1/metadata/model"))


# The other direction: requests to a grps server.


def test_requests_are_encoded_in_the_callers_form() -> None:
    """Text is text, bytes an octet-stream with the model in the query, tensors JSON."""
    text = decode_call(post(b'{"str_data":"x"}', "model=k-1"))
    raw = decode_call(post(b"\x00", "model=k/1", "application/octet-stream"))
    tensors = InferRequest(model=ModelRef("k", "2"), inputs=(FP32,))
    sent = [CODEC.encode_call(rewritten(call)) for call in (text, raw, tensors)]
    assert {"str_data": "x", "model": "k-1"} == json_of_request(sent[0])
    assert "model=k%2F1" == sent[1].query
    assert "k-2" == json_of_request(sent[2])["model"]
    assert ["application/json", "application/octet-stream"] == [
        wire.headers.get("content-type") for wire in sent[:2]
    ]


def json_of_request(wire: HttpRequest) -> Any:
    return orjson.loads(wire.view)


@pytest.mark.parametrize(
    ("options", "model", "key"),
    [
        ({}, ModelRef("m", "1"), "m-1"),
        ({}, ModelRef("m"), "m"),
        ({"keys": {"m/1": "other"}}, ModelRef("m", "1"), "other"),
        ({"keys": {"m": "m-1.0.0"}}, ModelRef("m"), "m-1.0.0"),
        ({"keys": {"m": ""}}, ModelRef("m"), None),
    ],
)
def test_keys_of_models_are_configurable(
    options: dict[str, Any], model: ModelRef, key: str | None
) -> None:
    """A key is name-version, the name, or an option; "" is the server's default."""
    codec = HttpCodec(DEFAULT_LIMITS, options)
    sent = codec.encode_call(InferRequest(model=model, inputs=(FP32,)))
    assert key == json_of_request(sent).get("model")


MODEL_CALLS: tuple[type[Call[Any]], ...] = (
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
)


@pytest.mark.parametrize("kind", MODEL_CALLS)
@pytest.mark.parametrize(
    ("key", "version"), [("m-1", "999"), ("other-1", "2"), ("", "1"), ("m", "1")]
)
def test_version_that_a_key_does_not_name_is_not_found(
    kind: type[Call[Any]], key: str, version: str
) -> None:
    """Inference, metadata and readiness of such a version are rejected before a request."""
    codec = HttpCodec(DEFAULT_LIMITS, {"keys": {"m": key}})
    with pytest.raises(VersionNotFound, match=rf"no version '{version}'"):
        codec.encode_call(kind(model=ModelRef("m", version)))


@pytest.mark.parametrize(
    ("keys", "model", "name", "versions"),
    [
        ({"m": "m-1"}, ModelRef("m"), "m", ("1",)),
        ({"m": "m-1"}, ModelRef("m", "1"), "m", ("1",)),
        ({"m": "a-b-2.0"}, ModelRef("m"), "a-b", ("2.0",)),
        ({"m": "my-model"}, ModelRef("m"), "my-model", ("7",)),
        ({"m/3": "x-1"}, ModelRef("m", "3"), "x", ("3",)),
        ({"m": ""}, ModelRef("m"), "m", ("7",)),
        ({}, ModelRef("m"), "m", ("7",)),
    ],
)
def test_metadata_uses_the_configured_keys(
    keys: dict[str, str], model: ModelRef, name: str, versions: tuple[str, ...]
) -> None:
    """The request has the server's own name; the reply has the version of the key."""
    codec = HttpCodec(DEFAULT_LIMITS, {"keys": keys})
    call = ModelMetadataRequest(model=model)
    assert name == json_of_request(codec.encode_call(call))["str_data"]
    body = orjson.dumps({"str_data": "name: x\nversion: '7'\n"})
    found = codec.decode_reply(call, HttpResponse(200, body=(memoryview(body),)))
    assert versions == found.versions


def test_configured_input_form_is_used() -> None:
    """`input_form` sets the form of inputs, for one model or for all."""
    codec = HttpCodec(DEFAULT_LIMITS, {"input_form": {"t": "str_data", "*": "ndarray"}})
    text = codec.encode_call(
        InferRequest(model=ModelRef("t"), inputs=(items_tensor("x", (1, 1), [b"hi"]),))
    )
    array = codec.encode_call(InferRequest(model=ModelRef("a"), inputs=(FP32,)))
    assert "hi" == json_of_request(text)["str_data"]
    assert [[1.5, 2.0]] == json_of_request(array)["ndarray"]
    with pytest.raises(Unsupported, match="one BYTES element"):
        codec.encode_call(InferRequest(model=ModelRef("t"), inputs=(FP32,)))


def test_inputs_are_widened_only_with_the_option() -> None:
    """By default, a datatype that grps lacks is rejected."""
    call = InferRequest(model=ModelRef("m"), inputs=(array_tensor("x", np.array([True, False])),))
    with pytest.raises(Unsupported, match=r"'x' is BOOL.*'widen'"):
        CODEC.encode_call(call)
    codec = HttpCodec(DEFAULT_LIMITS, {"widen": True})
    [tensor] = json_of_request(codec.encode_call(call))["gtensors"]["tensors"]
    assert ("DT_UINT8", [1, 0]) == (tensor["dtype"], tensor["flat_uint8"])


def test_bytes_cannot_request_a_stream_in_a_body() -> None:
    """Such a body has no JSON."""
    codec = HttpCodec(DEFAULT_LIMITS, {"streaming": {"mode": "body_param"}})
    request = InferRequest(
        model=ModelRef("m"),
        inputs=(items_tensor("x", (1,), [b"\xff"]),),
        parameters={"grps_form": "bin_data"},
    )
    with pytest.raises(Unsupported, match="bin_data cannot request a stream in the body"):
        codec.encode_call(StreamInferRequest(model=request.model, request=request))


def test_page_shows_the_newest_value_of_each_period() -> None:
    """Periods are seconds, minutes, hours and days; distributions are omitted."""
    points = tuple((place, float(place)) for place in range(174))
    trends = {"qps": Trend(points), "latency_cdf(ms)": Trend(points, is_distribution=True)}
    call = CODEC.decode_call(HttpRequest("GET", "/"))
    assert isinstance(call, ServerStatusRequest)
    assert call.trends
    wire = CODEC.encode_reply(call, ServerStatus(is_ready=True, trends=trends))
    page = bytes(wire.view).decode()
    cells = "".join(
        f"<td>{text}</td>" for text in ("qps", "173.000", "113.000", "53.000", "29.000")
    )
    assert f"<tr>{cells}</tr>" in page
    assert "latency_cdf" not in page


def test_all_inputs_or_none_have_names() -> None:
    """A grps server reads inputs by name or by position."""
    one = array_tensor("a", np.ones(1, np.float32))
    call = InferRequest(model=ModelRef("m"), inputs=(one, one.renamed("")))
    with pytest.raises(Unsupported, match="input 1 has no name, others have one"):
        CODEC.encode_call(call)


def test_readiness_may_be_sent_as_liveness() -> None:
    """A grps server starts offline: an option requests its liveness instead."""
    codec = HttpCodec(DEFAULT_LIMITS, {"readiness": "live"})
    paths = [made.encode_call(ServerReadyRequest()).path for made in (CODEC, codec)]
    assert ["/grps/v1/health/ready", "/grps/v1/health/live"] == paths


def test_shared_memory_status_is_unsupported() -> None:
    """Grps has no shared memory."""
    with pytest.raises(Unsupported, match="shared status"):
        CODEC.encode_call(SharedStatusRequest())


@pytest.mark.parametrize(
    ("http", "code", "msg", "error"),
    [
        (500, 500, "Traceback ... RuntimeError: Model x not found.", ModelNotFound),
        (200, 500, "[ExecutorException] Not found model: x", ModelNotFound),
        (200, 400, "Bad Request, err: Parse json failed.", InvalidRequest),
        (500, 500, "boom", UpstreamError),
        (503, 503, "Service Unavailable", Unavailable),
        (200, 504, "too late", DeadlineExceeded),
        (200, 413, "too much", TooLarge),
        (200, 777, "odd", UpstreamError),
    ],
)
def test_failure_of_an_upstream_is_decoded(
    http: int, code: int, msg: str, error: type[GatewayError]
) -> None:
    """The Status decides, not the HTTP status; grps clients receive its code and text."""
    body = orjson.dumps({"status": {"code": code, "msg": msg, "status": "FAILURE"}})
    call = InferRequest(model=ModelRef("x"))
    with pytest.raises(error) as caught:
        CODEC.decode_reply(call, HttpResponse(http, body=(memoryview(body),)))
    assert (error, msg) == (type(caught.value), caught.value.message)
    again = json_of(CODEC.encode_error(call, caught.value))["status"]
    assert {"code": code if code < 600 else 500, "msg": msg, "status": "FAILURE"} == again


@pytest.mark.parametrize("status", [404, 500, 503])
def test_html_of_a_server_is_an_error(status: int) -> None:
    """The error has the HTTP status and the first words of the body."""
    wire = HttpResponse(status, body=(memoryview(b"<html>oops</html>"),))
    with pytest.raises(GatewayError, match=f"HTTP status {status}: <html>oops"):
        CODEC.decode_reply(InferRequest(model=ModelRef("m")), wire)


def test_status_403_is_not_ready() -> None:
    """The Python server's gRPC has 403 where others have 503."""
    body = b'{"status":{"code":403,"msg":"Service Unavailable","status":"FAILURE"}}'
    assert CODEC.decode_reply(ServerReadyRequest(), HttpResponse(200, body=(body,))) is False


@pytest.mark.parametrize(
    "body",
    [
        b'{"status":{"code":200,"status":"SUCCESS"}}',
        b"null",
        b"{",
        b'{"status":{"code":200},"gtensors":{"tensors":[{"dtype":"DT_NO"}]}}',
    ],
)
def test_unusable_responses_are_rejected(body: bytes) -> None:
    """A response without data, or with invalid data, is an error."""
    with pytest.raises(InvalidRequest) as caught:
        CODEC.decode_reply(InferRequest(model=ModelRef("m")), HttpResponse(200, body=(body,)))
    assert caught.value.origin is None


def test_responses_of_every_server_are_read() -> None:
    """Servers write camelCase, int64 as numbers, bare NaN and integral floats."""
    body = (
        b'{"status":{"code":200,"status":1},"gtensors":{"tensors":['
        b'{"name":"a","dtype":5,"shape":[2],"flatInt64":[1,"2"]},'
        b'{"name":"b","dtype":"DT_FLOAT32","shape":[3],"flat_float32":[NaN,1,-Infinity]}]}}'
    )
    reply = CODEC.decode_reply(
        InferRequest(model=ModelRef("m")), HttpResponse(200, body=(memoryview(body),))
    )
    found = [as_numpy(tensor).tolist() for tensor in reply.outputs]
    assert ([1, 2], "[nan, 1.0, -inf]") == (found[0], str(found[1]))


@pytest.mark.parametrize("form", [{}, {"input_form": "bin_data"}])
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"inputs": (Tensor("x", Datatype.BYTES, (1,), SharedMemoryData("r", 0, 4)),)},
            "grps has no shared memory",
        ),
        (
            {"outputs": (RequestedOutput("y", shared=SharedMemoryData("r", 0, 4)),)},
            "grps has no shared memory",
        ),
        ({"outputs": (RequestedOutput("y", 3),)}, "'y' requests 3 classes: grps has no class"),
    ],
)
def test_features_that_grps_lacks_are_rejected_by_name(
    form: dict[str, str], changes: dict[str, Any], text: str
) -> None:
    """The request is valid, but the target cannot represent it."""
    call = InferRequest(model=ModelRef("m"), inputs=(items_tensor("x", (1,), [b"a"]),))
    with pytest.raises(Unsupported, match=text):
        HttpCodec(DEFAULT_LIMITS, form).encode_call(call.changed(**changes))


def test_lone_surrogates_of_python_servers_are_read() -> None:
    """Python writes them as escapes: they become "?", as UTF-8 has none."""
    call = InferRequest(model=ModelRef("m"))
    text = b'{"str_data":"\\ud83d\\ude00 \\ud800"}'
    reply = CODEC.decode_reply(call, HttpResponse(200, body=(memoryview(text),)))
    assert ["\U0001f600 ?".encode()] == list(as_items(reply.outputs[0]))
    entries = b'{"gmap":{"s_s":{"a":"\\udc80","b":"c"},"s_i64":{"n":1}}}'
    reply = CODEC.decode_reply(call, HttpResponse(200, body=(memoryview(entries),)))
    assert {"gmap.s_s.a": "?", "gmap.s_s.b": "c", "gmap.s_i64.n": 1, "grps_form": "gmap"} == dict(
        reply.parameters
    )


def test_headers_and_request_id_are_forwarded() -> None:
    """The request id is added; headers of one connection are dropped."""
    context = Context(
        metadata=(("x-mine", "1"), ("host", "h"), ("grpc-timeout", "1S"), ("bad name", "x")),
        request_id="r1",
    )
    wire = CODEC.encode_call(ServerLiveRequest(context=context))
    assert [("x-mine", "1"), ("x-request-id", "r1")] == list(wire.headers)


def test_limits_are_enforced() -> None:
    """The error for a document, key, depth or tensor over a limit names the limit."""
    small = MessageLimits(json_bytes=200, json_keys=3, json_depth=3, tensors=1)
    codec = HttpCodec(small, {"default_model": "m"})
    tensor = b'{"dtype":1}'
    bodies = {
        "json_bytes": b'{"str_data":"' + b"x" * 200 + b'"}',
        "json_keys": b'{"a":1,"b":1,"c":1,"d":1}',
        "json_depth": b'{"a":[[[1]]],"str_data":"x"}',
        "tensors": b'{"gtensors":{"tensors":[' + tensor + b"," + tensor + b"]}}",
    }
    found = {}
    for limit, body in bodies.items():
        with pytest.raises(TooLarge) as caught:
            codec.decode_call(post(body))
        found[limit] = caught.value.limit
    deep = {"tensors": "json_depth"}  # three levels do not hold a tensor
    assert {limit: deep.get(limit, limit) for limit in bodies} == found


@pytest.mark.parametrize(
    "body",
    [
        b'{"str_data":"x","str_data":"y"}',
        b'{"gmap":{"s_s":{"k":"a","k":"b"}}}',
        b'{"str_data":"a:b","x":{"y":1,"y":2}}',
    ],
)
def test_duplicate_keys_are_rejected(body: bytes) -> None:
    """Another parser might keep the other value."""
    with pytest.raises(MalformedMessage, match="twice"):
        decode_call(post(body))


@pytest.mark.parametrize("count", [10, 5000])
def test_duplicate_keys_in_long_lists_are_rejected(count: int) -> None:
    """An object behind many numbers is checked like any other."""
    numbers = b"1," * count
    body = b'{"str_data":"x","y":[' + numbers + b'{"a":1,"a":2}]}'
    with pytest.raises(MalformedMessage, match="'a' twice"):
        decode_call(post(body))


def test_colon_in_text_is_not_a_duplicate_key() -> None:
    """Text with colons is accepted."""
    assert InferRequest is type(decode_call(post(b'{"str_data":"a:b:c"}')))


def test_http_errors_of_brpc_have_its_error_code() -> None:
    """An unknown method is 404 as text with x-bd-error-code; a failure is HTTP 200 in JSON."""
    path = "/GrpsBrpcService/"
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_call(post(b"{}", path=path + "Nope"))
    wire = CODEC.encode_error(None, caught.value)
    assert 404 == wire.status
    assert "1002" == wire.headers.get("x-bd-error-code")
    assert "text/plain" == wire.headers.get("content-type")
    call = CODEC.decode_call(post(b'{"str_data":"x"}', path=path + "Predict"))
    failed = CODEC.encode_error(call, NotReady("soon"))
    assert (200, 503) == (failed.status, json_of(failed)["status"]["code"])


@pytest.mark.parametrize("kind", ["application/proto", "Application/x-protobuf; a=b"])
@pytest.mark.parametrize("body", [b"", b"\x32\x00", b"\x12\x01\n\x22\x01x", b"\x2a\x00"])
def test_invalid_protobuf_message_has_a_protobuf_response(kind: str, body: bytes) -> None:
    """A client of brpc's HTTP layer that sends protobuf cannot read a Status in JSON."""
    with pytest.raises(InvalidRequest) as caught:
        CODEC.decode_call(post(body, kind=kind, path="/GrpsBrpcService/Predict"))
    wire = CODEC.encode_error(None, caught.value)
    assert (200, "application/proto") == (wire.status, wire.headers.get("content-type"))
    status = read_message(wire.view, DEFAULT_LIMITS).status
    assert status is not None
    assert (400, Flag.FAILURE) == (status.code, status.flag)


def test_json_of_brpc_has_int64_as_numbers() -> None:
    """The JSON of grps has them as text."""
    call = CODEC.decode_call(
        post(b'{"str_data":"x"}', path="/grps.protos.v1.GrpsBrpcService/Predict")
    )
    wire = response_to(call, array_tensor("n", np.array([2**60])))
    assert [2**60] == json_of(wire)["gtensors"]["tensors"][0]["flat_int64"]


@pytest.mark.parametrize("carrier", ["http", "brpc"])
@pytest.mark.parametrize("count", [16, 17])
def test_bin_data_over_the_element_limit_is_rejected(carrier: str, count: int) -> None:
    """The listener's limit on an element applies before a model runs."""
    limits = MessageLimits(bytes_element_size=16)
    content = GrpsMessage(form=ContentFormat.BIN_DATA, model="m", data=bytes(count))
    if carrier == "http":
        body = (memoryview(bytes(count)),)
        headers = Headers((("Content-Type", "application/octet-stream"),))
        wire: Any = HttpRequest("POST", PREDICT, "model=m", headers, body)
        codec: Any = HttpCodec(limits, {})
    else:
        meta = RpcMeta(request=RpcRequestMeta(service_name=SERVICE, method_name="Predict"))
        frame = frame_bytes(meta.SerializeToString(), list(write_message(content)))
        wire, codec = Frame((memoryview(b"".join(frame)),)), BrpcCodec(limits, {})
    if count == 16:
        assert [bytes(16)] == as_items(codec.decode_call(wire).inputs[0])
        return
    with pytest.raises(TooLarge, match="bin_data has 17 bytes; at most 16 are allowed") as caught:
        codec.decode_call(wire)
    assert "bytes_element_size" == caught.value.limit
