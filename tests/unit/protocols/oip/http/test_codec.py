"""The Open Inference HTTP codec: calls and replies with their wire form, errors, dialects."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
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
from gateway.ir.context import NO_CONTEXT, Context, ModelRef, Need, Origin
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    NotReady,
    Overloaded,
    Unavailable,
    Unsupported,
)
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_numpy,
    as_raw,
    items_tensor,
    raw_tensor,
)
from gateway.protocols.oip.dialects import dialect_of
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.wire.errors import HTTP_STATUS
from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.cases.oip_http import (
    CALLS,
    LENGTH_HEADER,
    REPLIES,
    X_JSON,
    X_RAW,
    CallCase,
    M,
    ReplyCase,
    X,
    answer,
    compact,
    get,
    post,
)
from tests.cases.oip_options import EVERYTHING


def codec(**options: Any) -> HttpCodec:
    return HttpCodec(DEFAULT_LIMITS, options)


CODEC = codec()
BINARY_REQUEST = post({"inputs": [X_JSON], "parameters": {"binary_data_output": True}})


JSON_CALL: Any = CODEC.decode_call(post({"inputs": [X_JSON]}))


def document_of(wire: HttpRequest | HttpResponse) -> tuple[Any, bytes | None]:
    """Return JSON and binary part of a message; the binary part is None without the length header."""
    length = wire.headers.get(LENGTH_HEADER.lower())
    body = bytes(wire.view)
    if length is None:
        return json.loads(body), None
    return json.loads(body[: int(length)]), body[int(length) :]


def infers(**fields: Any) -> InferRequest:
    return InferRequest(**{"model": M, "inputs": (X,), **fields})


def plain(call: Call[Any]) -> Call[Any]:
    """Return *call* without its context."""
    return call.changed(context=Context())


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_encodes_call(case: CallCase) -> None:
    """A call is written to the path and with the body of its dialect."""
    wire = codec(dialect=case.dialect).encode_call(case.call)
    assert (case.method, case.path) == (wire.method, wire.path)
    if case.document is None:
        assert b"" == bytes(wire.view)
    else:
        assert (case.document, case.binary) == document_of(wire)


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_decodes_call(case: CallCase) -> None:
    """An encoded call is decoded to the same call."""
    if case.document is None:
        wire = HttpRequest(case.method, case.path)
    else:
        wire = post(case.document, case.binary, case.path)
    assert case.call == plain(CODEC.decode_call(wire))


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_encodes_reply(case: ReplyCase) -> None:
    """A reply is encoded in the form that its request specifies."""
    call = CODEC.decode_call(case.request)
    wire = CODEC.encode_reply(call, case.reply)
    assert case.status == wire.status
    assert (case.document, case.binary) == document_of(wire)
    expected = "application/json" if case.binary is None else "application/octet-stream"
    assert expected == wire.headers.get("content-type")


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_decodes_reply(case: ReplyCase) -> None:
    """An encoded reply is decoded to the same reply."""
    call = CODEC.decode_call(case.request)
    wire = CODEC.encode_reply(call, case.reply)
    assert case.reply == CODEC.decode_reply(call, wire)


def test_name_and_needs() -> None:
    """The codec needs every tensor described; Triton's streams need flat members as well."""
    assert "oip.http" == CODEC.name
    described = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
    assert described | {Need.FLAT_MEMBERS} == CODEC.needs
    assert described == codec(dialect="mlserver").needs


@pytest.mark.parametrize("options", [{"dialect": "v1"}, {"not_ready_status": 404}], ids=repr)
def test_invalid_options_are_rejected(options: dict[str, Any]) -> None:
    """An option with an unknown value is rejected by its name."""
    with pytest.raises(ValueError, match=next(iter(options))):
        codec(**options)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("triton", "triton"), ("MLServer", "mlserver"), ("kserve", "kserve"), ("other", None)],
)
def test_dialect_of_a_server(name: str, expected: str | None) -> None:
    """The name of a server determines its dialect; an unknown name has none."""
    assert expected == dialect_of(name)


