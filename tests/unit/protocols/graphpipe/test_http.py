"""The GraphPipe HTTP codec: URLs, methods, answers, errors, names, and what upstreams say."""

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
)
from gateway.ir.context import Context, ModelRef, Sequence
from gateway.ir.data import RawData, SharedMemoryData
from gateway.ir.datatypes import Datatype
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
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor, raw_tensor
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


def refusal(wire: HttpRequest, used: HttpCodec = CODEC) -> tuple[GatewayError, HttpResponse]:
    with pytest.raises(GatewayError) as raised:
        used.decode_call(wire)
    return raised.value, used.encode_error(None, raised.value)


def reply_of(*names: str) -> InferResponse:
    outputs = tuple(
        raw_tensor(name, Datatype.UINT8, (1,), memoryview(bytes([place])))
        for place, name in enumerate(names)
    )
    return InferResponse(model=MODEL, outputs=outputs)


def places(call: Call[Any], reply: InferResponse) -> list[int]:
    """Return which of the reply's outputs an answer holds, in its order."""
    tensors, _ = oracle.read_response(body_of(CODEC.encode_reply(call, reply)))
    return [tensor.data[0] for tensor in tensors]


def plain(call: Call[Any]) -> Call[Any]:
    return call.changed(context=Context())


def test_the_timeout_of_a_config_is_a_deadline() -> None:
    """`timeout_ms` counts from the arrival; an earlier deadline of the caller holds."""
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
    """What another implementation built is the call that it says."""
    assert case.call == plain(CODEC.decode_call(post(case.message, case.path)))


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_writes_call(case: CallCase) -> None:
    """A call goes to its model's path and reads, to another implementation, as what it says."""
    wire = CODEC.encode_call(case.call)
    assert ("POST", case.path) == (wire.method, wire.path)
    assert oracle.read_request(case.message) == oracle.read_request(body_of(wire))


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_reads_reply(case: ReplyCase) -> None:
    """What another implementation built is the answer that it says."""
    assert case.reply == CODEC.decode_reply(case.call, HttpResponse(200, body=(case.message,)))


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_writes_reply(case: ReplyCase) -> None:
    """An answer reads, to another implementation, as what it says."""
    wire = CODEC.encode_reply(case.call, case.reply)
    read: Any = oracle.read_response
    if isinstance(case.call, ModelMetadataRequest):
        read = oracle.read_metadata
    assert read(case.message) == read(body_of(wire))
    assert (200, "application/octet-stream") == (wire.status, wire.headers.get("content-type"))


def test_the_recorded_metadata_request_is_read() -> None:
    """The recorded 32 bytes of a metadata request are one, and ours are read as one."""
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
    """The URL is the only selector; a trailing slash means nothing."""
    assert model == CODEC.decode_call(post(INFER, path, query)).model
    assert model == CODEC.decode_call(HttpRequest("GET", path, query)).model


@pytest.mark.parametrize("path", ["/", "", "/graphpipe", "/graphpipe/", "/api/anything/", "/v1"])
def test_default_model_takes_any_other_path(path: str) -> None:
    """A listener with a default model replaces a server at its bare URL."""
    used = codec(default_model="d/2")
    assert ModelRef("d", "2") == used.decode_call(post(INFER, path)).model
    assert ModelRef("d", "2") == used.decode_call(post(METADATA_REQUEST, path)).model
    assert ModelMetadataRequest is type(used.decode_call(HttpRequest("HEAD", path)))
    assert ModelRef("m") == used.decode_call(post(INFER)).model


@pytest.mark.parametrize("path", ["/", "/graphpipe", "/other"])
def test_no_model_is_not_found(path: str) -> None:
    """Without a default, inference fails in its answer and metadata by status, naming the URL."""
    error, answer = refusal(post(INFER, path))
    assert NotFound is type(error)
    assert 200 == answer.status
    assert 404 == oracle.read_response(body_of(answer))[1][0][0]
    error, answer = refusal(post(METADATA_REQUEST, path))
    assert 404 == answer.status
    assert b"/graphpipe/<model>[/<version>]" in body_of(answer)


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
def test_bad_path_is_the_clients_fault(path: str, code: ErrorCode) -> None:
    """A path that can be no model's is refused, by GET with a status below 500."""
    error, answer = refusal(HttpRequest("GET", path))
    assert code is error.code
    assert 400 <= answer.status < 500


