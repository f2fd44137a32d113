"""The GraphPipe HTTP codec: URLs, methods, responses, errors, names, and upstreams."""

from __future__ import annotations

import json
import struct
import time
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
    rewritten,
)
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    Overloaded,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    RepositoryEntry,
    ServerMetadata,
    TensorMetadata,
)
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, raw_tensor
from gateway.protocols.graphpipe.http import HttpCodec
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.cases import graphpipe_oracle as oracle
from tests.cases.graphpipe_http import (
    CALLS,
    FP32,
    METADATA,
    METADATA_REQUEST,
    NAMED,
    PLAIN_FP32,
    REPLIES,
    UNNAMED,
    CallCase,
    ReplyCase,
)

CODEC = HttpCodec(DEFAULT_LIMITS, {})
MODEL = ModelRef("m")
METADATA_CALL = ModelMetadataRequest(model=MODEL)
MIXED: list[Call[Any]] = [NAMED, METADATA_CALL]
INFER = oracle.build_request(oracle.PlainRequest(b"", (), (PLAIN_FP32,), ()))


def codec(**options: Any) -> HttpCodec:
    return HttpCodec(DEFAULT_LIMITS, options)


def post(body: bytes, path: str = "/graphpipe/m", query: str = "") -> HttpRequest:
    return HttpRequest("POST", path, query, body=(memoryview(body),))


def infer_body(inputs: tuple[str, ...], outputs: tuple[str, ...], tensors: int) -> bytes:
    return oracle.build_request(oracle.PlainRequest(b"", inputs, (PLAIN_FP32,) * tensors, outputs))


def body_of(message: HttpRequest | HttpResponse) -> bytes:
    return b"".join(message.body)


def decode_error(wire: HttpRequest, used: HttpCodec = CODEC) -> tuple[GatewayError, HttpResponse]:
    with pytest.raises(GatewayError) as raised:
        used.decode_call(wire)
    return raised.value, used.encode_error(None, raised.value)


def reply_of(*names: str) -> InferResponse:
    outputs = tuple(
        raw_tensor(name, Datatype.UINT8, (1,), memoryview(bytes([index])))
        for index, name in enumerate(names)
    )
    return InferResponse(model=MODEL, outputs=outputs)


def output_indexes(call: Call[Any], reply: InferResponse) -> list[int]:
    """Return the indexes of the reply's outputs in the response, in its order."""
    tensors, _ = oracle.read_response(body_of(CODEC.encode_reply(call, reply)))
    return [tensor.data[0] for tensor in tensors]


def plain(call: Call[Any]) -> Call[Any]:
    return call.changed(context=Context())


def test_the_timeout_of_a_config_is_a_deadline() -> None:
    """`timeout_ms` counts from the arrival; an earlier deadline of the request is kept."""
    plain_request = oracle.PlainRequest(b'{"timeout_ms": 60000}', (), (PLAIN_FP32,), ())
    request = post(oracle.build_request(plain_request))
    now = time.monotonic()
    deadline = CODEC.decode_call(request).context.deadline
    assert deadline is not None
    assert now + 60 <= deadline <= time.monotonic() + 60
    early = HttpRequest("POST", request.path, "", Headers(()), request.body, now + 1)
    assert now + 1 == CODEC.decode_call(early).context.deadline


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_reads_call(case: CallCase) -> None:
    """A request of another implementation is decoded to the expected call."""
    assert case.call == plain(CODEC.decode_call(post(case.message, case.path)))


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_writes_call(case: CallCase) -> None:
    """A request has the path of its model, and another implementation reads it correctly."""
    wire = CODEC.encode_call(case.call)
    assert ("POST", case.path) == (wire.method, wire.path)
    assert oracle.read_request(case.message) == oracle.read_request(body_of(wire))


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_reads_reply(case: ReplyCase) -> None:
    """A response of another implementation is decoded to the expected reply."""
    assert case.reply == CODEC.decode_reply(case.call, HttpResponse(200, body=(case.message,)))


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_writes_reply(case: ReplyCase) -> None:
    """Another implementation reads an encoded response correctly."""
    wire = CODEC.encode_reply(case.call, case.reply)
    read: Any = oracle.read_response
    if isinstance(case.call, ModelMetadataRequest):
        read = oracle.read_metadata
    assert read(case.message) == read(body_of(wire))
    assert (200, "application/octet-stream") == (wire.status, wire.headers.get("content-type"))


def test_the_recorded_metadata_request_is_read() -> None:
    """A recorded metadata request of 32 bytes is decoded; another implementation reads an encoded one."""
    assert METADATA_CALL == plain(CODEC.decode_call(post(METADATA_REQUEST)))
    assert oracle.read_request(body_of(CODEC.encode_call(METADATA_CALL))) is None