@pytest.mark.parametrize(
    ("sent", "kept"), [("r-1", "r-1"), ("a" * 129, ""), ("a\tb", ""), ("é", "")]
)
def test_context_of_a_call(sent: str, kept: str) -> None:
    """Headers, deadline, and a request id that is fit for a log, are in the context."""
    pairs = (("X-Request-Id", sent), ("X-Team", "A"))
    wire = HttpRequest("GET", "/v2", "", Headers(pairs), (), 12.5)
    context = CODEC.decode_call(wire).context
    expected = Context(
        protocol="oip.http",
        metadata=(("x-request-id", sent), ("x-team", "A")),
        request_id=kept,
        deadline=12.5,
        needs=frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES}),
    )
    assert expected == context
    assert context.origin is not None
    assert wire is context.origin.wire


def test_headers_of_requests_to_an_upstream_are_shared() -> None:
    """The request id is separate from the shared headers, unless metadata are forwarded."""
    bare = [CODEC.encode_call(infers().with_context(request_id=each)) for each in ("a", "b")]
    assert bare[0].headers is bare[1].headers
    assert ["a", "b"] == [wire.request_id for wire in bare]
    traced = infers().with_context(request_id="a", metadata=(("traceparent", "t"),))
    wire = CODEC.encode_call(traced)
    forwarded = (("traceparent", "t"), ("x-request-id", "a"))
    assert (*bare[0].headers.pairs, *forwarded) == wire.headers.pairs
    assert "" == wire.request_id


def test_headers_of_a_request_to_an_upstream() -> None:
    """The call's metadata are forwarded, headers about one message are not."""
    about_one = (("host", "a"), ("content-length", "9"), ("grpc-timeout", "1S"))
    metadata = (("traceparent", "00-1"), *about_one, ("x-bin", "\x01"))
    context = Context(metadata=metadata, request_id="r", deadline=3.0)
    wire = CODEC.encode_call(ServerLiveRequest(context=context))
    expected = (("traceparent", "00-1"), ("x-bin", "%01"), ("x-request-id", "r"))
    assert expected == wire.headers.pairs
    assert 3.0 == wire.deadline


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/infer_stream"])
def test_generated_request_id_yields_to_that_of_the_client(path: str) -> None:
    """A generated id is used unless the client sent one."""
    body = json.dumps({"inputs": [X_JSON]}).encode()
    for pairs, expected in (((), "made"), ((("X-Request-Id", "own"),), "own")):
        wire = HttpRequest("POST", path, headers=Headers(pairs), body=(body,))
        context = CODEC.decode_call(wire).context.changed(request_id=expected)
        assert context == CODEC.decode_call(wire, "made").context


def test_binary_outputs_are_not_copied() -> None:
    """Binary outputs are views both in a decoded and in an encoded response."""
    call = CODEC.decode_call(BINARY_REQUEST)
    data = np.arange(4, dtype="<i4").reshape(1, 4)
    reply = InferResponse(model=M, outputs=(array_tensor("y", data),))
    wire = CODEC.encode_reply(call, reply)
    assert np.shares_memory(data, np.frombuffer(wire.body[1], np.uint8))
    whole = HttpResponse(200, wire.headers, (bytes(wire.view),))
    read = CODEC.decode_reply(call, whole)
    assert np.shares_memory(as_numpy(read.outputs[0]), np.frombuffer(whole.view, np.uint8))


def test_raw_binary_request() -> None:
    """A length header of 0 makes the whole body one input that the model describes."""
    call: Any = CODEC.decode_call(post(b"", X_RAW))
    (whole,) = call.inputs
    assert ("", None, None) == (whole.name, whole.datatype, whole.shape)
    assert X_RAW == as_raw(whole)


def test_infer_replies_may_be_compressed() -> None:
    """Responses to inferences may be compressed; others are too short for it."""
    assert CODEC.encode_reply(JSON_CALL, InferResponse(model=M, outputs=(X,))).is_compressible
    assert not CODEC.encode_reply(CODEC.decode_call(get("/v2/health/live")), True).is_compressible