def test_query_names_a_model_once() -> None:
    """A model given twice in a query is refused."""
    with pytest.raises(InvalidRequest):
        CODEC.decode_call(post(INFER, "/", "model=a&model=b"))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_405(method: str) -> None:
    """Carrier-level trouble keeps HTTP's codes, with the methods there are."""
    error, answer = refusal(HttpRequest(method, "/graphpipe/m"))
    assert MethodNotAllowed is type(error)
    assert (405, "GET, HEAD, POST") == (answer.status, answer.headers.get("allow"))


@pytest.mark.parametrize(
    "content_type", [None, "application/x-www-form-urlencoded", "text/plain", "application/json"]
)
def test_content_type_means_nothing(content_type: str | None) -> None:
    """Curl and JavaScript clients send form types; the body is the message all the same."""
    headers = Headers(() if content_type is None else (("Content-Type", content_type),))
    wire = HttpRequest("POST", "/graphpipe/m", "", headers, (INFER,))
    assert InferRequest is type(CODEC.decode_call(wire))


def test_context_keeps_what_travels_beside() -> None:
    """Headers, request id and deadline are the call's, and go on to an upstream."""
    headers = Headers((("X-Request-Id", "abc"), ("Traceparent", "00-1"), ("Cookie", "c")))
    call = CODEC.decode_call(HttpRequest("POST", "/graphpipe/m", "", headers, (INFER,), 12.5))
    assert ("graphpipe.http", "abc", 12.5) == (
        call.context.protocol,
        call.context.request_id,
        call.context.deadline,
    )
    sent = CODEC.encode_call(call)
    assert {"content-type", "traceparent", "x-request-id"} == {n.lower() for n, _ in sent.headers}
    assert 12.5 == sent.deadline


def test_metadata_that_the_message_cannot_hold_are_refused() -> None:
    """Dimensions are 64-bit numbers, and an upstream of JSON may have others."""
    found = ModelMetadata(name="m", inputs=(TensorMetadata("x", Datatype.FP32, (1 << 63,)),))
    with pytest.raises(Unsupported, match="the metadata of model 'm' cannot be written"):
        CODEC.encode_reply(ModelMetadataRequest(model=ModelRef("m")), found)


def test_get_shows_metadata_as_json() -> None:
    """The keys are the Go server's; types are numbers, with names beside them."""
    call = CODEC.decode_call(HttpRequest("GET", "/graphpipe/m"))
    answer = CODEC.encode_reply(call, METADATA)
    document = json.loads(body_of(answer))
    assert ("m", "tensor-gateway") == (document["Name"], document["Server"])
    assert {
        "Name": "flag",
        "Description": "BOOL as Uint8",
        "Shape": [],
        "Type": 1,
        "TypeName": "Uint8",
        "Datatype": "BOOL",
    } == document["Inputs"][1]
    assert (None, 0, None) == tuple(
        document["Outputs"][1][key] for key in ("Shape", "Type", "Datatype")
    )
    assert "application/json" == answer.headers.get("content-type")


def test_get_lists_models_where_none_is_named() -> None:
    """Another gateway reads the list as it was."""
    call = CODEC.decode_call(HttpRequest("GET", "/graphpipe"))
    assert RepositoryIndexRequest() == plain(call)
    entries = (
        RepositoryEntry("a b", "1", ModelState.READY),
        RepositoryEntry("c", "", ModelState.LOADING, "reading"),
        RepositoryEntry("."),  # a step in a path, and no name there
    )
    answer = CODEC.encode_reply(call, entries)
    paths = [model["Path"] for model in json.loads(body_of(answer))["Models"]]
    assert ["/graphpipe/a%20b/1", "/graphpipe/c", None] == paths
    wire = CODEC.encode_call(RepositoryIndexRequest())
    assert ("GET", "/graphpipe") == (wire.method, wire.path)
    assert entries == CODEC.decode_reply(RepositoryIndexRequest(), answer)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", MalformedMessage),
        (b'{"Name": "m"}', Unsupported),
        (b'{"Models": [1]}', MalformedMessage),
        (b'{"Models": [{"Name": 1}]}', MalformedMessage),
        (b"[]", Unsupported),
    ],
)
def test_a_server_without_a_list_of_models_is_told_apart(
    body: bytes, kind: type[GatewayError]
) -> None:
    """The Go server shows its one model where another gateway lists its models."""
    with pytest.raises(kind):
        CODEC.decode_reply(RepositoryIndexRequest(), HttpResponse(200, body=(body,)))