@pytest.mark.parametrize(
    ("path", "query", "model"),
    [
        ("/graphpipe/m", "", ModelRef("m")),
        ("/graphpipe/m/", "", ModelRef("m")),
        ("/graphpipe/m/3", "", ModelRef("m", "3")),
        ("/graphpipe/m/3/", "", ModelRef("m", "3")),
        ("/graphpipe/m/versions/3", "", ModelRef("m", "3")),
        ("/graphpipe/a%2Fb%C3%A9", "", ModelRef("a/bé")),
        ("/graphpipe", "model=m&version=3", ModelRef("m", "3")),
        ("/", "x=1&model=m", ModelRef("m")),
        ("/graphpipe/m", "model=other", ModelRef("m")),
    ],
)
def test_path_names_the_model(path: str, query: str, model: ModelRef) -> None:
    """Only the URL selects the model; a trailing slash has no effect."""
    assert model == CODEC.decode_call(post(INFER, path, query)).model
    assert model == CODEC.decode_call(HttpRequest("GET", path, query)).model


@pytest.mark.parametrize("path", ["/", "", "/graphpipe", "/graphpipe/", "/api/anything/", "/v1"])
def test_default_model_serves_any_other_path(path: str) -> None:
    """A listener with a default model replaces a server at its bare URL."""
    used = codec(default_model="d/2")
    assert ModelRef("d", "2") == used.decode_call(post(INFER, path)).model
    assert ModelRef("d", "2") == used.decode_call(post(METADATA_REQUEST, path)).model
    assert ModelMetadataRequest is type(used.decode_call(HttpRequest("HEAD", path)))
    assert ModelRef("m") == used.decode_call(post(INFER)).model


@pytest.mark.parametrize("path", ["/", "/graphpipe", "/other"])
def test_path_without_a_model_is_not_found(path: str) -> None:
    """Without a default model, inference fails in the body and metadata by status."""
    error, response = decode_error(post(INFER, path))
    assert NotFound is type(error)
    assert 200 == response.status
    assert 404 == oracle.read_response(body_of(response))[1][0][0]
    wires = [post(METADATA_REQUEST, path), *[HttpRequest("GET", path)] * (path == "/other")]
    for wire in wires:
        error, response = decode_error(wire)
        assert (NotFound, 404) == (type(error), response.status)
        assert b"/graphpipe/<model>[/<version>]" in body_of(response)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/graphpipe/m/1/2", ErrorCode.NOT_FOUND),
        ("/graphpipe//1", ErrorCode.NOT_FOUND),
        ("/graphpipe/%zz", ErrorCode.INVALID_ARGUMENT),
        ("/graphpipe/%ff", ErrorCode.INVALID_ARGUMENT),
        ("/graphpipe/a%00b", ErrorCode.INVALID_ARGUMENT),
        ("/graphpipe/" + "a" * 256, ErrorCode.TOO_LARGE),
    ],
)
def test_invalid_path_is_rejected(path: str, code: ErrorCode) -> None:
    """A path that cannot be that of a model is rejected, for GET with a 4xx status."""
    error, response = decode_error(HttpRequest("GET", path))
    assert code is error.code
    assert 400 <= response.status < 500


def test_a_query_names_at_most_one_model() -> None:
    """An empty model in a query counts as none."""
    with pytest.raises(InvalidRequest):
        CODEC.decode_call(post(INFER, "/", "model=a&model=b"))
    assert RepositoryIndexRequest is type(CODEC.decode_call(HttpRequest("GET", "/", "model=")))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_405(method: str) -> None:
    """Errors of HTTP itself keep their status; the response lists the allowed methods."""
    error, response = decode_error(HttpRequest(method, "/graphpipe/m"))
    assert MethodNotAllowed is type(error)
    assert (405, "GET, HEAD, POST") == (response.status, response.headers.get("allow"))


def test_context_has_headers_request_id_and_deadline() -> None:
    """They are part of the call, and are sent to an upstream."""
    headers = Headers((("X-Request-Id", "abc"), ("Traceparent", "00-1"), ("Cookie", "c")))
    call = CODEC.decode_call(HttpRequest("POST", "/graphpipe/m", "", headers, (INFER,), 12.5))
    assert "graphpipe.http" == call.context.protocol
    assert "abc" == call.context.request_id
    sent = CODEC.encode_call(rewritten(call))
    # `ForwardHeaders` has chosen what the context has by then.
    named = {name.lower() for name, _ in sent.headers}
    assert {"content-type", "traceparent", "x-request-id", "cookie"} == named
    assert 12.5 == sent.deadline == call.context.deadline


