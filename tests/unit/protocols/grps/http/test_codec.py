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
from gateway.ir.metadata import ModelMetadata, ModelStatus, ServerStatus, TensorMetadata, Trend
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
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


def failure(code: int, msg: str) -> dict[str, Any]:
    return {"code": code, "msg": msg, "status": "FAILURE"}


def infer(*inputs: Tensor, **fields: Any) -> InferRequest:
    return InferRequest(model=ModelRef("m"), inputs=inputs, **fields)


def received(body: bytes, status: int = 200) -> HttpResponse:
    return HttpResponse(status, body=(memoryview(body),))


ITEM = items_tensor("x", (1,), [b"a"])
FLAGS = array_tensor("x", np.array([True, False]))


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


@pytest.mark.parametrize(
    ("name", "label"), [("qps", "trend"), ("%2Aqps", "trend"), ("*latency_cdf%28ms%29", "cdf")]
)
def test_series_is_encoded_as_points_of_a_trend(name: str, label: str) -> None:
    """The name may have the star of real servers; an unknown one has their text."""
    call = CODEC.decode_call(HttpRequest("GET", "/grps/v1/monitor/series", f"name={name}"))
    assert ServerTrendsRequest is type(call)
    points = ((0, 0.0), (1, 2.5))
    trends = {"qps": Trend(points), "latency_cdf(ms)": Trend(points, is_distribution=True)}
    wire = CODEC.encode_reply(call, trends)
    assert {"label": label, "data": [[0, 0.0], [1, 2.5]]} == json_of(wire)
    with pytest.raises(NotFound, match="key not found"):
        CODEC.encode_reply(call, {})


@pytest.mark.parametrize(
    ("healthy", "status", "body"),
    [(True, 200, SUCCESS), (False, 503, failure(503, "Service Unavailable"))],
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
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"]
)
def test_content_type_ignores_parameters_and_case(kind: str) -> None:
    """Real servers are stricter."""
    assert InferRequest is type(decode_call(post(b'{"str_data":"x"}', kind=kind)))


STREAM = "streaming=TRUE"
TEXT = post(b'{"str_data":"x"}')
METADATA_PATH = "/grps/v1/metadata/model"
TWICE = b'{"str_data":"x","y":[%b{"a":1,"a":2}]}'


@pytest.mark.parametrize(
    ("wire", "error", "text", "status"),
    [
        (post(b"{}", kind=None), InvalidRequest, "No content type", 400),
        (post(b"{}", kind="text/plain"), InvalidRequest, "Unsupported content type", 400),
        (post(b""), InvalidRequest, "body is empty", 400),
        (post(b"", kind="application/octet-stream"), InvalidRequest, "body is empty", 400),
        (TEXT, ModelNotFound, "no default model", 404),
        (
            post(b'{"str_data":"x"}', f"{STREAM}&return-ndarray=true"),
            InvalidRequest,
            "not supp",
            400,
        ),
        (post(b"{}", path=METADATA_PATH), InvalidRequest, "no legal member", 400),
        (post(b'{"str_data":""}', path=METADATA_PATH), InvalidRequest, "name", 400),
        (post(b'{"gmap":{}}', path=METADATA_PATH), InvalidRequest, "name", 400),
        # Another parser might keep the other value.
        (post(b'{"str_data":"x","str_data":"y"}'), MalformedMessage, "twice", 400),
        (post(b'{"gmap":{"s_s":{"k":"a","k":"b"}}}'), MalformedMessage, "twice", 400),
        (post(b'{"str_data":"a:b","x":{"y":1,"y":2}}'), MalformedMessage, "twice", 400),
        (post(TWICE % (b"1," * 10)), MalformedMessage, "'a' twice", 400),
        (post(TWICE % (b"1," * 5000)), MalformedMessage, "'a' twice", 400),
    ],
)
def test_invalid_requests_are_rejected(
    wire: HttpRequest, error: type[GatewayError], text: str, status: int
) -> None:
    """The error has a text, and its Status is that of HTTP."""
    codec = HttpCodec(DEFAULT_LIMITS, {} if wire is TEXT else {"default_model": "m"})
    with pytest.raises(error, match=text) as caught:
        codec.decode_call(wire)
    assert status == codec.encode_error(None, caught.value).status


def test_colon_in_text_is_not_a_duplicate_key() -> None:
    """Text with colons is accepted."""
    assert InferRequest is type(decode_call(post(b'{"str_data":"a:b:c"}')))