@pytest.mark.parametrize(
    ("path", "call"),
    [("/control/is_ready", ServerReadyRequest()), ("/control/is_alive", ServerLiveRequest())],
)
def test_go_servers_probes_are_answered(path: str, call: Call[bool]) -> None:
    """What probed a Go server finds the same answers here."""
    read = CODEC.decode_call(HttpRequest("GET", path))
    assert call == plain(read)
    assert (200, b"ok\n") == (
        CODEC.encode_reply(read, True).status,
        body_of(CODEC.encode_reply(read, True)),
    )
    assert 503 == CODEC.encode_reply(read, False).status
    assert path == codec(health="control").encode_call(call).path


def test_input_names_must_be_as_many_as_tensors() -> None:
    """A mismatch is refused with both sides named; leniently it is made to fit, as Go does."""
    error, _ = refusal(post(infer_body(("a",), (), 2)))
    assert "2 input tensors have 1 input names" in error.message
    lenient = codec(lenient_names=True)
    for names, expected in ((("a",), ["a", ""]), (("a", "b", "a", "b"), ["a", "b"])):
        call = lenient.decode_call(post(infer_body(names, (), 2)))
        assert isinstance(call, InferRequest)
        assert expected == [tensor.name for tensor in call.inputs]


def test_input_names_are_given_once() -> None:
    """A name for two tensors is refused; "" is no name."""
    error, _ = refusal(post(infer_body(("a", "", "a"), (), 3)))
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
def test_outputs_come_in_the_order_asked_for(
    names: tuple[str, ...], there: tuple[str, ...], expected: list[int]
) -> None:
    """By name, "" by place, repeated ones repeated; an answer without names by place."""
    call = CODEC.decode_call(post(infer_body((), names, 1)))
    assert expected == places(call, reply_of(*there))


@pytest.mark.parametrize(
    ("names", "expected"), [(("b", "a", "b"), ["b", "a"]), (("a", ""), []), ((), [])]
)
def test_an_output_is_asked_for_once(names: tuple[str, ...], expected: list[str]) -> None:
    """Upstreams are asked for each output once, for all where one is only a place."""
    call = CODEC.decode_call(post(infer_body((), names, 1)))
    assert isinstance(call, InferRequest)
    assert expected == [output.name for output in call.outputs]


@pytest.mark.parametrize(
    ("names", "there"), [(("c",), ("a", "b")), (("a", "c"), ("a", "b")), (("a", "b"), ("",))]
)
def test_an_output_that_is_not_there_is_the_upstreams_fault(
    names: tuple[str, ...], there: tuple[str, ...]
) -> None:
    """The answer names the missing output and those there are."""
    call = CODEC.decode_call(post(infer_body((), names, 1)))
    with pytest.raises(UpstreamProtocolError, match="lacks the requested output"):
        CODEC.encode_reply(call, reply_of(*there))


@pytest.mark.parametrize(
    ("names", "outputs", "text"),
    [
        (("a", "", ""), ("a", "b"), "no output number 2, the response has 'a', 'b'"),
        (("", "c"), ("a", "b"), "no output 'c', the response has 'a', 'b'"),
        (("", ""), ("",), "no output number 1, the response has ''"),
    ],
)
def test_an_output_that_the_model_lacks_is_the_clients_fault(
    names: tuple[str, ...], outputs: tuple[str, ...], text: str
) -> None:
    """Where one name is empty, all outputs are requested of the upstream."""
    call = CODEC.decode_call(post(infer_body((), names, 1)))
    with pytest.raises(InvalidRequest, match=text):
        CODEC.encode_reply(call, reply_of(*outputs))