def test_call_of_another_frontend_gets_binary_outputs() -> None:
    """The reply to a call of another codec has binary outputs, which carry every datatype."""
    call = InferRequest(model=M)
    out = raw_tensor("y", Datatype.BF16, (1,), memoryview(b"\x00\x01"))
    reply = InferResponse(model=M, outputs=(out,))
    assert reply == CODEC.decode_reply(call, CODEC.encode_reply(call, reply))


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (raw_tensor("y", Datatype.FP16, (1,), memoryview(b"\x00\x3c")), "output 'y'.*binary_data"),
        (raw_tensor("y", Datatype.BF16, (1,), memoryview(b"\x80\x3f")), "output 'y'.*binary_data"),
        (items_tensor("y", (2,), (b"ok", b"\xff")), "output 'y'.*binary_data"),
        (Tensor("y", None, None, RawData(memoryview(b"\0"))), "'y' has no datatype"),
    ],
    ids=["fp16", "bf16", "not_utf8", "unknown"],
)
def test_output_without_a_json_form_is_rejected(output: Any, text: str) -> None:
    """The error for an output that JSON cannot carry has its name and suggests `binary_data`."""
    call = CODEC.decode_call(post({"inputs": [X_JSON]}))
    with pytest.raises(Unsupported, match=text):
        CODEC.encode_reply(call, InferResponse(model=M, outputs=(output,)))


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">u2"])
def test_big_endian_output_in_json_was_an_internal_error(dtype: str) -> None:
    """An array of the other byte order is written by its values."""
    reply = InferResponse(model=M, outputs=(array_tensor("y", np.array([1, 2], dtype)),))
    (read,) = CODEC.decode_reply(JSON_CALL, CODEC.encode_reply(JSON_CALL, reply)).outputs
    np.testing.assert_array_equal([1, 2], as_numpy(read))


def test_nan_outputs_are_null_in_json() -> None:
    """NaN is written as null and read as NaN; negative zero and extremes are kept."""
    values = np.array([np.nan, -0.0, 0.1, 3.4028235e38], "<f4")
    reply = InferResponse(model=M, outputs=(array_tensor("y", values),))
    wire = CODEC.encode_reply(JSON_CALL, reply)
    assert b'"data":[null,-0.0,0.1,3.4028234663852886e38]' in bytes(wire.view)
    read = as_numpy(CODEC.decode_reply(JSON_CALL, wire).outputs[0])
    np.testing.assert_array_equal(values, read)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_in_json_is_rejected(dtype: str, value: float) -> None:
    """The error has the output, the index and the alternatives; binary data carry an infinity."""
    reply = InferResponse(model=M, outputs=(array_tensor("y", np.array([np.nan, value], dtype)),))
    text = rf"output 'y' has {value} at index 1.*'binary_data'.*gRPC"
    with pytest.raises(Unsupported, match=text):
        CODEC.encode_reply(JSON_CALL, reply)
    binary = CODEC.decode_call(BINARY_REQUEST)
    (read,) = CODEC.decode_reply(binary, CODEC.encode_reply(binary, reply)).outputs
    np.testing.assert_array_equal(np.array([np.nan, value], dtype), as_numpy(read))


def test_ids_of_the_gateway_are_not_the_clients() -> None:
    """The upstream gets the call's request id, which is dropped from the reply; KServe needs one."""
    sent = JSON_CALL.with_context(request_id="r-9")
    assert "r-9" == document_of(CODEC.encode_call(sent))[0]["id"]
    wire = answer({"model_name": "m", "id": "r-9", "outputs": []})
    assert "" == CODEC.decode_reply(sent, wire).id
    kserve = codec(dialect="kserve").encode_call(infers())
    assert "gateway" == document_of(kserve)[0]["id"]


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.value)
def test_encodes_every_error(code: ErrorCode) -> None:
    """Each kind of error has its status and the text under `error`."""
    wire = CODEC.encode_error(None, ERROR_CLASSES[code]("it broke"))
    assert HTTP_STATUS[code] == wire.status
    text = "Deadline Exceeded: it broke" if code is ErrorCode.DEADLINE_EXCEEDED else "it broke"
    assert {"error": text} == json.loads(bytes(wire.view))
    assert "application/json" == wire.headers.get("content-type")


def test_error_details() -> None:
    """Errors have the headers `retry-after` or `allow`, and truncated texts."""
    for error in (Overloaded("full"), Unavailable("hung")):
        assert "1" == CODEC.encode_error(None, error).headers.get("retry-after")
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_call(HttpRequest("PUT", "/v2/models/m/infer"))
    wire = CODEC.encode_error(None, caught.value)
    assert (405, "POST") == (wire.status, wire.headers.get("allow"))
    long = document_of(CODEC.encode_error(None, InvalidRequest("x" * 5000)))[0]["error"]
    assert 1024 == len(long)


