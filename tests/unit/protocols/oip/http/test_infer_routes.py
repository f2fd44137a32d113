"""Inference in its places over HTTP: what the recorded exchanges of generate do not show."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import Context, ModelRef, Origin, Sequence
from gateway.ir.data import RawData, SharedMemoryData
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
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor, items_tensor
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.cases.oip_http import X_JSON, X_RAW, M, X

LISTENER = HttpCodec(DEFAULT_LIMITS, {})
MLSERVER = HttpCodec(DEFAULT_LIMITS, {"dialect": "mlserver"})
CALL = StreamInferRequest(model=M, request=InferRequest(model=M, inputs=(X,), id="7"))


def post(action: str, document: Any, *headers: tuple[str, str]) -> HttpRequest:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return HttpRequest("POST", f"/v2/models/m/{action}", "", Headers(headers), (body,))


def opened(wire: HttpRequest) -> StreamInferRequest:
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
def test_streams_take_whole_inference_requests(action: str) -> None:
    """MLServer's form, under both of its paths; answers are whole too, each an event."""
    call = opened(post(action, {"id": "7", "inputs": [X_JSON]}))
    assert CALL == StreamInferRequest(
        model=call.model,
        request=call.request.with_context(protocol="", metadata=(), needs=frozenset()),
    )
    item = LISTENER.encode_item(call, InferResponse(model=M, outputs=(X,), is_final=False))
    assert "text/event-stream; charset=utf-8" == item.headers.get("content-type")
    assert data_of(item) == {"id": "7", "model_name": "m", "outputs": [X_JSON]}


def test_generate_takes_whole_inference_requests() -> None:
    """And answers with a whole answer."""
    call = generate({"inputs": [X_JSON]})
    assert (X,) == call.inputs
    answer = LISTENER.encode_reply(call, InferResponse(model=M, outputs=(X,)))
    assert [X_JSON] == json.loads(bytes(answer.view))["outputs"]


def test_an_input_may_be_called_inputs() -> None:
    """A list of values is no list of tensors."""
    assert {"inputs": ("a", "b")} == generate({"inputs": ["a", "b"]}).flat_members


def test_members_of_parameters_are_members() -> None:
    """Nested or not, they are the model's to tell; reserved ones are taken out."""
    call = generate(
        {
            "id": "9",
            "text": "t",
            "list": [1, 2.5, True],
            "parameters": {"stop": "x", "priority": 3, "timeout": 5},
            "sequence_id": "s",
            "sequence_end": True,
        }
    )
    assert {"text": "t", "list": (1, 2.5, True), "stop": "x"} == call.flat_members
    assert ("9", 3, 5) == (call.id, call.priority, call.timeout_us)
    assert Sequence("s", end=True) == call.sequence


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
        ({f"a{number}": 1 for number in range(321)}, TooLarge, "321 members of the request"),
        ({"id": 7}, InvalidRequest, "id"),
    ],
)
def test_what_is_no_request_is_refused(document: Any, kind: type[GatewayError], text: str) -> None:
    """The text names the member and what it needs."""
    with pytest.raises(kind, match=text):
        generate(document)


def test_values_are_counted_before_they_are_read() -> None:
    """Each would become an object of many times its size."""
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
def test_events_have_no_binary_outputs(fields: dict[str, Any]) -> None:
    """Who wants them in a stream is told at once what to do."""
    with pytest.raises(InvalidRequest, match="streams over HTTP are JSON"):
        LISTENER.decode_call(post("infer_stream", {"inputs": [X_JSON], **fields}))


def test_binary_inputs_may_ask_for_a_stream() -> None:
    """The body is read as that of `infer`, under any of the paths."""
    head = json.dumps(
        {
            "inputs": [
                {
                    **{key: X_JSON[key] for key in ("name", "shape", "datatype")},
                    "parameters": {"binary_data_size": X.nbytes},
                }
            ]
        }
    ).encode()
    length = ("Inference-Header-Content-Length", str(len(head)))
    call = opened(post("generate_stream", head + X_RAW, length))
    assert (X,) == call.request.inputs


def test_the_first_error_has_a_status_and_later_ones_are_events() -> None:
    """Before anything was said an error is an ordinary one."""
    call = opened(post("infer_stream", {"inputs": [X_JSON]}))
    assert 404 == LISTENER.encode_error(call, NotFound("no")).status
    assert {"error": "no"} == data_of(LISTENER.encode_late_error(call, NotFound("no")))
    failed = InferResponse(model=M, outputs=(), is_final=False, error=UpstreamError("bad"))
    assert {"error": "bad"} == data_of(LISTENER.encode_item(call, failed))