@pytest.mark.parametrize("value", ["é", "a" * 129])
def test_request_id_not_fit_for_a_log_is_dropped(value: str) -> None:
    """A request id that is too long or not ASCII is dropped."""
    headers = Headers((("X-Request-Id", value),))
    wire = HttpRequest("POST", "/graphpipe/m", "", headers, (INFER,))
    assert "" == CODEC.decode_call(wire).context.request_id


HERE = RawData(memoryview(b"1"))
REGION = SharedMemoryData("r", 0, 4)
STREAM: Any = StreamInferRequest(request=NAMED)
LARGE = ModelMetadata(name="m", inputs=(TensorMetadata("x", Datatype.FP32, (1 << 63,)),))
NO_SHARED = "GraphPipe has no shared memory"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"inputs": (Tensor("x", None, (1,), HERE),)}, "'x' has no datatype"),
        ({"inputs": (Tensor("x", Datatype.INT8, None, HERE),)}, "'x' has no shape"),
        ({"inputs": (Tensor("x", Datatype.FP32, (1,), REGION),)}, NO_SHARED),
        ({"outputs": (RequestedOutput("y", shared=REGION),)}, NO_SHARED),
        ({"outputs": (RequestedOutput("y", 3),)}, "class"),
        ({"sequence": CallSequence(1)}, "sequence"),
        ({"model": ModelRef(".")}, "'.'"),
        ({"model": ModelRef("..")}, "'..'"),
    ],
)
def test_inferences_that_graphpipe_cannot_carry_are_rejected(
    changes: dict[str, Any], text: str
) -> None:
    """The call raises Unsupported before the model runs."""
    with pytest.raises(Unsupported, match=text):
        CODEC.encode_call(NAMED.changed(**changes))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (CODEC.encode_call, (STREAM,)),
        (CODEC.encode_item, (STREAM, reply_of("a"))),
        (CODEC.decode_item, (STREAM, HttpResponse(200))),
        (CODEC.encode_reply, (STREAM, None)),
        (CODEC.decode_reply, (STREAM, HttpResponse(200))),
        (codec(path="/x").encode_call, (RepositoryIndexRequest(),)),
        # Dimensions are 64-bit integers; an upstream of JSON may have larger ones.
        (CODEC.encode_reply, (METADATA_CALL, LARGE)),
    ],
)
def test_what_graphpipe_lacks_is_rejected(function: Any, arguments: tuple[Any, ...]) -> None:
    """Streams, the list of models at a fixed path, and large dimensions raise Unsupported."""
    with pytest.raises(Unsupported):
        function(*arguments)


def test_get_returns_metadata_as_json() -> None:
    """The keys are those of the Go server; types are numbers, with their names added."""
    call = CODEC.decode_call(HttpRequest("GET", "/graphpipe/m"))
    response = CODEC.encode_reply(call, METADATA)
    document = json.loads(body_of(response))
    assert ("m", "tensor-gateway") == (document["Name"], document["Server"])
    flag = {"Name": "flag", "Description": "BOOL as Uint8", "Shape": []}
    assert {**flag, "Type": 1, "TypeName": "Uint8", "Datatype": "BOOL"} == document["Inputs"][1]
    other = document["Outputs"][1]
    assert (None, 0, None) == (other["Shape"], other["Type"], other["Datatype"])
    assert "application/json" == response.headers.get("content-type")


def test_get_without_a_model_lists_models() -> None:
    """Another gateway decodes the list to the same entries."""
    call = CODEC.decode_call(HttpRequest("GET", "/graphpipe"))
    assert RepositoryIndexRequest() == plain(call)
    entries = (
        RepositoryEntry("a b", "1", ModelState.READY),
        RepositoryEntry("c", "", ModelState.LOADING, "reading"),
        RepositoryEntry("."),  # a step in a path, and no name there
    )
    response = CODEC.encode_reply(call, entries)
    paths = [model["Path"] for model in json.loads(body_of(response))["Models"]]
    assert ["/graphpipe/a%20b/1", "/graphpipe/c", None] == paths
    wire = CODEC.encode_call(RepositoryIndexRequest())
    assert ("GET", "/graphpipe") == (wire.method, wire.path)
    assert entries == CODEC.decode_reply(RepositoryIndexRequest(), response)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", MalformedMessage),
        (b'{"Name": "m"}', Unsupported),
        (b'{"Models": [1]}', MalformedMessage),
        (b'{"Models": [{"Name": 1}]}', MalformedMessage),
        (b"[]", Unsupported),
        (b'{"Models": []' + b" " * 90 + b"}", MalformedMessage),
    ],
)
def test_response_without_a_list_of_models_is_rejected(
    body: bytes, kind: type[GatewayError]
) -> None:
    """The Go server returns its one model where a gateway returns its list of models."""
    used = HttpCodec(MessageLimits(json_bytes=100), {})
    with pytest.raises(kind):
        used.decode_reply(RepositoryIndexRequest(), HttpResponse(200, body=(body,)))


