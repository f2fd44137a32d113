"""Inference routes over HTTP: what the recorded exchanges of generate do not cover."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import CallSequence, Context, ModelRef, Origin
from gateway.ir.errors import (
    Decoupled,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    TooLarge,
    Unsupported,
    UpstreamError,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, items_tensor
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.cases.oip_http import X_JSON, M, X

LISTENER = HttpCodec(DEFAULT_LIMITS, {})
MLSERVER = HttpCodec(DEFAULT_LIMITS, {"dialect": "mlserver"})
CALL = StreamInferRequest(model=M, request=InferRequest(model=M, inputs=(X,), id="7"))


def post(action: str, document: Any, *headers: tuple[str, str]) -> HttpRequest:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return HttpRequest("POST", f"/v2/models/m/{action}", "", Headers(headers), (body,))


def decode_stream_call(wire: HttpRequest) -> StreamInferRequest:
    call = LISTENER.decode_call(wire)
    assert isinstance(call, StreamInferRequest)
    return call


def generate(document: Any) -> InferRequest:
    call = LISTENER.decode_call(post("generate", document))
    assert isinstance(call, InferRequest)
    return call


def data_of(response: HttpResponse) -> Any:
    text = bytes(response.view).decode()
    assert (text[:6], text[-2:]) == ("data: ", "\n\n")
    return json.loads(text[6:])


@pytest.mark.parametrize("action", ["infer_stream", "generate_stream"])
def test_streams_accept_complete_inference_requests(action: str) -> None:
    """MLServer's form is accepted on both paths; each event is a complete response."""
    call = decode_stream_call(post(action, {"id": "7", "inputs": [X_JSON]}))
    assert CALL.request.changed(context=call.request.context) == call.request
    item = LISTENER.encode_item(call, InferResponse(model=M, outputs=(X,), is_final=False))
    assert "text/event-stream; charset=utf-8" == item.headers.get("content-type")
    assert data_of(item) == {"id": "7", "model_name": "m", "outputs": [X_JSON]}


def test_generate_accepts_complete_inference_requests() -> None:
    """The response to a complete inference request is complete as well."""
    call = generate({"inputs": [X_JSON]})
    assert (X,) == call.inputs
    response = LISTENER.encode_reply(call, InferResponse(model=M, outputs=(X,)))
    assert [X_JSON] == json.loads(bytes(response.view))["outputs"]


def test_members_become_flat_members() -> None:
    """Custom parameters, and an input called inputs, do; reserved ones are split off."""
    parameters = {"stop": "x", "priority": 3, "timeout": 5}
    sequence = {"sequence_id": "s", "sequence_end": True}
    members = {"text": "t", "list": [1, 2.5, True], "inputs": ["a", "b"]}
    call = generate({"id": "9", **members, "parameters": parameters, **sequence})
    flat = {"text": "t", "list": (1, 2.5, True), "inputs": ("a", "b"), "stop": "x"}
    assert flat == call.flat_members
    assert ("9", 3, 5) == (call.id, call.priority, call.timeout_us)
    assert CallSequence("s", end=True) == call.sequence


@pytest.mark.parametrize(
    ("document", "kind", "text"),
    [
        (b"[]", MalformedMessage, "not a JSON object"),
        (b"{", MalformedMessage, "not JSON"),
        (b'{"a": 1, "a": 2}', MalformedMessage, "twice"),
        (b'{"a": {"b": 1, "b": 2}}', MalformedMessage, "twice"),
        ({"a": None}, MalformedMessage, "'a' of the request is or contains null"),
        ({"a": {"b": 1}}, MalformedMessage, "contains an object"),
        ({"a": [[1]]}, MalformedMessage, "contains a list of lists"),
        ({"a": [None]}, MalformedMessage, "contains null"),
        ({"a": 1, "parameters": {"a": 2}}, MalformedMessage, "'a' is in the request and in its"),
        ({"parameters": 3}, MalformedMessage, "'parameters' of the request is not an object"),
        ({"triton_x": 1}, InvalidRequest, "reserved"),
        ({"sequence_id": True}, InvalidRequest, "'sequence_id' is True"),
        ({"a\n": 1}, InvalidRequest, r"U\+000A"),
        ({f"a{number}": 1 for number in range(2113)}, TooLarge, "2113 members of the request"),
        ({"id": 7}, InvalidRequest, "id"),
    ],
)
def test_invalid_generate_requests_are_rejected(
    document: Any, kind: type[GatewayError], text: str
) -> None:
    """The error names the member and the reason."""
    with pytest.raises(kind, match=text):
        generate(document)