def test_generate_stream_begins_with_the_error_of_a_model() -> None:
    """Triton's status is 400 then, its body a stream; an error before the model ran is JSON."""
    call = opened(post("generate_stream", {"text": "a"}))
    error = UpstreamError("bad")
    failed = InferResponse(model=M, outputs=(), is_final=False, error=error)
    first = LISTENER.encode_item(call, failed)
    assert (400, b'data: {"error":"bad"}\n\n') == (first.status, bytes(first.view))
    assert "text/event-stream; charset=utf-8" == first.headers.get("content-type")
    assert first == LISTENER.encode_error(call, error)  # the only item
    assert [False, True] == [
        LISTENER.is_terminal(call, each) for each in (error, ModelNotFound("m"))
    ]
    assert LISTENER.is_terminal(opened(post("infer_stream", {"inputs": [X_JSON]})), error)


def test_a_stream_of_no_answers_is_a_response_without_events() -> None:
    """And one that has said something needs no last words."""
    call = opened(post("infer_stream", {"inputs": [X_JSON]}))
    empty = LISTENER.encode_end(call, None)
    assert empty is not None
    assert (200, b"") == (empty.status, bytes(empty.view))
    assert LISTENER.encode_end(call, InferResponse(model=M, outputs=())) is None


def test_mlserver_is_asked_for_events() -> None:
    """Its `infer_stream` takes the request that `infer` takes."""
    wire = MLSERVER.encode_call(CALL)
    assert ("POST", "/v2/models/m/infer_stream") == (wire.method, wire.path)
    assert [X_JSON] == json.loads(bytes(wire.view))["inputs"]


def test_this_gateway_is_asked_for_events_without_binary_outputs() -> None:
    """Its inputs may be binary, its events are JSON."""
    codec = HttpCodec(DEFAULT_LIMITS, {"dialect": "gateway"})
    call = opened(codec.encode_call(CALL))
    assert (X,) == call.request.inputs


def test_other_servers_have_no_streams_of_tensors() -> None:
    """They are refused a stream, and asked for one answer (`gateway.upstream`)."""
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
    """None of them is known to be the last; an error in the middle is an answer."""
    good = json.dumps({"model_name": "m", "id": "7", "outputs": [X_JSON]}).encode()
    first, failed, last = events_of(
        b"data: " + good + b"\n", b'\ndata: {"error": "bad"}\n\ndata: ' + good + b"\n\n"
    )
    assert first == last == InferResponse(model=M, outputs=(X,), id="7", is_final=False)
    assert (UpstreamError, "bad") == (type(failed.error), failed.error and failed.error.message)


def test_an_error_instead_of_a_stream_is_raised() -> None:
    """With the meaning of its status."""
    with pytest.raises(NotFound, match="not found"):
        MLSERVER.decode_item(CALL, HttpResponse(404, body=(b'{"error": "Model m not found"}',)))


def test_an_event_that_is_no_answer_is_refused() -> None:
    """It is the upstream's fault, whatever is wrong with it."""
    wrong = b'data: {"outputs": [{"name": "a\\u0001", "shape": [0], "datatype": "FP32"}]}\n\n'
    for text in (b"data: nothing\n\n", b"data: {}\n\n", wrong):
        with pytest.raises(MalformedMessage):
            events_of(text)


def test_a_reply_to_a_stranger_is_binary() -> None:
    """A call that this codec did not read gets outputs in the form that carries all of them."""
    answer = LISTENER.encode_reply(
        InferRequest(model=M), InferResponse(model=ModelRef("m"), outputs=(X,))
    )
    assert answer.headers.get("inference-header-content-length") is not None


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (501, "HTTP end point doesn't support models with decoupled transaction policy"),
        (500, "NotImplementedError: predict() method not implemented"),
    ],
    ids=["triton", "mlserver"],
)
def test_servers_say_that_a_model_is_decoupled(status: int, text: str) -> None:
    """Their words are an error of their own kind: a stream can be asked instead."""
    wire = HttpResponse(status, body=(json.dumps({"error": text}).encode(),))
    with pytest.raises(Decoupled):
        MLSERVER.decode_reply(CALL.request, wire)


def test_an_output_of_unknown_form_cannot_be_generated() -> None:
    """The error names the output, and another way to ask."""
    call = generate({"text": "t"})
    unknown = Tensor("y", None, None, RawData(memoryview(b"")))
    with pytest.raises(Unsupported, match="output 'y' has no datatype or shape: use `infer`"):
        LISTENER.encode_reply(call, InferResponse(model=M, outputs=(unknown,)))