@pytest.mark.parametrize(
    ("limit", "most", "body"),
    [
        ("json_bytes", 200, b'{"str_data":"' + b"x" * 200 + b'"}'),
        ("json_keys", 3, b'{"a":1,"b":1,"c":1,"d":1}'),
        ("json_depth", 3, b'{"a":[[[1]]],"str_data":"x"}'),
        ("tensors", 1, b'{"gtensors":{"tensors":[{"dtype":1},{"dtype":1}]}}'),
    ],
)
def test_limits_are_enforced(limit: str, most: int, body: bytes) -> None:
    """The error for a document, key, depth or tensor over a limit names the limit."""
    codec = HttpCodec(MessageLimits(**{limit: most}), {"default_model": "m"})
    with pytest.raises(TooLarge) as caught:
        codec.decode_call(post(body))
    assert limit == caught.value.limit


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


def test_text_is_one_input_and_is_returned_as_text() -> None:
    """str_data is an unnamed BYTES element without a shape, also in the response."""
    call = decode_call(post('{"str_data":"hällo"}'.encode()))
    [tensor] = call.inputs
    assert ("", Datatype.BYTES, None) == (tensor.name, tensor.datatype, tensor.shape)
    assert ["hällo".encode()] == list(as_items(tensor))
    assert {"grps_form": "str_data"} == dict(call.parameters)
    wire = response_to(call, items_tensor("out", (1, 1), [b"bye"]))
    assert {"status": SUCCESS, "str_data": "bye"} == json_of(wire)
    assert b"\xff\xfe" == bytes(response_to(call, items_tensor("out", (1,), [b"\xff\xfe"])).view)


def test_bytes_are_returned_as_bytes() -> None:
    """An octet-stream is one element, a view; the response is raw bytes without a Status."""
    body = bytes(range(256)) * 4
    sent = post(body, "model=k", "application/octet-stream")
    call = decode_call(sent)
    [item] = as_items(call.inputs[0])
    assert (body, ModelRef("k")) == (bytes(item), call.model)
    assert np.shares_memory(np.frombuffer(item, np.uint8), np.frombuffer(sent.view, np.uint8))
    wire = response_to(call, items_tensor("out", (1,), [body]))
    assert (200, "application/octet-stream") == (wire.status, wire.headers.get("content-type"))
    assert body == bytes(wire.view)
    # An empty response has a Status, as on the Python server.
    wire = response_to(call, items_tensor("out", (1,), [b""]))
    assert {"status": SUCCESS, "bin_data": ""} == json_of(wire)


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


@pytest.mark.parametrize(
    ("datatype", "array", "dtype", "elements"),
    [
        ("BOOL", np.array([True, False]), "uint8", [1, 0]),
        ("UINT16", np.array([65535], np.uint16), "int32", [65535]),
        ("UINT32", np.array([2**32 - 1], np.uint32), "int64", [str(2**32 - 1)]),
        ("UINT64", np.array([2**63 - 1], np.uint64), "int64", [str(2**63 - 1)]),
        ("BF16", np.array([0x3F80], np.uint16), "float32", [1.0]),
        ("FP16", np.array([0.1], np.float16), "float16", [0.099975586]),
    ],
)
def test_outputs_are_widened_without_loss(
    datatype: str, array: Any, dtype: str, elements: list[Any]
) -> None:
    """A datatype that grps lacks is encoded as the next wider one."""
    wire = response_to(decode_call(TEXT), array_tensor("y", array, Datatype(datatype)))
    [tensor] = json_of(wire)["gtensors"]["tensors"]
    assert (f"DT_{dtype.upper()}", elements) == (tensor["dtype"], tensor[f"flat_{dtype}"])


NDARRAY = post(b'{"ndarray":0}', "return-ndarray=True")


def without_elements(*shape: int) -> Tensor:
    return raw_tensor("y", Datatype.FP32, shape, memoryview(b""))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (FP32, [[1.5, 2.0]]),
        (
            array_tensor("y", np.array([np.nan, np.inf, -np.inf], "f4")),
            ["NaN", "Infinity", "-Infinity"],
        ),
        (array_tensor("y", np.array([0.1], np.float32)), [0.1]),
        (array_tensor("y", np.array(7, np.float32)), 7.0),
        (without_elements(2, 0, 1 << 40), [[], []]),
    ],
)
def test_an_output_is_an_ndarray_on_request(output: Tensor, expected: Any) -> None:
    """It is the one FP32 output, of any rank; words stand for numbers that JSON lacks."""
    found = json_of(response_to(decode_call(NDARRAY), output))
    assert {"status": SUCCESS, "model": "", "ndarray": expected} == found