def test_bool_and_bf16_travel_as_uint8_and_float32() -> None:
    """GraphPipe has neither: bytes stay for BOOL, BF16 is widened exactly."""
    flags = array_tensor("f", np.array([True, False]))
    halves = array_tensor("h", np.array([0x3F80, 0xC000], "<u2"), Datatype.BF16)
    wire = CODEC.encode_reply(UNNAMED, InferResponse(model=MODEL, outputs=(flags, halves)))
    tensors, _ = oracle.read_response(body_of(wire))
    assert [
        oracle.PlainTensor(1, (2,), b"\x01\x00"),
        oracle.PlainTensor(10, (2,), np.array([1, -2], "<f4").tobytes()),
    ] == list(tensors)


@pytest.mark.parametrize(
    ("datatype", "shape", "lacking"), [(None, (1,), "datatype"), (Datatype.INT8, None, "shape")]
)
def test_a_tensor_without_datatype_or_shape_is_refused(
    datatype: Datatype | None, shape: tuple[int, ...] | None, lacking: str
) -> None:
    """What cannot be written is named."""
    tensor = Tensor("x", datatype, shape, RawData(memoryview(b"1")))
    with pytest.raises(Unsupported, match=f"'x' has no {lacking}"):
        CODEC.encode_call(NAMED.changed(inputs=(tensor,)))


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (Tensor("x", Datatype.FP32, (1,), SharedMemoryData("r", 0, 4)),)},
        {"outputs": (RequestedOutput("y", shared=SharedMemoryData("r", 0, 4)),)},
    ],
)
def test_shared_memory_is_refused_before_the_model_runs(changes: dict[str, Any]) -> None:
    """GraphPipe has no field for it; the request itself is right."""
    with pytest.raises(Unsupported, match="GraphPipe has no shared memory"):
        CODEC.encode_call(NAMED.changed(**changes))


@pytest.mark.parametrize("code", list(ErrorCode))
@pytest.mark.parametrize("errors", ["body", "status"])
def test_inference_errors_go_where_the_option_says(code: ErrorCode, errors: str) -> None:
    """In the answer with status 200, or by status with the text; the number is the same."""
    used = codec(errors=errors)
    answer = used.encode_error(NAMED, ERROR_CLASSES[code]("what went wrong"))
    if errors == "body":
        assert 200 == answer.status
        tensors, [(number, text)] = oracle.read_response(body_of(answer))
        assert oracle.has_both_vectors(body_of(answer))
    else:
        tensors, number, text = (), answer.status, body_of(answer).decode().removesuffix("\n")
        assert "text/plain; charset=utf-8" == answer.headers.get("content-type")
    assert ((), "what went wrong") == (tensors, text)
    assert 400 <= number < 600


@pytest.mark.parametrize("call", [METADATA_CALL, RepositoryIndexRequest(), ServerReadyRequest()])
def test_metadata_never_fails_with_status_200(call: Call[Any]) -> None:
    """Clients would take an error there for metadata without inputs."""
    for used in (CODEC, codec(errors="status")):
        answer = used.encode_error(call, ModelNotFound("no model 'm'"))
        assert (404, b"no model 'm'\n") == (answer.status, body_of(answer))


def test_refusals_before_a_message_keep_their_status() -> None:
    """A transport's own refusals are no inference errors; overload says when to come again."""
    assert 413 == CODEC.encode_error(None, TooLarge("too much")).status
    answer = CODEC.encode_error(None, Overloaded("too many"))
    assert (429, "1") == (answer.status, answer.headers.get("retry-after"))


@pytest.mark.parametrize("text", ["", "a\x00b\x1b[1m", "é" * 5000, "\ud800"])
def test_error_text_is_clipped_and_clean(text: str) -> None:
    """Whatever the text, an answer has one, in UTF-8, short, without control characters."""
    for used in (CODEC, codec(errors="status")):
        answer = used.encode_error(NAMED, InvalidRequest(text))
        data = body_of(answer)
        found = oracle.read_response(data)[1][0][1] if used is CODEC else data.decode()
        assert found.strip()
        assert found.strip().isprintable()
        assert len(found.encode()) <= DEFAULT_LIMITS.error_text_bytes + 1