def test_values_are_counted_before_they_are_read() -> None:
    """The limit of values applies before each becomes an object of many times its size."""
    codec = HttpCodec(MessageLimits(bytes_elements=3), {})
    with pytest.raises(TooLarge, match="4 values") as caught:
        codec.decode_call(post("generate", {"a": [1, 2, 3, 4]}))
    assert "bytes_elements" == caught.value.limit


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
    ],
)
def test_binary_outputs_of_streams_are_rejected(fields: dict[str, Any]) -> None:
    """The error states that streams over HTTP are JSON."""
    with pytest.raises(InvalidRequest, match="streams over HTTP are JSON"):
        LISTENER.decode_call(post("infer_stream", {"inputs": [X_JSON], **fields}))


@pytest.mark.parametrize("action", ["infer_stream", "generate_stream"])
def test_stream_request_may_have_binary_inputs(action: str) -> None:
    """On both paths of streams, the body is decoded as that of `infer`; its events are JSON."""
    wire = HttpCodec(DEFAULT_LIMITS, {"dialect": "gateway"}).encode_call(CALL)
    assert "/v2/models/m/infer_stream" == wire.path
    length = ("Inference-Header-Content-Length", str(len(wire.body[0])))
    call = decode_stream_call(post(action, bytes(wire.view), length))
    assert (X,) == call.request.inputs


def test_first_error_has_a_status_and_later_ones_are_events() -> None:
    """A stream that has sent a reply needs no end; an empty one has no events."""
    call = decode_stream_call(post("infer_stream", {"inputs": [X_JSON]}))
    assert 404 == LISTENER.encode_error(call, NotFound("no")).status
    assert {"error": "no"} == data_of(LISTENER.encode_late_error(call, NotFound("no")))
    failed = InferResponse(model=M, outputs=(), is_final=False, error=UpstreamError("bad"))
    assert {"error": "bad"} == data_of(LISTENER.encode_item(call, failed))
    empty = LISTENER.encode_end(call, None)
    assert empty is not None
    assert (200, b"") == (empty.status, bytes(empty.view))
    assert LISTENER.encode_end(call, InferResponse(model=M, outputs=())) is None


def test_generate_stream_starts_with_the_error_of_a_model() -> None:
    """As in Triton, its status is 400 and its body a stream; an error before the model ran is JSON."""
    call = decode_stream_call(post("generate_stream", {"text": "a"}))
    error = UpstreamError("bad")
    failed = InferResponse(model=M, outputs=(), is_final=False, error=error)
    first = LISTENER.encode_item(call, failed)
    assert (400, b'data: {"error":"bad"}\n\n') == (first.status, bytes(first.view))
    assert "text/event-stream; charset=utf-8" == first.headers.get("content-type")
    assert first == LISTENER.encode_error(call, error)  # the only item
    assert not LISTENER.is_terminal(call, error)
    assert LISTENER.is_terminal(call, ModelNotFound("m"))
    other = decode_stream_call(post("infer_stream", {"inputs": [X_JSON]}))
    assert LISTENER.is_terminal(other, error)


def test_generate_has_one_status_for_the_errors_of_a_model() -> None:
    """As in Triton, the error of a model is 400; an error before the model ran keeps its status."""
    call = generate({"text": "a"})
    response = HttpResponse(500, Headers(()), (b'{"error":"bad"}',))
    error = UpstreamError("bad", origin=Origin("oip.http", response))
    assert 400 == LISTENER.encode_error(call, error).status
    assert 500 == LISTENER.encode_error(CALL.request, error).status
    assert 404 == LISTENER.encode_error(call, ModelNotFound("m")).status