def test_an_ndarray_is_one_unnamed_tensor() -> None:
    """A bare number is a tensor without dimensions."""
    [tensor] = decode_call(post(b'{"ndarray":[[1,2.5]]}')).inputs
    assert ("", [[1.0, 2.5]]) == (tensor.name, as_numpy(tensor).tolist())
    assert () == decode_call(NDARRAY).inputs[0].shape


LISTS = r"no elements and 429496729\d lists, at most 1000000"


@pytest.mark.parametrize(
    ("wire", "outputs", "text"),
    [
        (TEXT, (array_tensor("y", np.array([1, 2**63], np.uint64)),), "index 1"),
        (TEXT, (items_tensor("y", (2,), [b"ok", b"\xff"]),), "not UTF-8 at index 1"),
        (NDARRAY, (FP32, FP32.renamed("z")), "'y' of"),
        (NDARRAY, (items_tensor("y", (1,), [b""]),), "'y' of"),
        # A short request may name the shape, and its model may return it.
        (NDARRAY, (without_elements((1 << 32) - 1, 0),), LISTS),
        (NDARRAY, (without_elements(65536, 65536, 0, 2),), LISTS),
    ],
)
def test_unrepresentable_output_is_a_failure(
    wire: HttpRequest, outputs: tuple[Tensor, ...], text: str
) -> None:
    """The error is 500 and names the output or the element's index; no value is changed."""
    call = decode_call(wire)
    with pytest.raises(Unconvertible, match=text) as caught:
        response_to(call, *outputs)
    assert 500 == CODEC.encode_error(call, caught.value).status


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


def test_stream_is_parts_of_one_response() -> None:
    """Each reply is one part with the configured type; an error is one more message."""
    call = decode_call(post(b'{"str_data":"x"}', STREAM))
    assert StreamInferRequest is type(call)
    reply = InferResponse(model=ModelRef("m"), outputs=(ITEM,), is_final=False)
    part = CODEC.encode_item(call, reply)
    assert (200, "application/octet-stream") == (part.status, part.headers.get("content-type"))
    assert "a" == json_of(part)["str_data"]
    failed = CODEC.encode_error(call, UpstreamError("boom"))
    assert failure(500, "boom") == json_of(failed)["status"]
    # A part of bytes has no Status around it.
    call = decode_call(post(b"x", STREAM, "application/octet-stream"))
    assert b"a" == bytes(CODEC.encode_item(call, reply).view)


def test_stream_without_replies_is_an_empty_body() -> None:
    """After a reply, the end adds no part."""
    call = decode_call(post(b'{"str_data":"x"}', STREAM))
    end = CODEC.encode_end(call, None)
    assert end is not None
    assert (200, b"") == (end.status, bytes(end.view))
    assert "application/octet-stream" == end.headers.get("content-type")
    assert CODEC.encode_end(call, InferResponse(model=ModelRef("m"), outputs=())) is None


@pytest.mark.parametrize("mode", ["header_param", "body_param"])
def test_request_for_a_stream_is_configurable(mode: str) -> None:
    """A header, or a boolean in the body, requests a stream, also of an upstream."""
    way = {"mode": mode, "key": "X-Go", "content_type": "text/event-stream"}
    codec = HttpCodec(DEFAULT_LIMITS, {"default_model": "m", "streaming": way})
    sent = codec.encode_call(StreamInferRequest(model=ModelRef("m"), request=infer(FP32)))
    assert (mode == "body_param", "") == (b'"X-Go":true' in bytes(sent.view), sent.query)
    call = codec.decode_call(sent)
    assert StreamInferRequest is type(call)
    part = codec.encode_item(call, InferResponse(model=ModelRef("m"), outputs=(FP32,)))
    assert "text/event-stream" == part.headers.get("content-type")


def test_text_true_in_a_body_requests_no_stream() -> None:
    """In the body only the boolean counts."""
    codec = HttpCodec(DEFAULT_LIMITS, {"default_model": "m", "streaming": {"mode": "body_param"}})
    assert InferRequest is type(decode_call(post(b'{"str_data":"x","streaming":"true"}'), codec))