@pytest.mark.parametrize(
    "call", [InferRequest(model=M), StreamInferRequest(model=M, request=InferRequest(model=M))]
)
def test_not_ready_error_of_the_gateway_is_409(call: Call[Any]) -> None:
    """The gateway's own NotReady for an inference is 409; that of an upstream is 503."""
    assert 409 == CODEC.encode_error(call, NotReady("loading")).status
    assert 503 == codec(not_ready_status=503).encode_error(call, NotReady("loading")).status
    upstream = NotReady("loading", origin=Origin("trtis.grpc", GrpcResponse(())))
    assert 503 == CODEC.encode_error(call, upstream).status


def test_not_ready_status_is_an_option() -> None:
    """The status for a model that is not ready can be 409, as in KServe."""
    kserve = codec(not_ready_status=409)
    for found, status in ((CODEC, 503), (kserve, 409)):
        assert status == found.encode_reply(ModelReadyRequest(model=M), False).status
        assert 503 == found.encode_reply(ServerLiveRequest(), False).status
    assert 409 == kserve.encode_error(None, NotReady("loading")).status


INFINITE = array_tensor("y", np.array([np.inf, np.nan], "f4"))


@pytest.mark.parametrize(
    ("options", "words", "data"),
    [
        ({}, True, b"[Infinity,NaN]"),
        ({"nonfinite": "null"}, True, b"[null,null]"),
        ({"nonfinite": None}, False, b"[null,null]"),
        ({"nonfinite": "literal"}, False, b"[Infinity,NaN]"),
        ({"nonfinite": "refuse"}, True, None),
        ({}, False, None),
    ],
)
def test_nonfinite_values_follow_the_option_or_the_server(
    options: dict[str, Any], words: bool, data: bytes | None
) -> None:
    """Without the option, words are written for replies of servers that write words."""
    listener = codec(**options)
    reply = InferResponse(model=M, outputs=(INFINITE,), has_nonfinite_words=words)
    plain = listener.decode_call(post({"inputs": [X_JSON]}))
    flat = listener.decode_call(post({}, path="/v2/models/m/generate"))
    stream = listener.decode_call(post({}, path="/v2/models/m/generate_stream"))
    assert isinstance(stream, StreamInferRequest)
    writers: tuple[Callable[[], HttpResponse], ...] = (
        partial(listener.encode_reply, plain, reply),
        partial(listener.encode_reply, flat, reply),
        partial(listener.encode_item, stream, reply),
    )
    for write in writers:
        if data is None:
            with pytest.raises(Unsupported, match=r"inf at index 0.* 'nonfinite' allows it"):
                write()
        else:
            assert data in bytes(write().view)


def test_changed_reply_keeps_the_nonfinite_words_flag() -> None:
    """Layers that rename or complete a reply drop its origin only."""
    words = CODEC.decode_reply(InferRequest(model=M), answer({"outputs": [X_JSON]}))
    nulls = codec(dialect="mlserver").decode_reply(
        InferRequest(model=M), answer({"outputs": [X_JSON]})
    )
    assert words == nulls
    assert [True, False] == [each.changed(id="7").has_nonfinite_words for each in (words, nulls)]


def test_upstream_error_is_forwarded_unchanged() -> None:
    """Status and text of an upstream of the same protocol are kept."""
    call = InferRequest(model=M)
    with pytest.raises(InvalidRequest) as caught:
        CODEC.decode_reply(call, answer(b'{"error":"bad shape"}', status=422))
    wire = CODEC.encode_error(call, caught.value)
    assert (422, {"error": "bad shape"}) == (wire.status, document_of(wire)[0])
    foreign = InvalidRequest("no", origin=Origin("oip.grpc", object()))
    assert 400 == CODEC.encode_error(call, foreign).status