def test_parameters_of_an_answer_are_members_of_it() -> None:
    """As Triton has it; outputs go before them."""
    call = generate({"text": "t"})
    reply = InferResponse(model=M, outputs=(X,), parameters={"finish": "stop", X.name: 1})
    document = json.loads(bytes(LISTENER.encode_reply(call, reply).view))
    assert {"model_name": "m", "model_version": "", "finish": "stop"}.items() <= document.items()
    assert document[X.name] == X_JSON["data"]


TRITON = HttpCodec(DEFAULT_LIMITS, {"dialect": "triton"})


def test_triton_is_asked_for_a_stream_by_generate() -> None:
    """Inputs of one row are members, and so are parameters; a client reads the same request."""
    request = InferRequest(
        model=ModelRef("m", "2"),
        id="7",
        inputs=(
            array_tensor("A", np.array([[1, 2, 3]], np.int64)),
            items_tensor("B", (1,), [b"text"]),
            array_tensor("C", np.array([0.1], np.float32)),
        ),
        parameters={"k": 1.5},
        priority=3,
    )
    wire = TRITON.encode_call(StreamInferRequest(model=request.model, request=request))
    assert ("POST", "/v2/models/m/versions/2/generate_stream") == (wire.method, wire.path)
    sent = {"k": 1.5, "priority": 3, "id": "7", "A": [1, 2, 3], "B": "text", "C": 0.1}
    assert sent == json.loads(bytes(wire.view))
    assert {"k": 1.5, "A": (1, 2, 3), "B": "text", "C": 0.1} == opened(wire).request.flat_members


def test_values_that_are_not_finite_are_words_for_generate() -> None:
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
def test_what_generate_cannot_carry_is_refused_by_name(changes: Any, what: str) -> None:
    """The error names it, and the way out."""
    request = InferRequest(model=M, **changes)
    with pytest.raises(Unsupported, match=rf"{what}.*oip\+grpc://"):
        TRITON.encode_call(StreamInferRequest(model=M, request=request))


def test_events_of_triton_have_outputs_by_name() -> None:
    """Which members are outputs the model's metadata tell; its own members are taken out."""
    event = {"model_name": "x", "model_version": "3", "id": "9", "Y": [1, 2], "Z": "a", "k": True}
    found = TRITON.decode_item(CALL, HttpResponse(200, body=(json.dumps(event).encode(),)))
    assert (ModelRef(M.name, "3"), "7", False) == (found.model, found.id, found.is_final)
    assert ({"Y": (1, 2), "Z": "a", "k": True}, ()) == (found.flat_members, found.outputs)
    failed = TRITON.decode_item(CALL, HttpResponse(200, body=(b'{"error": "it broke"}',)))
    assert "it broke" == str(failed.error)
    with pytest.raises(MalformedMessage, match="'Y' of the response is neither a value"):
        TRITON.decode_item(CALL, HttpResponse(200, body=(b'{"Y": {"a": 1}}',)))


def test_an_event_that_is_not_utf8_was_an_internal_error() -> None:
    """Bytes of an output are kept; a version or name that no client can get is left out."""
    body = b'{"model_version":"\xff","Y":"a\xe2\x82","k\xff":1,"k\\n":2,"model_name":"\\ud800"}'
    found = TRITON.decode_item(CALL, HttpResponse(200, body=(body,)))
    assert (M, {"Y": "a\udce2\udc82"}) == (found.model, found.flat_members)
    assert b'"model_name":"m"' in TRITON.encode_item(CALL, found).view.tobytes()


def test_generate_has_one_status_for_the_errors_of_a_model() -> None:
    """Triton's is 400, whatever the error; one before the model ran keeps its own."""
    call = generate({"text": "a"})
    refused = HttpResponse(500, Headers(()), (b'{"error":"bad"}',))
    error = UpstreamError("bad", origin=Origin("oip.http", refused))
    assert 400 == LISTENER.encode_error(call, error).status
    assert 500 == LISTENER.encode_error(CALL.request, error).status
    assert 404 == LISTENER.encode_error(call, ModelNotFound("m")).status


@pytest.mark.parametrize(("own", "expected_id"), [("", "<id_unknown>"), ("7", "7")])
def test_the_error_of_a_server_has_the_clients_id(own: str, expected_id: str) -> None:
    """Triton's text begins with the id of the request, which is the gateway's where there is none."""
    call = InferRequest(model=M, inputs=(X,), id=own, context=Context(request_id="gateway-1"))
    text = f'{{"error":"[request id: {own or "gateway-1"}] bad"}}'.encode()
    with pytest.raises(InvalidRequest) as raised:
        LISTENER.decode_reply(call, HttpResponse(400, Headers(()), (text,)))
    assert f"[request id: {expected_id}] bad" == raised.value.message