def test_errors_have_a_status() -> None:
    """Overload has a `retry-after` header; an option has only the body tell the error."""
    wire = CODEC.encode_error(None, Overloaded("too many"))
    assert (503, "1") == (wire.status, wire.headers.get("retry-after"))
    codec = HttpCodec(DEFAULT_LIMITS, {"http_always_200": True})
    wire = codec.encode_error(None, Unavailable("gone"))
    assert (200, 503) == (wire.status, json_of(wire)["status"]["code"])


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
    """Each version is an entry."""
    call = CODEC.decode_call(HttpRequest("GET", "/grps/v1/metadata/server"))
    wire = CODEC.encode_reply(call, ServerStatus(is_ready=True, models=(ModelStatus(METADATA),)))
    assert "models:\n- name: simple\n" == json_of(wire)["str_data"][:23]


def test_page_shows_the_newest_value_of_each_period() -> None:
    """Periods are seconds, minutes, hours and days; distributions are omitted, names escaped."""
    points = tuple((place, float(place)) for place in range(174))
    trends = {"qps": Trend(points), "latency_cdf(ms)": Trend(points, is_distribution=True)}
    call = CODEC.decode_call(HttpRequest("GET", "/"))
    assert isinstance(call, ServerStatusRequest)
    assert call.trends
    models = (ModelStatus(ModelMetadata(name="<b>")),)
    wire = CODEC.encode_reply(call, ServerStatus(is_ready=True, models=models, trends=trends))
    assert "text/html; charset=utf-8" == wire.headers.get("content-type")
    page = bytes(wire.view).decode()
    texts = ("qps", "173.000", "113.000", "53.000", "29.000")
    assert f"<tr>{''.join(f'<td>{text}</td>' for text in texts)}</tr>" in page
    assert "latency_cdf" not in page
    assert "&lt;b&gt;" in page


# The other direction: requests to a grps server.


def test_requests_are_encoded_in_the_callers_form() -> None:
    """Text is text, bytes an octet-stream with the model in the query, tensors JSON."""
    text = CODEC.encode_call(rewritten(decode_call(post(b'{"str_data":"x"}', "model=k-1"))))
    assert {"str_data": "x", "model": "k-1"} == json_of_request(text)
    assert "application/json" == text.headers.get("content-type")
    octets = post(b"\x00", "model=k/1", "application/octet-stream")
    raw = CODEC.encode_call(rewritten(decode_call(octets)))
    assert "model=k%2F1" == raw.query
    assert "application/octet-stream" == raw.headers.get("content-type")


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


MODEL_CALLS: tuple[type[Call[Any]], ...] = (InferRequest, ModelMetadataRequest, ModelReadyRequest)


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


def test_inputs_are_sent_as_configured() -> None:
    """`input_form` sets the form of inputs, for one model or for all; `widen` their datatypes."""
    codec = HttpCodec(DEFAULT_LIMITS, {"input_form": {"t": "str_data", "*": "ndarray"}})
    text = codec.encode_call(InferRequest(model=ModelRef("t"), inputs=(ITEM,)))
    assert "a" == json_of_request(text)["str_data"]
    assert [[1.5, 2.0]] == json_of_request(codec.encode_call(infer(FP32)))["ndarray"]
    codec = HttpCodec(DEFAULT_LIMITS, {"widen": True})
    [tensor] = json_of_request(codec.encode_call(infer(FLAGS)))["gtensors"]["tensors"]
    assert ("DT_UINT8", [1, 0]) == (tensor["dtype"], tensor["flat_uint8"])


REGION = SharedMemoryData("r", 0, 4)
SHARED_INPUT = infer(Tensor("x", Datatype.BYTES, (1,), REGION))
SHARED_OUTPUT = infer(ITEM, outputs=(RequestedOutput("y", shared=REGION),))
CLASSES = infer(ITEM, outputs=(RequestedOutput("y", 3),))
RAW = infer(items_tensor("x", (1,), [b"\xff"]), parameters={"grps_form": "bin_data"})
BYTES: dict[str, Any] = {"input_form": "bin_data"}