def test_too_many_tensors_are_refused_before_they_are_read() -> None:
    """Counts are checked against the limits, and named."""
    used = HttpCodec(MessageLimits(tensors=1, outputs=2), {})
    assert InferRequest is type(used.decode_call(post(infer_body((), ("a", "b"), 1))))
    for body, limit in (
        (infer_body((), (), 2), "tensors"),
        (infer_body(("a", "b"), (), 1), "tensors"),
        (infer_body((), ("a", "b", "c"), 1), "outputs"),
    ):
        error, _ = refusal(post(body), used)
        assert (TooLarge, limit) == (type(error), error.limit)


def test_a_body_over_the_limit_is_refused() -> None:
    """A message may be no longer than the limit, whoever let it through."""
    error, _ = refusal(post(INFER), HttpCodec(MessageLimits(message_bytes=50), {}))
    assert "message_bytes" == error.limit


def test_what_graphpipe_cannot_ask_is_unsupported() -> None:
    """Sequences, classification, streams and names that are steps in a path are refused."""
    classes = NAMED.changed(outputs=(RequestedOutput("y", 3),))
    stream = StreamInferRequest(request=NAMED)
    unknown: Call[Any] = stream
    for call in (NAMED.changed(sequence=Sequence(1)), classes, stream):
        with pytest.raises(Unsupported):
            CODEC.encode_call(call)
    for name in (".", ".."):
        with pytest.raises(Unsupported):
            CODEC.encode_call(NAMED.changed(model=ModelRef(name)))
    with pytest.raises(Unsupported):
        CODEC.encode_item(stream, reply_of("a"))
    with pytest.raises(Unsupported):
        CODEC.decode_item(stream, HttpResponse(200))
    with pytest.raises(Unsupported):
        CODEC.encode_reply(unknown, None)
    with pytest.raises(Unsupported):
        codec(path="/x").encode_call(RepositoryIndexRequest())


def test_a_fixed_path_takes_every_message() -> None:
    """One URL is one upstream; names of callers never reach it."""
    used = codec(path="/org/project/1/gp")
    for call in (NAMED, METADATA_CALL, ModelReadyRequest(model=MODEL), ServerLiveRequest()):
        assert "/org/project/1/gp" == used.encode_call(call).path


def test_configured_outputs_are_asked_for_and_picked_from() -> None:
    """A server that ignores output names is asked for all in its own order, and picked from."""
    used = codec(inputs=["t", "x"], outputs=["a", "b"], config="fixed")
    call = NAMED.changed(outputs=(RequestedOutput("b"),))
    sent = oracle.read_request(body_of(used.encode_call(call)))
    assert sent is not None
    assert (b"fixed", ("t", "x"), ("a", "b")) == (
        sent.config,
        sent.input_names,
        sent.output_names,
    )
    other = oracle.PlainTensor(1, (), b"\x07")
    answer = HttpResponse(200, body=(oracle.build_response([PLAIN_FP32, other]),))
    reply = used.decode_reply(call, answer)
    assert [("b", Datatype.UINT8)] == [(out.name, out.datatype) for out in reply.outputs]
    with pytest.raises(InvalidRequest, match="no output 'z'"):
        used.encode_call(NAMED.changed(outputs=(RequestedOutput("z"),)))
    with pytest.raises(InvalidRequest, match="no input 'q'"):
        used.encode_call(NAMED.changed(inputs=(FP32.renamed("q"),)))


def test_answers_must_have_as_many_outputs_as_asked_for() -> None:
    """Surplus and missing outputs are refused; leading ones that are none may be left out."""
    answer = HttpResponse(200, body=(oracle.build_response([PLAIN_FP32] * 2),))
    with pytest.raises(MalformedMessage, match="2 output tensors: expected 1"):
        CODEC.decode_reply(NAMED, answer)
    reply = codec(drop_outputs=1).decode_reply(NAMED, answer)
    assert ["y"] == [tensor.name for tensor in reply.outputs]


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
    """The text of the body is the error's, and goes back to a GraphPipe caller as it came."""
    for call in MIXED:
        with pytest.raises(GatewayError) as raised:
            CODEC.decode_reply(call, HttpResponse(status, body=(body,)))
        assert (kind, text) == (type(raised.value), raised.value.message)
        again = codec(errors="status").encode_error(NAMED, raised.value)
        assert (status, text) == (again.status, body_of(again).decode().strip())