def test_mlserver_stream_request_equals_the_infer_request() -> None:
    """MLServer's `infer_stream` gets the request that `infer` gets."""
    wire = MLSERVER.encode_call(CALL)
    assert ("POST", "/v2/models/m/infer_stream") == (wire.method, wire.path)
    assert [X_JSON] == json.loads(bytes(wire.view))["inputs"]


def test_stream_is_rejected_for_servers_without_streams() -> None:
    """Such servers get a unary request instead (`gateway.upstream`)."""
    for dialect in ("kserve", "ovms"):
        with pytest.raises(Unsupported, match="no streams of tensors over HTTP"):
            HttpCodec(DEFAULT_LIMITS, {"dialect": dialect}).encode_call(CALL)


def events_of(*texts: bytes) -> list[InferResponse]:
    splitter = MLSERVER.splitter()
    found: list[InferResponse] = []
    for text in texts:
        events = splitter.receive(HttpResponse(200, body=(text,)))
        found += [MLSERVER.decode_item(CALL, each) for each in events]
    splitter.end()
    return found


def test_events_are_read() -> None:
    """No event is final; an error between events is a reply with that error."""
    good = json.dumps({"model_name": "m", "id": "7", "outputs": [X_JSON]}).encode()
    first, failed, last = events_of(
        b"data: " + good + b"\n", b'\ndata: {"error": "bad"}\n\ndata: ' + good + b"\n\n"
    )
    assert first == last == InferResponse(model=M, outputs=(X,), id="7", is_final=False)
    assert (UpstreamError, "bad") == (type(failed.error), failed.error and failed.error.message)


def test_invalid_event_is_rejected() -> None:
    """An event that is no valid response is malformed; an error response is raised."""
    wrong = b'data: {"outputs": [{"name": "a\\u0001", "shape": [0], "datatype": "FP32"}]}\n\n'
    for text in (b"data: nothing\n\n", b"data: {}\n\n", wrong):
        with pytest.raises(MalformedMessage):
            events_of(text)
    with pytest.raises(NotFound, match="not found"):
        MLSERVER.decode_item(CALL, HttpResponse(404, body=(b'{"error": "Model m not found"}',)))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (501, "HTTP end point doesn't support models with decoupled transaction policy"),
        (500, "NotImplementedError: predict() method not implemented"),
    ],
    ids=["triton", "mlserver"],
)
def test_error_text_raises_decoupled(status: int, text: str) -> None:
    """The texts of Triton and MLServer raise Decoupled, so that a stream call can follow."""
    wire = HttpResponse(status, body=(json.dumps({"error": text}).encode(),))
    with pytest.raises(Decoupled):
        MLSERVER.decode_reply(CALL.request, wire)


def test_generate_rejects_an_output_of_unknown_form() -> None:
    """The error names the output and suggests `infer`."""
    call = generate({"text": "t"})
    unknown = Tensor("y", None, None, RawData(memoryview(b"")))
    with pytest.raises(Unsupported, match="output 'y' has no datatype or shape: use `infer`"):
        LISTENER.encode_reply(call, InferResponse(model=M, outputs=(unknown,)))


def test_parameters_of_a_reply_become_flat_members() -> None:
    """As in Triton, parameters are members; an output replaces a parameter of its name."""
    call = generate({"text": "t"})
    reply = InferResponse(model=M, outputs=(X,), parameters={"finish": "stop", X.name: 1})
    document = json.loads(bytes(LISTENER.encode_reply(call, reply).view))
    assert {"model_name": "m", "model_version": "", "finish": "stop"}.items() <= document.items()
    assert document[X.name] == X_JSON["data"]


TRITON = HttpCodec(DEFAULT_LIMITS, {"dialect": "triton"})


def test_triton_stream_request_uses_generate_stream() -> None:
    """Inputs of one row and parameters become members; a listener reads the same request."""
    inputs = (
        array_tensor("A", np.array([[1, 2, 3]], np.int64)),
        items_tensor("B", (1,), [b"text"]),
        array_tensor("C", np.array([0.1], np.float32)),
    )
    model = ModelRef("m", "2")
    request = InferRequest(model=model, id="7", inputs=inputs, parameters={"k": 1.5}, priority=3)
    wire = TRITON.encode_call(StreamInferRequest(model=model, request=request))
    assert ("POST", "/v2/models/m/versions/2/generate_stream") == (wire.method, wire.path)
    sent = {"k": 1.5, "priority": 3, "id": "7", "A": [1, 2, 3], "B": "text", "C": 0.1}
    assert sent == json.loads(bytes(wire.view))
    found = decode_stream_call(wire).request.flat_members
    assert {"k": 1.5, "A": (1, 2, 3), "B": "text", "C": 0.1} == found