@pytest.mark.parametrize(
    ("path", "call"),
    [("/control/is_ready", ServerReadyRequest()), ("/control/is_alive", ServerLiveRequest())],
)
def test_probes_of_the_go_server_are_served(path: str, call: Call[bool]) -> None:
    """Probes of a Go server get the same responses from the gateway."""
    read = CODEC.decode_call(HttpRequest("GET", path))
    assert call == plain(read)
    healthy = CODEC.encode_reply(read, True)
    assert (200, b"ok\n") == (healthy.status, body_of(healthy))
    assert 503 == CODEC.encode_reply(read, False).status
    assert path == codec(health="control").encode_call(call).path


def test_number_of_input_names_must_match_the_tensors() -> None:
    """A mismatch is rejected with both numbers; lenient names are made to fit, as in Go."""
    error, _ = decode_error(post(infer_body(("a",), (), 2)))
    assert "2 input tensors have 1 input names" in error.message
    lenient = codec(lenient_names=True)
    for names, expected in ((("a",), ["a", ""]), (("a", "b", "a", "b"), ["a", "b"])):
        call = lenient.decode_call(post(infer_body(names, (), 2)))
        assert isinstance(call, InferRequest)
        assert expected == [tensor.name for tensor in call.inputs]


def test_duplicate_input_names_are_rejected() -> None:
    """A name for two tensors is rejected; an empty name counts as none."""
    error, _ = decode_error(post(infer_body(("a", "", "a"), (), 3)))
    assert "input 'a' occurs twice, as tensors 0 and 2" == error.message
    call = CODEC.decode_call(post(infer_body(("", "a", ""), (), 3)))
    assert isinstance(call, InferRequest)
    assert ["", "a", ""] == [tensor.name for tensor in call.inputs]


@pytest.mark.parametrize(
    ("names", "there", "expected"),
    [
        ((), ("a", "b"), [0, 1]),
        (("b", "a"), ("a", "b"), [1, 0]),
        (("b",), ("a", "b"), [1]),
        (("a", "b", "a"), ("b", "a"), [1, 0, 1]),
        (("",), ("a", "b"), [0]),
        (("b", ""), ("a", "b"), [1, 1]),
        (("", ""), ("a", "b"), [0, 1]),
        (("x", "y", "x"), ("", ""), [0, 1, 0]),
        (("", "y"), ("", ""), [0, 1]),
    ],
)
def test_outputs_have_the_requested_order(
    names: tuple[str, ...], there: tuple[str, ...], expected: list[int]
) -> None:
    """Outputs are selected by name, or by position where a name is empty; repeated ones repeat."""
    call = CODEC.decode_call(post(infer_body((), names, 1)))
    assert expected == output_indexes(call, reply_of(*there))


@pytest.mark.parametrize(
    ("names", "expected"), [(("b", "a", "b"), ["b", "a"]), (("a", ""), []), ((), [])]
)
def test_each_output_is_requested_once(names: tuple[str, ...], expected: list[str]) -> None:
    """Upstreams get each requested output once, or a request for all if a name is empty."""
    call = CODEC.decode_call(post(infer_body((), names, 1)))
    assert isinstance(call, InferRequest)
    assert expected == [output.name for output in call.outputs]


LACKS = "lacks the requested output"


@pytest.mark.parametrize(
    ("names", "outputs", "kind", "text"),
    [
        (("c",), ("a", "b"), UpstreamProtocolError, LACKS),
        (("a", "c"), ("a", "b"), UpstreamProtocolError, LACKS),
        (("a", "b"), ("",), UpstreamProtocolError, LACKS),
        # If a name is empty, all outputs are requested: an unknown one is an error of the client.
        (
            ("a", "", ""),
            ("a", "b"),
            InvalidRequest,
            "no output number 2, the response has 'a', 'b'",
        ),
        (("", "c"), ("a", "b"), InvalidRequest, "no output 'c', the response has 'a', 'b'"),
        (("", ""), ("",), InvalidRequest, "no output number 1, the response has ''"),
    ],
)
def test_missing_output_is_an_error(
    names: tuple[str, ...], outputs: tuple[str, ...], kind: type[GatewayError], text: str
) -> None:
    """A reply that lacks a requested output is rejected."""
    call = CODEC.decode_call(post(infer_body((), names, 1)))
    with pytest.raises(kind, match=text):
        CODEC.encode_reply(call, reply_of(*outputs))