@pytest.mark.parametrize("status", [204, 301, 307])
def test_other_statuses_break_the_protocol(status: int) -> None:
    """Success is 200 exactly, and redirections are not followed."""
    with pytest.raises(UpstreamProtocolError, match=str(status)):
        CODEC.decode_reply(NAMED, HttpResponse(status, Headers((("Location", "/x"),))))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (0, UpstreamError),
        (404, ModelNotFound),
        (400, InvalidRequest),
        (-5, UpstreamError),
        (2**63 - 1, UpstreamError),
        (500, UpstreamError),
    ],
)
def test_numbers_in_errors_mean_http_statuses_or_nothing(
    number: int, kind: type[GatewayError]
) -> None:
    """Oracle's servers leave the number 0; ForestFlow writes HTTP's."""
    body = oracle.build_response([], [(number, "no")], trim=True)
    for call in MIXED:
        with pytest.raises(kind, match="no"):
            CODEC.decode_reply(call, HttpResponse(200, body=(body,)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_good_outputs_beside_broken_errors_are_taken(count: int) -> None:
    """Python servers on flatbuffers 2.0.7 claim as many errors as they send outputs."""
    tensors = [oracle.PlainTensor(8, (2,), bytes(16)), PLAIN_FP32, PLAIN_FP32][:count]
    body = oracle.build_response(tensors, claimed_errors=count)
    reply = CODEC.decode_reply(UNNAMED, HttpResponse(200, body=(body,)))
    assert count == len(reply.outputs)


def test_errors_beside_outputs_are_believed_when_they_can_be_read() -> None:
    """An answer with outputs and a whole error is an error."""
    body = oracle.build_response([PLAIN_FP32], [(0, "half done")])
    with pytest.raises(UpstreamError, match="half done"):
        CODEC.decode_reply(NAMED, HttpResponse(200, body=(body,)))


@pytest.mark.parametrize(
    "body", [oracle.build_response([]), oracle.build_response([], claimed_errors=2)]
)
def test_an_answer_with_nothing_in_it_is_refused(body: bytes) -> None:
    """Neither outputs nor a readable error is no answer, to an inference or for metadata."""
    for call in (*MIXED, ModelReadyRequest(model=MODEL)):
        with pytest.raises(MalformedMessage):
            CODEC.decode_reply(call, HttpResponse(200, body=(body,)))


def dump(description: str, count: int = 100) -> HttpResponse:
    entries = tuple(oracle.PlainIO(f"op{index}", "", None, 0) for index in range(count))
    metadata = oracle.PlainMetadata("http://x/m.pb", "1.0", "tf", description, entries, entries)
    return HttpResponse(200, body=(oracle.build_metadata(metadata),))


def test_the_dump_of_a_graph_is_read_by_its_description() -> None:
    """graphpipe-tf lists every operation; the defaults are prose, in the description."""
    text = "Implementation of m. Default Inputs: [a:0, b:0]. Default Outputs: [c:0]. Done."
    metadata = CODEC.decode_reply(METADATA_CALL, dump(text, 5000))
    assert ("m", ["a:0", "b:0"], ["c:0"]) == (
        metadata.name,
        [tensor.name for tensor in metadata.inputs],
        [tensor.name for tensor in metadata.outputs],
    )
    assert 100 == len(CODEC.decode_reply(METADATA_CALL, dump("no list")).inputs)
    with pytest.raises(TooLarge, match="complete graph"):
        CODEC.decode_reply(METADATA_CALL, dump("no list", 300))


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (oracle.PlainIO("x", "", (-2,), 1), InvalidTensor),
        (oracle.PlainIO("x", "", (1 << 50,), 1), InvalidTensor),
        (oracle.PlainIO("x", "", (1,), 13), MalformedMessage),
        (oracle.PlainIO("x\n", "", (1,), 1), MalformedMessage),
        (oracle.PlainIO("x" * 1025, "", (1,), 1), TooLarge),
        (oracle.PlainIO("x", "", (1,) * 33, 1), TooLarge),
    ],
)
def test_metadata_that_cannot_be_is_refused(
    entry: oracle.PlainIO, kind: type[GatewayError]
) -> None:
    """Metadata is distrusted as much as tensors are."""
    body = oracle.build_metadata(oracle.PlainMetadata("m", "", "", "", (entry,), ()))
    with pytest.raises(kind):
        CODEC.decode_reply(METADATA_CALL, HttpResponse(200, body=(body,)))


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
def test_another_gateway_tells_what_a_type_stands_for(
    description: str, number: int, datatype: Datatype | None
) -> None:
    """BOOL and BF16 are known again by the description that a gateway writes, and only so."""
    entry = oracle.PlainIO("x", description, (1,), number)
    body = oracle.build_metadata(oracle.PlainMetadata("m", "", "", "", (), (entry,)))
    metadata = CODEC.decode_reply(METADATA_CALL, HttpResponse(200, body=(body,)))
    assert datatype is metadata.outputs[0].datatype