TRACEBACK = 'Traceback (most recent call last):\n  File "/srv/secret.py", line 3\n'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":"plain"}', "plain"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (
            b'{"detail":[{"loc":["body","inputs"],"msg":"missing"},{"msg":"other"}]}',
            "body.inputs: missing; other",
        ),
        (b'{"error":{"message":"inner"}}', "inner"),
        (b'{"message":"said"}', "said"),
        (b'{"error":"failed\\n\\nAt:\\n  model.py(87)\\n"}\n', "failed\n\nAt:\n  model.py(87)\n"),
        (b"failed\n", "failed"),
        (b"Internal Server Error", "Internal Server Error"),
        (f"{TRACEBACK}KeyError: 1\n".encode(), "KeyError: 1"),
        (json.dumps({"error": f"failed: {TRACEBACK}KeyError: 1\n"}).encode(), "KeyError: 1"),
        (json.dumps({"detail": f"{TRACEBACK}KeyError: 1"}, indent=2).encode(), "KeyError: 1"),
        (json.dumps({"error": f"{TRACEBACK * 2000}KeyError: 1"}).encode(), "KeyError: 1"),
        (b"", "HTTP status 500 without a text"),
        (b"{}", "{}"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_reads_error_texts(body: bytes, expected: str) -> None:
    """The text of an error response is found in each of its forms."""
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_reply(InferRequest(model=M), answer(body, status=500))
    assert expected == caught.value.message
    assert caught.value.origin is not None


@pytest.mark.parametrize("nested", [b"[%b]", b'{"a":%b}'])
def test_deeply_nested_error_text_is_shown_unparsed(nested: bytes) -> None:
    """The error stays that of the upstream; no recursion causes an internal error."""
    value = b"1"
    for _ in range(600):
        value = nested % value
    with pytest.raises(GatewayError, match=r'^{"error":') as caught:
        CODEC.decode_reply(InferRequest(model=M), answer(b'{"error":%b}' % value, status=500))
    assert ErrorCode.UPSTREAM == caught.value.code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, ErrorCode.NOT_FOUND),
        (409, ErrorCode.NOT_READY),
        (422, ErrorCode.INVALID_ARGUMENT),
        (429, ErrorCode.OVERLOADED),
        (501, ErrorCode.UNSUPPORTED),
        (503, ErrorCode.UNAVAILABLE),
        (504, ErrorCode.DEADLINE_EXCEEDED),
        (500, ErrorCode.UPSTREAM),
        (302, ErrorCode.BAD_UPSTREAM),
    ],
)
def test_reads_error_statuses(status: int, code: ErrorCode) -> None:
    """Each status of a server is read as one error code; 404 means that there is no model."""
    calls: tuple[Call[Any], ...] = (InferRequest(model=M), ModelMetadataRequest(model=M))
    for call in calls:
        with pytest.raises(GatewayError) as caught:
            CODEC.decode_reply(call, answer(b"no", status=status))
        assert code == caught.value.code
        assert isinstance(caught.value, ModelNotFound) is (status == 404)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"", True),
        (200, b'{"ready":true}', True),
        (200, b'{"name":"m","ready":false}', False),
        (200, b'{"ready":"False"}', False),
        (200, b"ok", True),
        (400, b'{"error":"no"}', False),
        (404, b"", False),
        (503, b"", False),
        (500, b"boom", None),
    ],
)
def test_reads_readiness(status: int, body: bytes, expected: bool | None) -> None:
    """Status 200 is ready unless the body denies it; 4xx and 503 are not ready; 500 is raised."""
    for call in (ModelReadyRequest(model=M), ServerReadyRequest()):
        if expected is not None:
            assert expected is CODEC.decode_reply(call, answer(body, status=status))
            continue
        with pytest.raises(GatewayError):
            CODEC.decode_reply(call, answer(body, status=status))


def test_reads_a_repository_index() -> None:
    """The index is read in the forms of Triton, MLServer and KServe."""
    call = RepositoryIndexRequest()
    body = compact([{"name": "a", "version": "1", "state": "READY"}, {"name": "b", "state": None}])
    ready = RepositoryEntry("a", "1", ModelState.READY)
    assert (ready, RepositoryEntry("b")) == CODEC.decode_reply(call, answer(body))
    dotted = compact([{"name": "a", "version": "1", "state": "State.READY"}])
    assert (ready,) == CODEC.decode_reply(call, answer(dotted))
    assert (RepositoryEntry("k"),) == CODEC.decode_reply(call, answer(b'{"models":["k"]}'))


@pytest.mark.parametrize("body", [b"[1]", b"3", b'{"a":1}', b"{", b'[{"version":"1"}]'])
def test_invalid_index_is_rejected(body: bytes) -> None:
    """An index of a wrong form raises InvalidRequest."""
    with pytest.raises(InvalidRequest):
        CODEC.decode_reply(RepositoryIndexRequest(), answer(body))


@pytest.mark.parametrize("body", [b"[]", b'{"ready": 1}', b"{"])
def test_malformed_index_request_is_rejected(body: bytes) -> None:
    """A body that is not an index request raises MalformedMessage."""
    with pytest.raises(MalformedMessage):
        codec(**EVERYTHING).decode_call(HttpRequest("POST", "/v2/repository/index", body=(body,)))