def test_bool_and_bf16_are_sent_as_uint8_and_float32() -> None:
    """GraphPipe has neither: BOOL keeps its bytes, BF16 is widened exactly."""
    flags = array_tensor("f", np.array([True, False]))
    halves = array_tensor("h", np.array([0x3F80, 0xC000], "<u2"), Datatype.BF16)
    wire = CODEC.encode_reply(UNNAMED, InferResponse(model=MODEL, outputs=(flags, halves)))
    tensors, _ = oracle.read_response(body_of(wire))
    assert [
        oracle.PlainTensor(1, (2,), b"\x01\x00"),
        oracle.PlainTensor(10, (2,), np.array([1, -2], "<f4").tobytes()),
    ] == list(tensors)


@pytest.mark.parametrize("code", list(ErrorCode))
@pytest.mark.parametrize("errors", ["body", "status"])
def test_option_selects_the_place_of_inference_errors(code: ErrorCode, errors: str) -> None:
    """The error is in the body with status 200, or is the status with the text as its body.

    A quota ends the request in any case.
    """
    used = codec(errors=errors)
    response = used.encode_error(NAMED, ERROR_CLASSES[code]("what went wrong"))
    if errors == "body" and code is not ErrorCode.QUOTA_EXCEEDED:
        assert 200 == response.status
        tensors, [(number, text)] = oracle.read_response(body_of(response))
        assert oracle.has_both_vectors(body_of(response))
    else:
        tensors, number, text = (), response.status, body_of(response).decode().removesuffix("\n")
        assert "text/plain; charset=utf-8" == response.headers.get("content-type")
    assert ((), "what went wrong") == (tensors, text)
    assert 400 <= number < 600


@pytest.mark.parametrize("call", [METADATA_CALL, RepositoryIndexRequest(), ServerReadyRequest()])
def test_metadata_never_fails_with_status_200(call: Call[Any]) -> None:
    """Clients would read an error of status 200 as metadata without inputs."""
    for used in (CODEC, codec(errors="status")):
        response = used.encode_error(call, ModelNotFound("no model 'm'"))
        assert (404, b"no model 'm'\n") == (response.status, body_of(response))


def test_errors_before_a_message_keep_their_status() -> None:
    """Errors of the transport are not inference errors; overload has a `retry-after` header."""
    assert 413 == CODEC.encode_error(None, TooLarge("too much")).status
    response = CODEC.encode_error(None, Overloaded("too many"))
    assert (429, "1") == (response.status, response.headers.get("retry-after"))


@pytest.mark.parametrize("text", ["", "a\x00b\x1b[1m", "é" * 5000, "\ud800"])
def test_error_text_is_truncated_and_printable(text: str) -> None:
    """Any error text is written as short UTF-8 that is not empty, without control characters."""
    for used in (CODEC, codec(errors="status")):
        response = used.encode_error(NAMED, InvalidRequest(text))
        data = body_of(response)
        found = oracle.read_response(data)[1][0][1] if used is CODEC else data.decode()
        assert found.strip()
        assert found.strip().isprintable()
        assert len(found.encode()) <= DEFAULT_LIMITS.error_text_bytes + 1


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (infer_body((), ("a", "b"), 1), None),
        (infer_body((), (), 2), "tensors"),
        (infer_body(("a", "b"), (), 1), "tensors"),
        (infer_body((), ("a", "b", "c"), 1), "outputs"),
        (infer_body((), ("a" * 999,), 1), "message_bytes"),
    ],
)
def test_messages_over_a_limit_are_rejected(body: bytes, limit: str | None) -> None:
    """Counts are checked before tensors are read, whatever the transport accepted."""
    used = HttpCodec(MessageLimits(tensors=1, outputs=2, message_bytes=900), {})
    if limit is None:
        assert InferRequest is type(used.decode_call(post(body)))
    else:
        error, _ = decode_error(post(body), used)
        assert (TooLarge, limit) == (type(error), error.limit)


def test_fixed_path_is_used_for_every_call() -> None:
    """One URL is one upstream; model names do not reach it."""
    used = codec(path="/org/project/1/gp")
    for call in (NAMED, METADATA_CALL, ModelReadyRequest(model=MODEL), ServerLiveRequest()):
        assert "/org/project/1/gp" == used.encode_call(call).path