def test_a_name_in_metadata_is_utf8() -> None:
    """Bytes that are no text are no name."""
    entry = oracle.PlainIO("wxyz", "", (), 1)
    body = oracle.build_metadata(oracle.PlainMetadata("m", "", "", "", (entry,), ()))
    wire = HttpResponse(200, body=(body.replace(b"wxyz", b"wx\xffz"),))
    with pytest.raises(MalformedMessage, match="UTF-8"):
        CODEC.decode_reply(METADATA_CALL, wire)


def test_metadata_of_outputs_alone_is_metadata() -> None:
    """Either list makes it metadata; entries without a name or description are told apart."""
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


def test_an_error_without_a_number_gets_ours() -> None:
    """The words of an upstream stay, a number that it never set is filled in."""
    body = oracle.build_response([], [(0, "its words")])
    with pytest.raises(UpstreamError) as raised:
        CODEC.decode_reply(NAMED, HttpResponse(200, body=(body,)))
    answer = CODEC.encode_error(NAMED, raised.value)
    assert ((500, "its words"),) == oracle.read_response(body_of(answer))[1]


def test_the_field_of_the_other_kind_may_be_there_and_empty() -> None:
    """Exactly one of data and strings may have something in it; both may be present."""
    plain_tensors = (
        oracle.PlainTensor(1, (2,), b"ab", both=True),
        oracle.PlainTensor(12, (1,), b"", (b"x",), both=True),
    )
    body = oracle.build_response(plain_tensors)
    reply = CODEC.decode_reply(UNNAMED, HttpResponse(200, body=(body,)))
    assert [Datatype.UINT8, Datatype.BYTES] == [tensor.datatype for tensor in reply.outputs]


def test_many_errors_are_not_read() -> None:
    """An answer with errors without end is broken; with a few the first is told."""
    few = oracle.build_response([], [(400, "first"), (0, "second")])
    with pytest.raises(InvalidRequest, match="first"):
        CODEC.decode_reply(NAMED, HttpResponse(200, body=(few,)))
    many = oracle.build_response([], [(400, "x")] * 65)
    with pytest.raises(MalformedMessage, match="65 errors"):
        CODEC.decode_reply(NAMED, HttpResponse(200, body=(many,)))
    with pytest.raises(MalformedMessage, match="has no text"):
        CODEC.decode_reply(NAMED, HttpResponse(200, body=(oracle.build_response([], [(4, "")]),)))


def test_a_list_of_default_tensors_is_checked() -> None:
    """Names in prose are names all the same, and no more than a model has."""
    with pytest.raises(TooLarge):
        CODEC.decode_reply(METADATA_CALL, dump(f"Default Inputs: [{', '.join('abcdefgh' * 9)}]."))
    with pytest.raises(MalformedMessage):
        CODEC.decode_reply(METADATA_CALL, dump("Default Inputs: [a\x01]."))


