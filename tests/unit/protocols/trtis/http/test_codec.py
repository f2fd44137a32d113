"""Tests of TensorRT v1 over HTTP for clients: requests are decoded, responses encoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, ModelRef, Need, Origin
from gateway.ir.errors import (
    DeadlineExceeded,
    Forbidden,
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    TooLarge,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import RepositoryEntry
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw, items_tensor
from gateway.protocols.trtis import SPEC
from gateway.protocols.trtis.errors import TrtisStatus
from gateway.protocols.trtis.http.codec import HttpCodec
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.cases.trtis_http import REPLY, SYSTEM, X_RAW, M, get, post, raw

OPEN = {"model_control": True, "repository_index": True}
CODEC: Any = HttpCodec(DEFAULT_LIMITS, {})
WIDE: Any = HttpCodec(DEFAULT_LIMITS, OPEN)
HEADER = 'batch_size: 2 input { name: "x" dims: 2 } output { name: "y" }'


def status_of(wire: HttpResponse) -> pb.RequestStatus:
    return text_format.Parse(wire.headers.get("nv-status") or "", pb.RequestStatus())


def line_of(call: Any, reply: InferResponse) -> str:
    """Return the header line of a response."""
    line: str | None = CODEC.encode_reply(call, reply).headers.get("nv-inferresponse")
    assert line is not None
    return line


def test_spec_exports_both_codecs() -> None:
    """SPEC creates both codecs and claims paths and methods."""
    assert SPEC.name == "trtis"
    assert SPEC.classifies
    assert SPEC.http is not None
    assert SPEC.http.prefixes == ("/api",)
    assert SPEC.http.codec(DEFAULT_LIMITS, {}).name == "trtis.http"
    assert SPEC.grpc is not None
    assert SPEC.grpc.codec(DEFAULT_LIMITS, {}).name == "trtis.grpc"
    assert len(SPEC.grpc.methods) == 8
    assert b"GRPCService" in SPEC.grpc.file_descriptors()[0]


def test_context_holds_headers_request_id_and_deadline() -> None:
    """Headers, request id, deadline and needs are in the context."""
    headers = Headers((("X-Request-Id", "abc"), ("X-Other", " v")))
    found = CODEC.decode_call(HttpRequest("GET", "/api/health/live", "", headers, (), 5.0))
    assert found.context.request_id == "abc"
    assert found.context.metadata == (("x-request-id", "abc"), ("x-other", " v"))
    assert found.context.deadline == 5.0
    needs = {Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.BATCHING, Need.NUMERIC_VERSIONS}
    assert found.context.needs == needs
    bad = Headers((("X-Request-Id", "a\x01"),))
    assert CODEC.decode_call(HttpRequest("GET", "/api/status", "", bad)).context.request_id == ""


def test_inputs_of_unknown_size_are_slices() -> None:
    """Where datatypes determine the size of an input, each is a slice of the body."""
    header = 'batch_size: 1 input { name: "a" } input { name: "b" dims: 0 } input { name: "c" }'
    found = CODEC.decode_call(post(header, b"12345"))
    slices = [one.data for one in found.inputs]
    assert [(one.index, one.declared_bytes) for one in slices] == [(0, None), (1, 0), (2, None)]
    assert [one.nbytes for one in found.inputs] == [5, 0, 0]


def test_inputs_of_declared_size_are_views() -> None:
    """Where all sizes but one are declared, the inputs are views of the body."""
    header = (
        'batch_size: 1 input { name: "a" batch_byte_size: 2 } input { name: "b" } '
        'input { name: "c" batch_byte_size: 1 }'
    )
    body = b"12345"
    found = CODEC.decode_call(post(header, body))
    assert [b"12", b"34", b"5"] == [bytes(as_raw(one)) for one in found.inputs]
    view = np.frombuffer(as_raw(found.inputs[1]), np.uint8)
    assert np.shares_memory(view, np.frombuffer(body, np.uint8))


SIZED = "batch_size: 1 input { name: 'a' batch_byte_size: 2 }"
SHARED = "batch_size: 1 input { name: 'a' batch_byte_size: 8 shared_memory { byte_size: 9 } }"
SHARED_CLASSES = (
    "batch_size: 1 output { name: 'a' cls { count: 1 } shared_memory { byte_size: 9 } }"
)
REST = "batch_size: 1 input { name: 'a' } input { name: 'b' batch_byte_size: 9 }"


@pytest.mark.parametrize(
    ("header", "body", "failure", "text"),
    [
        (SIZED, b"1", InvalidTensor, "need 2"),
        (SIZED, b"123", InvalidTensor, "3 bytes"),
        ("batch_size: 1", b"1", InvalidTensor, "0 inputs need 0"),
        (REST, b"1", InvalidTensor, "at least 9"),
        ("batch_size: 0", b"", InvalidRequest, "batch_size is 0"),
        ("", b"", InvalidRequest, "batch_size is 0"),
        ("batch_size: 1 input { }", b"", InvalidRequest, "has no name"),
        ("batch_size: 1 output { name: 'o' cls { } }", b"", InvalidRequest, "0 classes"),
        ("batch_size: 1 input {name: 'a'} input {name: 'a'}", b"", InvalidTensor, "2 times"),
        ("batch_size: 1 output {name: 'a'} output {name: 'a'}", b"", InvalidTensor, "2 times"),
        ("batch_size: 1 input { name: 'a' dims: -1 }", b"", InvalidTensor, "negative"),
        ("batch_size: 1 input { name: 'a\\n' }", b"", InvalidRequest, "control"),
        ("batch_size: 4294967295 input { name: 'a' dims: 9 }", b"", TooLarge, "elements"),
        ("batch_size: x", b"", MalformedMessage, "not an integer"),
        (None, b"", InvalidRequest, "NV-InferRequest"),
        # Sizes of a shared input must agree; classes cannot be in shared memory.
        (SHARED, b"", InvalidRequest, "shared memory"),
        (SHARED_CLASSES, b"", InvalidRequest, "shared memory"),
    ],
)
def test_rejects_invalid_inferences(
    header: str | None, body: bytes, failure: type[GatewayError], text: str
) -> None:
    """The response has status 400 and an empty id."""
    with pytest.raises(failure, match=text) as caught:
        CODEC.decode_call(post(header, body))
    written = CODEC.encode_error(None, caught.value)
    assert written.status == 400
    assert status_of(written).code in (pb.INVALID_ARG, pb.NOT_FOUND)
    if header is not None:
        assert written.headers.get("nv-inferresponse") == ""
        assert written.body == ()


def test_rejected_inference_echoes_its_id() -> None:
    """The response has the id even when the rest was invalid."""
    with pytest.raises(InvalidRequest) as caught:
        CODEC.decode_call(post("id: 77 batch_size: 0"))
    assert CODEC.encode_error(None, caught.value).headers.get("nv-inferresponse") == "id: 77"


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/nope",
        "/api/health/dead",
        "/api/infer",
        "/api/infer/",
        "/api/infer/m/x",
        "/api/infer/m/1/2",
        "/api/status/a/b",
        "/api/modelrepository/index",
        "/api/sharedmemorycontrol/register/a/b/0/1",
        "/api/sharedmemorycontrol/register/a//b/0/x",
        "/api/repository",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_path_has_an_empty_400_response(path: str, method: str) -> None:
    """The response has neither headers nor a body."""
    with pytest.raises(NotFound) as caught:
        CODEC.decode_call(HttpRequest(method, path))
    assert CODEC.encode_error(None, caught.value) == HttpResponse(400)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/infer/m"),
        ("PUT", "/api/infer/m/1"),
        ("POST", "/api/status"),
        ("POST", "/api/health/live"),
        ("GET", "/api/modelcontrol/load/m"),
        ("GET", "/api/sharedmemorycontrol/unregisterall"),
        ("POST", "/api/repository/index"),
    ],
)
def test_wrong_method_is_405(method: str, path: str) -> None:
    """A known path with another method has an empty 405 response, with the right one."""
    with pytest.raises(InvalidRequest, match=path) as caught:
        CODEC.decode_call(HttpRequest(method, path))
    allow = "POST" if method in {"GET", "PUT"} else "GET, HEAD"
    headers = Headers((("Allow", allow),))
    assert CODEC.encode_error(None, caught.value) == HttpResponse(405, headers)


def test_versions_are_numbers() -> None:
    """A version in the path is decoded as a number."""
    assert CODEC.decode_call(post(HEADER, X_RAW, "/api/infer/m/007")).model == ModelRef("m", "7")
    assert CODEC.decode_call(post(HEADER, X_RAW, "/api/infer/m/0")).model == ModelRef("m", "0")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/api/health/live", ServerLiveRequest), ("/api/health/ready", ServerReadyRequest)],
)
def test_health_is_encoded_as_the_status_code(path: str, kind: type) -> None:
    """Health responses have no body; not ready is 400 with SUCCESS."""
    found = CODEC.decode_call(get(path))
    assert kind is type(found)
    for healthy, code in ((True, 200), (False, 400)):
        written = CODEC.encode_reply(found, healthy)
        assert (written.status, written.body) == (code, ())
        assert status_of(written).code == pb.SUCCESS


def test_profile_does_nothing() -> None:
    """The response is that of servers from 1.5 on; an unknown command is UNKNOWN."""
    written = CODEC.encode_reply(CODEC.decode_call(get("/api/profile?cmd=start")), True)
    assert (written.status, written.body) == (200, ())
    with pytest.raises(InvalidRequest, match="'run': expected start or stop") as caught:
        CODEC.decode_call(get("/api/profile?cmd=run"))
    assert status_of(CODEC.encode_error(None, caught.value)).code == pb.UNKNOWN


@pytest.mark.parametrize(
    "wire",
    [
        post(None, target="/api/modelcontrol/load/m"),
        post(None, target="/api/modelcontrol/unload/m"),
        get("/api/repository/index"),
    ],
)
def test_control_and_index_are_disabled_by_default(wire: HttpRequest) -> None:
    """They are rejected unless the listener allows them."""
    with pytest.raises(Forbidden, match="not enabled") as caught:
        CODEC.decode_call(wire)
    written = CODEC.encode_error(None, caught.value)
    assert (written.status, written.body) == (400, ())
    assert status_of(written).code == pb.UNAVAILABLE
    assert WIDE.decode_call(wire).context.protocol == "trtis.http"


@pytest.mark.parametrize(
    ("target", "body", "text"),
    [
        ("cudaregister/c/64/1", b"short", "5 bytes: a CUDA handle has 64"),
        ("cudaregister/c/64/99999999999", bytes(64), "device 99999999999"),
        ("register/r//k/0/99999999999999999999999", b"", "byte_size 9"),
    ],
)
def test_rejects_invalid_registrations(target: str, body: bytes, text: str) -> None:
    """A handle has 64 bytes, and numbers fit their fields."""
    with pytest.raises(InvalidRequest, match=text):
        WIDE.decode_call(post(None, body, f"/api/sharedmemorycontrol/{target}"))


@pytest.mark.parametrize("form", ["binary", "text"])
def test_encodes_inference_reply(form: str) -> None:
    """Raw outputs precede the header, in the requested order; nothing is copied."""
    call = CODEC.decode_call(post("id: 4 " + HEADER, X_RAW, f"/api/infer/m?format={form}"))
    extra = raw("z", Datatype.UINT8, (1,), b"ab")
    written = CODEC.encode_reply(call, REPLY.changed(outputs=(extra, *REPLY.outputs)))
    line = 'model_name: "m" model_version: 3 batch_size: 2 output { name: "y" raw { dims: 2 batch_byte_size: 16 } } id: 4'
    assert written.headers.get("nv-inferresponse") == line
    assert [name for name, _ in written.headers] == [
        "NV-InferResponse",
        "NV-Status",
        "Content-Type",
    ]
    view, trailer = written.body
    assert bytes(view) == X_RAW
    assert np.shares_memory(np.frombuffer(view, np.uint8), np.frombuffer(X_RAW, np.uint8))
    expected = text_format.Parse(line, pb.InferResponseHeader())
    if form == "binary":
        assert expected == pb.InferResponseHeader.FromString(bytes(trailer))
    else:
        assert expected == text_format.Parse(bytes(trailer), pb.InferResponseHeader())
        assert b"\n" in bytes(trailer)


def test_outputs_are_returned_only_if_requested() -> None:
    """Later protocols return all outputs by default."""
    call = CODEC.decode_call(post('batch_size: 2 input { name: "x" }', X_RAW))
    written = CODEC.encode_reply(call, REPLY)
    assert "output" not in (written.headers.get("nv-inferresponse") or "output")
    assert len(written.body) == 1


def test_classes_are_written_from_their_elements() -> None:
    """Elements value:index:label become batch_classes, as many for each item."""
    call = CODEC.decode_call(post(CLASSES))
    reply = REPLY.changed(**classes(b"9.5:3:c:at", b"1:0", b"inf:2:", b"nan:1:dog"))
    line = line_of(call, reply)
    found = text_format.Parse(line, pb.InferResponseHeader()).output[0]
    assert not found.HasField("raw")
    labels = [[(one.idx, one.label) for one in classes.cls] for classes in found.batch_classes]
    assert labels == [[(3, "c:at"), (0, "")], [(2, ""), (1, "dog")]]
    assert found.batch_classes[0].cls[0].value == 9.5
    assert line_of(call, REPLY.changed(**classes())).count("batch_classes") == 2


@pytest.mark.parametrize(("size", "fits"), [(1024, True), (1025, False)])
def test_region_names_have_the_same_limit_as_over_grpc(size: int, fits: bool) -> None:
    """A region of one carrier can be unregistered over the other."""
    request = post(None, target=f"/api/sharedmemorycontrol/unregister/{'r' * size}")
    if fits:
        call = WIDE.decode_call(request)
        assert SharedUnregisterRequest(region="r" * size, context=call.context) == call
        return
    with pytest.raises(TooLarge, match="region has 1025 bytes") as caught:
        WIDE.decode_call(request)
    assert caught.value.limit == "name_bytes"


def test_billions_of_items_without_classes_are_rejected() -> None:
    """Each item has an entry in the response, and a short request may name any batch size."""
    size = (1 << 32) - 1
    call = CODEC.decode_call(post(f'batch_size: {size} output {{ name: "y" cls {{ count: 2 }} }}'))
    reply = REPLY.changed(outputs=(items_tensor("y", (0,), []),), batch_size=size)
    with pytest.raises(TooLarge, match=f"'y' has {size} items without classes, at most 100000"):
        CODEC.encode_reply(call, reply)


CLASSES = 'batch_size: 2 output { name: "y" cls { count: 2 } }'
BF16 = raw("y", Datatype.BF16, (2,), bytes(8))
SHAPELESS = Tensor("y", None, None, RawData(memoryview(b"1")))


def classes(*items: bytes) -> dict[str, Any]:
    return {"outputs": (items_tensor("y", (len(items),), list(items)),)}


@pytest.mark.parametrize(
    ("header", "changes", "failure", "text"),
    [
        (CLASSES, {"outputs": ()}, UpstreamProtocolError, "lacks the requested output 'y'"),
        (CLASSES, classes(b"1:1", b"1:1", b"1:1"), UpstreamProtocolError, "3 classes"),
        (CLASSES, classes(b"1:1", b"x"), UpstreamProtocolError, "value:index:label"),
        (CLASSES, classes(b"1:1", b"x:1"), UpstreamProtocolError, "value:index:label"),
        (CLASSES, classes(b"1:1", b"1:9999999999"), UpstreamProtocolError, "value:index:label"),
        (CLASSES, classes(b"1:1", b"1:1:\xff"), UpstreamProtocolError, "value:index:label"),
        (HEADER, {"batch_size": 3}, UpstreamProtocolError, "batch size 3: the request has 2"),
        (HEADER, {"outputs": (BF16,)}, Unsupported, "BF16, which TensorRT v1 cannot represent"),
        (HEADER, {"outputs": (SHAPELESS,)}, Unsupported, "'y' has no shape"),
    ],
)
def test_rejects_replies_that_do_not_match_the_request(
    header: str, changes: dict[str, Any], failure: type[GatewayError], text: str
) -> None:
    """A reply that does not match the request is an error of the target."""
    call = CODEC.decode_call(post(header, X_RAW if header == HEADER else b""))
    with pytest.raises(failure, match=text):
        CODEC.encode_reply(call, REPLY.changed(**changes))


def test_bytes_outputs_are_sent_in_wire_form() -> None:
    """A BYTES output is its elements with their lengths, without a datatype in the header."""
    call = CODEC.decode_call(post(HEADER, X_RAW))
    reply = REPLY.changed(**classes(b"ab", b""))
    expected = pb.InferResponseHeader.Output(name="y", raw={"dims": [2], "batch_byte_size": 10})
    found = text_format.Parse(line_of(call, reply), pb.InferResponseHeader())
    assert [expected] == list(found.output)
    assert b"\x02\0\0\0ab\0\0\0\0" == bytes(CODEC.encode_reply(call, reply).body[0])


def test_output_in_shared_memory_has_no_bytes_in_the_body() -> None:
    """The header has only the size of such an output."""
    header = 'batch_size: 2 output { name: "y" shared_memory { name: "r" byte_size: 16 } }'
    call = WIDE.decode_call(post(header, target="/api/infer/m?format=binary"))
    assert call.outputs == (RequestedOutput("y", shared=SharedMemoryData("r", 0, 16)),)
    output = Tensor("y", None, (2,), SharedMemoryData("r", 0, 16))
    written = WIDE.encode_reply(call, REPLY.changed(outputs=(output,)))
    assert "batch_byte_size: 16" in (written.headers.get("nv-inferresponse") or "")
    assert len(written.body) == 1


@pytest.mark.parametrize(
    ("version", "number"), [("3", 3), ("", 1), ("v2", 1), ("0", 1), ("9223372036854775808", 1)]
)
def test_versions_become_numbers(version: str, number: int) -> None:
    """A version that v1 has no number for is encoded as 1."""
    call = CODEC.decode_call(post(HEADER, X_RAW))
    line = line_of(call, REPLY.changed(model=ModelRef("m", version)))
    assert f"model_version: {number} " in line


def test_scalar_outputs_have_one_dim() -> None:
    """An item without dimensions has dims [1], since clients read no dims as no data."""
    call = CODEC.decode_call(post(HEADER, X_RAW))
    reply = REPLY.changed(outputs=(raw("y", Datatype.UINT8, (), b"ab"),))
    assert "dims: 1 batch_byte_size: 2" in line_of(call, reply)


INFER = InferRequest(model=M, id="5")


@pytest.mark.parametrize(
    ("call", "error", "code"),
    [
        (INFER, ModelNotFound("no"), pb.UNAVAILABLE),
        (INFER, InvalidRequest("no"), pb.INVALID_ARG),
        (INFER, DeadlineExceeded("late"), pb.UNAVAILABLE),
        (ServerStatusRequest(about=M), ModelNotFound("no"), pb.INVALID_ARG),
        (ModelLoadRequest(model=M), Unsupported("no"), pb.UNAVAILABLE),
        (ModelLoadRequest(model=M), ModelNotFound("no"), pb.NOT_FOUND),
        (SharedRegisterRequest(region=SYSTEM), Unsupported("no"), pb.UNSUPPORTED),
        (None, TooLarge("head"), pb.INVALID_ARG),
    ],
)
def test_errors_have_the_protocols_codes(call: Any, error: GatewayError, code: int) -> None:
    """Every failure is 400 without a body; the code is a real server's."""
    written = CODEC.encode_error(call, error)
    found = status_of(written)
    assert (written.status, written.body) == (400, ())
    assert (found.code, found.msg) == (code, error.message)
    assert written.headers.get("nv-inferresponse") == ("id: 5" if call is INFER else None)