def test_nonfinite_values_are_words_in_generate_requests() -> None:
    """Triton reads the words that it writes."""
    values = array_tensor("A", np.array([np.inf, -np.inf, 1], np.float32))
    request = InferRequest(model=M, inputs=(values,))
    wire = TRITON.encode_call(StreamInferRequest(model=M, request=request))
    assert b'{"A":[Infinity,-Infinity,1.0]}' == bytes(wire.view)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"inputs": (array_tensor("A", np.zeros((2, 3), np.int8)),)}, "input 'A' of shape"),
        ({"inputs": (array_tensor("A", np.zeros((0,), np.int8)),)}, "input 'A' of shape"),
        ({"inputs": (array_tensor("A", np.zeros((1,), np.float16)),)}, "FP16"),
        ({"inputs": (array_tensor("id", np.zeros((1,), np.int8)),)}, "the name 'id'"),
        ({"inputs": (Tensor("A", X.datatype, (1,), SharedMemoryData("r", 0, 4)),)}, "'A'"),
        ({"outputs": (RequestedOutput("Y", 2),)}, "output 'Y' as classes"),
    ],
)
def test_calls_unfit_for_generate_are_rejected_by_name(changes: Any, what: str) -> None:
    """The error names the unsupported part and suggests gRPC."""
    request = InferRequest(model=M, **changes)
    with pytest.raises(Unsupported, match=rf"{what}.*oip\+grpc://"):
        TRITON.encode_call(StreamInferRequest(model=M, request=request))


def test_triton_events_have_flat_members() -> None:
    """The model's metadata determine which members are outputs; Triton's own members are removed."""
    event = {"model_name": "x", "model_version": "3", "id": "9", "Y": [1, 2], "Z": "a", "k": True}
    found = TRITON.decode_item(CALL, HttpResponse(200, body=(json.dumps(event).encode(),)))
    assert (ModelRef(M.name, "3"), "7", False) == (found.model, found.id, found.is_final)
    assert ({"Y": (1, 2), "Z": "a", "k": True}, ()) == (found.flat_members, found.outputs)
    failed = TRITON.decode_item(CALL, HttpResponse(200, body=(b'{"error": "it broke"}',)))
    assert "it broke" == str(failed.error)
    with pytest.raises(MalformedMessage, match="'Y' of the response is neither a value"):
        TRITON.decode_item(CALL, HttpResponse(200, body=(b'{"Y": {"a": 1}}',)))


def test_an_event_that_is_not_utf8_was_an_internal_error() -> None:
    """Bytes of an output are kept; an unusable version or name is dropped."""
    body = b'{"model_version":"\xff","Y":"a\xe2\x82","k\xff":1,"k\\n":2,"model_name":"\\ud800"}'
    found = TRITON.decode_item(CALL, HttpResponse(200, body=(body,)))
    assert (M, {"Y": "a\udce2\udc82"}) == (found.model, found.flat_members)
    assert b'"model_name":"m"' in TRITON.encode_item(CALL, found).view.tobytes()


@pytest.mark.parametrize(("own", "expected_id"), [("", "<id_unknown>"), ("7", "7")])
def test_error_of_a_server_has_the_clients_id(own: str, expected_id: str) -> None:
    """Triton's text starts with the id of the request; the gateway's own id is replaced."""
    call = InferRequest(model=M, inputs=(X,), id=own, context=Context(request_id="gateway-1"))
    text = f'{{"error":"[request id: {own or "gateway-1"}] bad"}}'.encode()
    with pytest.raises(InvalidRequest) as raised:
        LISTENER.decode_reply(call, HttpResponse(400, Headers(()), (text,)))
    assert f"[request id: {expected_id}] bad" == raised.value.message