def test_a_long_list_of_models_is_not_parsed() -> None:
    """JSON of an upstream is held to its limit too."""
    used = HttpCodec(MessageLimits(json_bytes=5), {})
    with pytest.raises(MalformedMessage):
        used.decode_reply(RepositoryIndexRequest(), HttpResponse(200, body=(b'{"Models": []}',)))


def test_unnamed_inputs_keep_their_places() -> None:
    """Configured inputs order named tensors; tensors without names come as they are."""
    mixed = NAMED.changed(inputs=(FP32.renamed("x"), FP32.renamed("")))
    sent = oracle.read_request(body_of(codec(inputs=["y", "x"]).encode_call(mixed)))
    assert sent is not None
    assert ("x", "") == sent.input_names


def test_get_of_a_path_that_means_nothing_is_not_found() -> None:
    """Without a default model only the list and the models' own paths are there."""
    error, answer = refusal(HttpRequest("GET", "/other"))
    assert (NotFound, 404) == (type(error), answer.status)


def test_a_call_without_a_question_here_has_no_answer() -> None:
    """An answer to what this codec never asks is refused."""
    unknown: Call[Any] = StreamInferRequest(request=NAMED)
    with pytest.raises(Unsupported):
        CODEC.decode_reply(unknown, dump(""))


def test_a_whole_metadata_answer_with_an_error_status_is_an_error() -> None:
    """The status decides; a body that is no text and no error is shown as far as it can be."""
    wire = HttpResponse(500, body=dump("").body)
    with pytest.raises(UpstreamError):
        CODEC.decode_reply(METADATA_CALL, wire)


def test_a_query_without_a_model_means_nothing() -> None:
    """An empty model in a query is none."""
    assert RepositoryIndexRequest is type(CODEC.decode_call(HttpRequest("GET", "/", "model=")))


def test_a_strange_request_id_is_left_out() -> None:
    """Ids that would break a log or a header are not taken over."""
    for value in ("é", "a" * 129):
        wire = HttpRequest(
            "POST", "/graphpipe/m", "", Headers((("X-Request-Id", value),)), (INFER,)
        )
        assert "" == CODEC.decode_call(wire).context.request_id


def test_metadata_tells_who_the_server_is() -> None:
    """The version in metadata is the server's, not the model's."""
    found = CODEC.decode_reply(ServerMetadataRequest(), dump(""))
    assert ServerMetadata("tf", "1.0") == found


@pytest.mark.parametrize(
    ("status", "live", "ready"), [(200, True, True), (404, True, True), (503, True, False)]
)
def test_server_health_is_told_by_any_answer(status: int, live: bool, ready: bool) -> None:
    """A server that answers is alive, and ready unless it says that it fails."""
    wire = HttpResponse(status, body=(b"x",))
    assert live is CODEC.decode_reply(ServerLiveRequest(), wire)
    assert ready is CODEC.decode_reply(ServerReadyRequest(), wire)
    control = codec(health="control")
    assert (status == 200) is control.decode_reply(ServerLiveRequest(), wire)
    assert (status == 200) is control.decode_reply(ServerReadyRequest(), wire)


def test_model_readiness_is_told_by_metadata() -> None:
    """Metadata that can be read is ready, an upstream that is down is not, others are errors."""
    call = ModelReadyRequest(model=MODEL)
    assert CODEC.decode_reply(call, dump(""))
    assert not CODEC.decode_reply(call, HttpResponse(503, body=(b"loading",)))
    with pytest.raises(ModelNotFound):
        CODEC.decode_reply(call, HttpResponse(404, body=(b"no",)))


def test_description_names_what_has_no_field() -> None:
    """Platform and versions of a model stand in its description."""
    metadata = ModelMetadata(name="m", platform="onnx", versions=("1", "2"))
    read = oracle.read_metadata(body_of(CODEC.encode_reply(METADATA_CALL, metadata)))
    assert "onnx; versions 1, 2" == read.description


def test_a_call_of_another_codec_is_answered_by_its_outputs() -> None:
    """A call that this codec did not read is answered in the order of its own outputs."""
    call = InferRequest(model=MODEL, outputs=(RequestedOutput("b"), RequestedOutput("a")))
    assert [1, 0] == places(call, reply_of("a", "b"))