def test_configured_outputs_are_requested_and_selected() -> None:
    """All configured outputs are requested in their order; those of the call are selected."""
    used = codec(inputs=["t", "x"], outputs=["a", "b"], config="fixed")
    call = NAMED.changed(outputs=(RequestedOutput("b"),))
    sent = oracle.read_request(body_of(used.encode_call(call)))
    assert sent is not None
    assert b"fixed" == sent.config
    assert ("t", "x") == sent.input_names
    assert ("a", "b") == sent.output_names
    other = oracle.PlainTensor(1, (), b"\x07")
    response = HttpResponse(200, body=(oracle.build_response([PLAIN_FP32, other]),))
    reply = used.decode_reply(call, response)
    assert [("b", Datatype.UINT8)] == [(out.name, out.datatype) for out in reply.outputs]
    with pytest.raises(InvalidRequest, match="no output 'z'"):
        used.encode_call(NAMED.changed(outputs=(RequestedOutput("z"),)))
    with pytest.raises(InvalidRequest, match="no input 'q'"):
        used.encode_call(NAMED.changed(inputs=(FP32.renamed("q"),)))


def test_response_must_have_as_many_outputs_as_requested() -> None:
    """Missing and surplus outputs are rejected; `drop_outputs` removes leading ones."""
    call = NAMED.changed(outputs=(RequestedOutput("y"), RequestedOutput("z")))
    responses = [
        HttpResponse(200, body=(oracle.build_response([PLAIN_FP32] * count),)) for count in range(5)
    ]
    for used, right in ((CODEC, 2), (codec(drop_outputs=1), 3)):
        for count in (right - 1, right + 1):
            with pytest.raises(MalformedMessage, match=f"{count} output tensors: expected 2"):
                used.decode_reply(call, responses[count])
        reply = used.decode_reply(call, responses[right])
        assert ["y", "z"] == [tensor.name for tensor in reply.outputs]
    with pytest.raises(MalformedMessage, match="neither outputs nor errors"):
        CODEC.decode_reply(call, responses[0])


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, b"missing input x\n", InvalidRequest, "missing input x"),
        (404, b"", ModelNotFound, "HTTP status 404 without a text"),
        (500, b"Unhandled GET", UpstreamError, "Unhandled GET"),
        (503, b"\xff\x00", Unavailable, "\ufffd?"),
        (418, b"teapot", InvalidRequest, "teapot"),
        (400, oracle.build_response([], [(7, "inside")]), InvalidRequest, "inside"),
    ],
)
def test_error_statuses_of_upstreams_are_raised(
    status: int, body: bytes, kind: type[GatewayError], text: str
) -> None:
    """The error has the text of the body, and is forwarded to a GraphPipe client unchanged."""
    for call in MIXED:
        with pytest.raises(GatewayError) as raised:
            CODEC.decode_reply(call, HttpResponse(status, body=(body,)))
        assert (kind, text) == (type(raised.value), raised.value.message)
        again = codec(errors="status").encode_error(NAMED, raised.value)
        assert (status, text) == (again.status, body_of(again).decode().strip())


@pytest.mark.parametrize("status", [204, 301, 307])
def test_unexpected_statuses_raise_a_protocol_error(status: int) -> None:
    """Only status 200 is success; redirects are not followed."""
    with pytest.raises(UpstreamProtocolError, match=str(status)):
        CODEC.decode_reply(NAMED, HttpResponse(status, Headers((("Location", "/x"),))))


def errors(*found: tuple[int, str], **fields: Any) -> HttpResponse:
    return HttpResponse(200, body=(oracle.build_response([], list(found), **fields),))


def described(name: str, shape: tuple[int, ...] = (1,), number: int = 1) -> HttpResponse:
    """Return metadata with this one input."""
    entry = oracle.PlainIO(name, "", shape, number)
    body = oracle.build_metadata(oracle.PlainMetadata("m", "", "", "", (entry,), ()))
    return HttpResponse(200, body=(body.replace(b"wxyz", b"wx\xffz"),))


def dump(description: str, count: int = 100) -> HttpResponse:
    entries = tuple(oracle.PlainIO(f"op{index}", "", None, 0) for index in range(count))
    metadata = oracle.PlainMetadata("http://x/m.pb", "1.0", "tf", description, entries, entries)
    return HttpResponse(200, body=(oracle.build_metadata(metadata),))


MANY_DEFAULTS = f"Default Inputs: [{', '.join('abcdefgh' * 9)}]."
ONE: list[Call[Any]] = [METADATA_CALL]
EVERY = [*MIXED, ModelReadyRequest(model=MODEL)]