def test_error_texts_cannot_break_the_header() -> None:
    """Texts are escaped to ASCII and cut to the limit."""
    codec = HttpCodec(MessageLimits(error_text_bytes=32), {"server_id": "me"})
    text = 'Zoë said "no"\r\nNV-Status: x' + "y" * 100
    written = codec.encode_error(None, InvalidRequest(text))
    line = written.headers.get("nv-status") or ""
    assert line.isascii()
    assert line.isprintable()
    assert status_of(written).msg.startswith('Zoë said "no"\r\n')
    assert status_of(written).msg.endswith("...")
    assert status_of(written).server_id == "me"


def test_status_of_an_upstream_is_forwarded() -> None:
    """An error of a real v1 server keeps its code and text, over either carrier."""
    origin = Origin("trtis.grpc", None, TrtisStatus(pb.ALREADY_EXISTS, "taken"))
    found = status_of(CODEC.encode_error(INFER, InvalidRequest("x", origin=origin)))
    assert (found.code, found.msg) == (pb.ALREADY_EXISTS, "taken")


def test_responses_have_increasing_request_ids() -> None:
    """Every response has a number of its own."""
    codec: Any = HttpCodec(DEFAULT_LIMITS, {})
    call = codec.decode_call(get("/api/health/live"))
    assert [status_of(codec.encode_reply(call, True)).request_id for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("form", ["binary", "text", "json", "strange"])
def test_index_is_encoded_in_every_form(form: str) -> None:
    """Binary is the message, JSON its mapping; anything else is text, as for real servers."""
    call = WIDE.decode_call(get(f"/api/repository/index?format={form}"))
    assert isinstance(call, RepositoryIndexRequest)
    entries = (RepositoryEntry("a", "1"), RepositoryEntry("a", "2"), RepositoryEntry("b"))
    written = WIDE.encode_reply(call, entries)
    expected = pb.ModelRepositoryIndex(models=[{"name": "a"}, {"name": "b"}])
    body = bytes(written.view)
    if form == "binary":
        assert pb.ModelRepositoryIndex.FromString(body) == expected
    elif form == "json":
        assert body == b'{"models": [{"name": "a"}, {"name": "b"}]}'
    else:
        assert text_format.Parse(body, pb.ModelRepositoryIndex()) == expected


def test_regions_are_encoded_and_decoded() -> None:
    """The status of shared memory is preserved; control responses are empty."""
    call = WIDE.decode_call(get("/api/sharedmemorycontrol/status?format=binary"))
    assert isinstance(call, SharedStatusRequest)
    written = WIDE.encode_reply(call, (SYSTEM,))
    assert (SYSTEM,) == WIDE.decode_reply(SharedStatusRequest(), written)
    done = WIDE.encode_reply(SharedUnregisterRequest(), None)
    assert (done.status, done.body, len(done.headers.pairs)) == (200, (), 1)


def test_streams_and_other_calls_are_unsupported() -> None:
    """HTTP has no streams, and no response to calls that v1 lacks."""
    stream = StreamInferRequest(model=M, request=INFER)
    item = InferResponse(model=M, outputs=())
    with pytest.raises(Unsupported, match="stream infer"):
        CODEC.encode_item(stream, item)
    with pytest.raises(Unsupported, match="stream infer"):
        CODEC.decode_item(stream, HttpResponse(200))
    with pytest.raises(Unsupported, match="server metadata"):
        CODEC.encode_reply(ServerMetadataRequest(), None)


def test_sequence_and_schedule_are_decoded() -> None:
    """Correlation id, flags, priority and timeout reach the call; flags alone do nothing."""
    header = "batch_size: 1 correlation_id: 9223372036854775813 flags: 1 priority: 2 timeout_microseconds: 7"
    found = CODEC.decode_call(post(header))
    assert found.sequence == CallSequence(2**63 + 5, start=True, end=False)
    assert (found.priority, found.timeout_us) == (2, 7)
    assert CODEC.decode_call(post("batch_size: 1 flags: 3")).sequence is None


def test_header_lookup_ignores_case() -> None:
    """Header names have no case."""
    wire = HttpRequest("POST", "/api/infer/m", "", Headers((("nv-INFERREQUEST", "batch_size: 1"),)))
    assert CODEC.decode_call(wire).batch_size == 1


def test_header_over_the_cache_limit_is_decoded() -> None:
    """A header that is too long for the cache is decoded, too."""
    header = "batch_size: 1 " + " ".join(f'output {{ name: "o{n}" }}' for n in range(250))
    assert len(CODEC.decode_call(post(header)).outputs) == 250


def test_query_with_too_many_parameters_is_ignored() -> None:
    """The format is then the default, text."""
    many = "&".join(f"a{n}=1" for n in range(99)) + "&format=binary"
    call = CODEC.decode_call(HttpRequest("GET", "/api/status", many))
    assert isinstance(call, ServerStatusRequest)
    assert call.context.origin is not None
    assert call.context.origin.form.format == "text"