@pytest.mark.parametrize(
    ("options", "call", "text"),
    [
        *(
            row
            for form in ({}, BYTES)
            for row in (
                (form, SHARED_INPUT, "grps has no shared memory"),
                (form, SHARED_OUTPUT, "grps has no shared memory"),
                (form, CLASSES, "'y' requests 3 classes: grps has no class"),
            )
        ),
        ({"input_form": "str_data"}, infer(FP32), "one BYTES element"),
        ({}, infer(FLAGS), r"'x' is BOOL.*'widen'"),
        # A grps server reads inputs by name or by position.
        ({}, infer(FP32, FP32.renamed("")), "input 1 has no name, others have one"),
        # Bytes have no JSON around them.
        (
            {"streaming": {"mode": "body_param"}},
            StreamInferRequest(model=ModelRef("m"), request=RAW),
            "bin_data cannot request a stream in the body",
        ),
        ({}, SharedStatusRequest(), "shared status"),
    ],
)
def test_what_grps_cannot_represent_is_rejected_by_name(
    options: dict[str, Any], call: Call[Any], text: str
) -> None:
    """The request is valid, but the target cannot represent it."""
    with pytest.raises(Unsupported, match=text):
        HttpCodec(DEFAULT_LIMITS, options).encode_call(call)


def test_readiness_may_be_sent_as_liveness() -> None:
    """A grps server starts offline: an option requests its liveness instead."""
    codec = HttpCodec(DEFAULT_LIMITS, {"readiness": "live"})
    paths = [made.encode_call(ServerReadyRequest()).path for made in (CODEC, codec)]
    assert ["/grps/v1/health/ready", "/grps/v1/health/live"] == paths


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
    call = infer()
    with pytest.raises(error) as caught:
        CODEC.decode_reply(call, received(orjson.dumps({"status": failure(code, msg)}), http))
    assert (error, msg) == (type(caught.value), caught.value.message)
    again = json_of(CODEC.encode_error(call, caught.value))["status"]
    assert failure(code if code < 600 else 500, msg) == again


@pytest.mark.parametrize("status", [404, 500, 503])
def test_html_of_a_server_is_an_error(status: int) -> None:
    """The error has the HTTP status and the first words of the body."""
    with pytest.raises(GatewayError, match=f"HTTP status {status}: <html>oops"):
        CODEC.decode_reply(infer(), received(b"<html>oops</html>", status))


def test_status_403_is_not_ready() -> None:
    """The Python server's gRPC has 403 where others have 503."""
    body = orjson.dumps({"status": failure(403, "Service Unavailable")})
    assert CODEC.decode_reply(ServerReadyRequest(), received(body)) is False


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
        CODEC.decode_reply(infer(), received(body))
    assert caught.value.origin is None


def test_responses_of_every_server_are_read() -> None:
    """Servers write camelCase, int64 as numbers, bare NaN and integral floats."""
    body = (
        b'{"status":{"code":200,"status":1},"gtensors":{"tensors":['
        b'{"name":"a","dtype":5,"shape":[2],"flatInt64":[1,"2"]},'
        b'{"name":"b","dtype":"DT_FLOAT32","shape":[3],"flat_float32":[NaN,1,-Infinity]}]}}'
    )
    reply = CODEC.decode_reply(infer(), received(body))
    found = [as_numpy(tensor).tolist() for tensor in reply.outputs]
    assert ([1, 2], "[nan, 1.0, -inf]") == (found[0], str(found[1]))


def test_lone_surrogates_of_python_servers_are_read() -> None:
    """Python writes them as escapes: they become "?", as UTF-8 has none."""
    reply = CODEC.decode_reply(infer(), received(b'{"str_data":"\\ud83d\\ude00 \\ud800"}'))
    assert ["\U0001f600 ?".encode()] == list(as_items(reply.outputs[0]))
    entries = b'{"gmap":{"s_s":{"a":"\\udc80","b":"c"},"s_i64":{"n":1}}}'
    reply = CODEC.decode_reply(infer(), received(entries))
    expected = {"gmap.s_s.a": "?", "gmap.s_s.b": "c", "gmap.s_i64.n": 1, "grps_form": "gmap"}
    assert expected == dict(reply.parameters)


def test_headers_and_request_id_are_forwarded() -> None:
    """The request id is added; headers of one connection are dropped."""
    context = Context(
        metadata=(("x-mine", "1"), ("host", "h"), ("grpc-timeout", "1S"), ("bad name", "x")),
        request_id="r1",
    )
    wire = CODEC.encode_call(ServerLiveRequest(context=context))
    assert [("x-mine", "1"), ("x-request-id", "r1")] == list(wire.headers)


def test_http_errors_of_brpc_have_its_error_code() -> None:
    """An unknown method is 404 as text with x-bd-error-code; a failure is HTTP 200 in JSON."""
    path = "/GrpsBrpcService/"
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_call(post(b"{}", path=path + "Nope"))
    wire = CODEC.encode_error(None, caught.value)
    assert (404, "1002") == (wire.status, wire.headers.get("x-bd-error-code"))
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