@pytest.mark.parametrize(
    ("calls", "wire", "kind", "text"),
    [
        # Oracle's servers leave the number 0; ForestFlow writes that of HTTP.
        (MIXED, errors((0, "no"), trim=True), UpstreamError, "no"),
        (MIXED, errors((404, "no"), trim=True), ModelNotFound, "no"),
        (MIXED, errors((400, "no"), trim=True), InvalidRequest, "no"),
        (MIXED, errors((-5, "no"), trim=True), UpstreamError, "no"),
        (MIXED, errors((2**63 - 1, "no"), trim=True), UpstreamError, "no"),
        (MIXED, errors((500, "no"), trim=True), UpstreamError, "no"),
        (MIXED, errors((400, "first"), (0, "second")), InvalidRequest, "first"),
        ([NAMED], errors(*[(400, "x")] * 65), MalformedMessage, "65 errors"),
        ([NAMED], errors((4, "")), MalformedMessage, "has no text"),
        (EVERY, errors(), MalformedMessage, "."),
        (EVERY, errors(claimed_errors=2), MalformedMessage, "."),
        # Metadata are validated as tensors are.
        (ONE, described("x", (-2,)), InvalidTensor, "-2"),
        (ONE, described("x", (1 << 50,)), InvalidTensor, "."),
        (ONE, described("x", number=13), MalformedMessage, "13"),
        (ONE, described("x\n"), MalformedMessage, "U\\+000A"),
        (ONE, described("x" * 1025), TooLarge, "1025"),
        (ONE, described("x", (1,) * 33), TooLarge, "33"),
        (ONE, described("wxyz"), MalformedMessage, "UTF-8"),
        (ONE, dump(MANY_DEFAULTS), TooLarge, "72"),
        (ONE, dump("Default Inputs: [a\x01]."), MalformedMessage, "U\\+0001"),
        (ONE, dump("no list", 300), TooLarge, "complete graph"),
        # The status decides, even if the body has valid metadata.
        (ONE, HttpResponse(500, body=dump("").body), UpstreamError, "."),
    ],
)
def test_unusable_responses_are_rejected(
    calls: list[Call[Any]], wire: HttpResponse, kind: type[GatewayError], text: str
) -> None:
    """Errors of servers are raised; what is no valid response is malformed."""
    for call in calls:
        with pytest.raises(kind, match=text):
            CODEC.decode_reply(call, wire)