def test_index_request_of_dialects() -> None:
    """The index request to Triton and MLServer has a body."""
    for dialect in ("triton", "mlserver"):
        wire = codec(dialect=dialect).encode_call(RepositoryIndexRequest(ready_only=True))
        assert ("POST", "/v2/repository/index") == (wire.method, wire.path)
        assert b'{"ready":true}' == bytes(wire.view)


def test_reads_sparse_metadata() -> None:
    """Servers may omit members; an unknown datatype or shape is None."""
    call = ModelMetadataRequest(model=M)
    body = compact(
        {"inputs": [{"name": "x", "datatype": "STRING", "shape": ["a"]}], "outputs": None}
    )
    metadata = CODEC.decode_reply(call, answer(body))
    assert ("m", (), ()) == (metadata.name, metadata.versions, metadata.outputs)
    assert (None, None) == (metadata.inputs[0].datatype, metadata.inputs[0].shape)
    server = CODEC.decode_reply(ServerMetadataRequest(), answer(b'{"name":"x"}'))
    assert ("x", "", ()) == (server.name, server.version, server.extensions)


NOT_UTF8 = items_tensor("x", (2,), (b"a", b"\xff"))
HALVES = raw_tensor("x", Datatype.BF16, (1,), memoryview(b"\x80\x3f"))


@pytest.mark.parametrize(
    ("dialect", "call", "text"),
    [
        ("kserve", infers(model=ModelRef("m", "1")), "has no versions"),
        ("triton", infers(parameters={"k": 1 << 63}), "'k'"),
        ("ovms", infers(parameters={"k": float("inf")}), "'k'"),
        ("kserve", infers(outputs=(RequestedOutput("y", classes=2),)), "class"),
        ("triton", infers(model=None), "no model"),
        ("triton", infers(inputs=(X.renamed(""),)), "no name"),
        ("triton", StreamInferRequest(request=InferRequest(model=M)), "names no model"),
        ("mlserver", infers(inputs=(HALVES,)), r"input 'x'.*gRPC"),
        ("mlserver", infers(inputs=(NOT_UTF8,)), r"input 'x'.*gRPC"),
        ("kserve", infers(inputs=(NOT_UTF8,)), "index 1"),
    ],
)
def test_calls_unsupported_by_a_dialect_are_rejected(
    dialect: str, call: Call[Any], text: str
) -> None:
    """A call that a server would misread, or whose values JSON would change, is not sent."""
    with pytest.raises(Unsupported, match=text):
        codec(dialect=dialect).encode_call(call)


def test_mlserver_gets_half_floats_as_numbers() -> None:
    """FP16 is sent to MLServer as numbers, and read from it exactly."""
    half = array_tensor("x", np.array([0.1, -65504], "<f2"))
    call = InferRequest(model=M, inputs=(half,))
    document, _ = document_of(codec(dialect="mlserver").encode_call(call))
    reply = answer({"model_name": "m", "outputs": document["inputs"]})
    assert (half,) == codec(dialect="mlserver").decode_reply(call, reply).outputs


def test_stream_call_has_no_single_reply() -> None:
    """Encoding a single reply of a stream call raises Unsupported."""
    call: Any = StreamInferRequest(request=InferRequest(model=M))
    with pytest.raises(Unsupported, match="stream infer"):
        CODEC.encode_reply(call, None)


@pytest.mark.parametrize(
    ("body", "ready_only"), [(b"", False), (b"{}", False), (b'{"ready": true}', True)]
)
def test_writes_the_index_as_triton_does(body: bytes, ready_only: bool) -> None:
    """The index lists every version without empty members; the body of its request is optional."""
    listener = codec(**EVERYTHING)
    call = listener.decode_call(HttpRequest("POST", "/v2/repository/index", body=(body,)))
    assert RepositoryIndexRequest(ready_only=ready_only) == call.changed(context=NO_CONTEXT)
    index = (
        RepositoryEntry("m", "1", ModelState.READY),
        RepositoryEntry("m", "2", ModelState.UNAVAILABLE, "no memory"),
        RepositoryEntry("far"),
    )
    expected = [
        {"name": "m", "version": "1", "state": "READY"},
        {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": "no memory"},
        {"name": "far"},
    ]
    assert expected == json.loads(bytes(CODEC.encode_reply(call, index).view))