def test_readable_error_takes_precedence_over_outputs() -> None:
    """A response with outputs and a readable error raises the error."""
    body = oracle.build_response([PLAIN_FP32], [(0, "half done")])
    with pytest.raises(UpstreamError, match="half done"):
        CODEC.decode_reply(NAMED, HttpResponse(200, body=(body,)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_outputs_are_read_despite_unreadable_errors(count: int) -> None:
    """Python servers on flatbuffers 2.0.7 declare as many errors as they send outputs."""
    tensors = [oracle.PlainTensor(8, (2,), bytes(16)), PLAIN_FP32, PLAIN_FP32][:count]
    body = oracle.build_response(tensors, claimed_errors=count)
    reply = CODEC.decode_reply(UNNAMED, HttpResponse(200, body=(body,)))
    assert count == len(reply.outputs)


def test_metadata_of_a_complete_graph_use_its_description() -> None:
    """graphpipe-tf lists every operation; the description has the default inputs and outputs."""
    text = "Implementation of m. Default Inputs: [a:0, b:0]. Default Outputs: [c:0]. Done."
    metadata = CODEC.decode_reply(METADATA_CALL, dump(text, 5000))
    assert "m" == metadata.name
    assert ["a:0", "b:0"] == [tensor.name for tensor in metadata.inputs]
    assert ["c:0"] == [tensor.name for tensor in metadata.outputs]
    assert 100 == len(CODEC.decode_reply(METADATA_CALL, dump("no list")).inputs)


@pytest.mark.parametrize(
    ("description", "number", "datatype"),
    [
        ("BOOL as Uint8", 1, Datatype.BOOL),
        ("BF16 as Float32", 10, Datatype.BF16),
        ("BOOL as Uint8", 10, Datatype.FP32),
        ("a boolean, as Uint8", 1, Datatype.UINT8),
        ("", 1, Datatype.UINT8),
        ("", 0, None),
    ],
)
def test_description_of_a_gateway_restores_bool_and_bf16(
    description: str, number: int, datatype: Datatype | None
) -> None:
    """Only the exact description that a gateway writes restores BOOL and BF16."""
    entry = oracle.PlainIO("x", description, (1,), number)
    body = oracle.build_metadata(oracle.PlainMetadata("m", "", "", "", (), (entry,)))
    metadata = CODEC.decode_reply(METADATA_CALL, HttpResponse(200, body=(body,)))
    assert datatype is metadata.outputs[0].datatype


def test_metadata_may_have_outputs_only() -> None:
    """One list is enough; an entry may lack a description, but not a name."""
    full = bytearray(CODEC.encode_reply(METADATA_CALL, METADATA).body[0])
    struct.pack_into("<H", full, 4 + 4 + 2 * 4, 0)  # its vtable's slot of the inputs
    read = CODEC.decode_reply(METADATA_CALL, HttpResponse(200, body=(bytes(full),)))
    assert ((), METADATA.outputs[1]) == (read.inputs, read.outputs[1])
    struct.pack_into("<H", full, 20 + 4 + 2, 0)  # an entry's slot of the description
    read = CODEC.decode_reply(METADATA_CALL, HttpResponse(200, body=(bytes(full),)))
    assert Datatype.FP32 is read.outputs[0].datatype
    struct.pack_into("<H", full, 20 + 4, 0)  # and that of the name
    with pytest.raises(MalformedMessage, match="without a name"):
        CODEC.decode_reply(METADATA_CALL, HttpResponse(200, body=(bytes(full),)))


def test_upstream_error_without_a_number_gets_one() -> None:
    """The text of the upstream is kept; a missing number is filled in."""
    body = oracle.build_response([], [(0, "its words")])
    with pytest.raises(UpstreamError) as raised:
        CODEC.decode_reply(NAMED, HttpResponse(200, body=(body,)))
    response = CODEC.encode_error(NAMED, raised.value)
    assert ((500, "its words"),) == oracle.read_response(body_of(response))[1]


def test_tensor_may_have_an_empty_field_of_the_other_kind() -> None:
    """Both data and strings may be present if only one of them has elements."""
    plain_tensors = (
        oracle.PlainTensor(1, (2,), b"ab", both=True),
        oracle.PlainTensor(12, (1,), b"", (b"x",), both=True),
    )
    body = oracle.build_response(plain_tensors)
    reply = CODEC.decode_reply(UNNAMED, HttpResponse(200, body=(body,)))
    assert [Datatype.UINT8, Datatype.BYTES] == [tensor.datatype for tensor in reply.outputs]


def test_unnamed_inputs_keep_their_order() -> None:
    """Configured inputs reorder named tensors only."""
    mixed = NAMED.changed(inputs=(FP32.renamed("x"), FP32.renamed("")))
    sent = oracle.read_request(body_of(codec(inputs=["y", "x"]).encode_call(mixed)))
    assert sent is not None
    assert ("x", "") == sent.input_names


def test_server_metadata_are_read_from_model_metadata() -> None:
    """The name and version in metadata are those of the server, not of the model."""
    found = CODEC.decode_reply(ServerMetadataRequest(), dump(""))
    assert ServerMetadata("tf", "1.0") == found


@pytest.mark.parametrize(
    ("status", "live", "ready"), [(200, True, True), (404, True, True), (503, True, False)]
)
def test_server_health_is_derived_from_any_response(status: int, live: bool, ready: bool) -> None:
    """A server that responds is live, and ready unless it fails; `control` requires status 200."""
    wire = HttpResponse(status, body=(b"x",))
    assert live is CODEC.decode_reply(ServerLiveRequest(), wire)
    assert ready is CODEC.decode_reply(ServerReadyRequest(), wire)
    control = codec(health="control")
    assert (status == 200) is control.decode_reply(ServerLiveRequest(), wire)
    assert (status == 200) is control.decode_reply(ServerReadyRequest(), wire)


def test_model_readiness_is_derived_from_metadata() -> None:
    """Readable metadata mean ready, status 503 means not ready, other errors are raised."""
    call = ModelReadyRequest(model=MODEL)
    assert CODEC.decode_reply(call, dump(""))
    assert not CODEC.decode_reply(call, HttpResponse(503, body=(b"loading",)))
    with pytest.raises(ModelNotFound):
        CODEC.decode_reply(call, HttpResponse(404, body=(b"no",)))


def test_description_has_platform_and_versions() -> None:
    """Platform and versions of a model, which have no field, are in its description."""
    metadata = ModelMetadata(name="m", platform="onnx", versions=("1", "2"))
    read = oracle.read_metadata(body_of(CODEC.encode_reply(METADATA_CALL, metadata)))
    assert "onnx; versions 1, 2" == read.description


def test_reply_to_a_call_of_another_codec_has_its_outputs() -> None:
    """The outputs of the response are in the order of the call's outputs."""
    call = InferRequest(model=MODEL, outputs=(RequestedOutput("b"), RequestedOutput("a")))
    assert [1, 0] == output_indexes(call, reply_of("a", "b"))
