"""Every golden message of grps: valid ones match the index, all others are rejected.

The files were recorded from the Python server 1.1.0 and its clients, or built from the field tables
where the C++ server cannot be run; `index.json` has the source of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    ServerSwitchRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    TooLarge,
    UpstreamError,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import ModelState, RepositoryEntry, ServerMetadata
from gateway.ir.tensors.tensor import RequestedOutput, as_items, as_numpy
from gateway.protocols.grps.brpc.codec import BrpcCodec
from gateway.protocols.grps.brpc.framing import BaiduFramer, looks_like, server_framer, split_frame
from gateway.protocols.grps.errors import Unreadable, brpc_code_of, ends_call
from gateway.protocols.grps.grpc import SERVICE, GrpcCodec
from gateway.protocols.grps.http.codec import HttpCodec
from gateway.protocols.grps.json.message import read_response, write_json
from gateway.protocols.grps.messages import ContentFormat, Flag
from gateway.protocols.grps.protobuf.message import read_message, write_message
from gateway.schema.baidu_std_pb2 import RpcMeta
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame

GOLDEN = Path(__file__).parents[3] / "golden" / "grps"
ENTRIES: list[dict[str, Any]] = json.loads((GOLDEN / "index.json").read_text())["entries"]
LIMITS = DEFAULT_LIMITS
# Recorded documents have no number that is read a second time.
NO_TEXT = memoryview(b"")
OPTIONS = {"default_model": "m"}
HTTP = HttpCodec(LIMITS, OPTIONS)
GRPC = GrpcCodec(LIMITS, OPTIONS)
BRPC = BrpcCodec(LIMITS, OPTIONS)
JSON_HEADERS = Headers((("Content-Type", "application/json"),))

# Not encoded as the library does: the messages are decoded, but not encoded the same.
UNLIKE = {
    "pb/req_unpacked.bin",
    "pb/req_oneof_twice.bin",
    "pb/req_unknown_field.bin",
    "pb/res_model_meta_404_cpp.bin",
}
CALLS: dict[str, type[Call[Any]]] = {
    "live": ServerLiveRequest,
    "online": ServerSwitchRequest,
    "ready": ServerReadyRequest,
    "predict_str": InferRequest,
    "predict_str_streaming": StreamInferRequest,
    "predict_gtensors": InferRequest,
    "predict_gmap": InferRequest,
    "predict_ndarray": InferRequest,
    "predict_octet": InferRequest,
    "metadata_server": ServerStatusRequest,
    "metadata_model": ModelMetadataRequest,
    "offline": ServerSwitchRequest,
}
METHODS: dict[str, type[Call[Any]]] = {
    "Online": ServerSwitchRequest,
    "Offline": ServerSwitchRequest,
    "CheckLiveness": ServerLiveRequest,
    "CheckReadiness": ServerReadyRequest,
    "Predict": InferRequest,
    "ServerMetadata": ServerStatusRequest,
    "ModelMetadata": ModelMetadataRequest,
}
CODES = {
    **dict.fromkeys(("neg_zero_body", "neg_meta_no_request"), 1001),
    **dict.fromkeys(("neg_response_sent_to_server", "neg_unknown_service_short"), 1001),
    **dict.fromkeys(("neg_unknown_method", "neg_streaming_method"), 1002),
    **dict.fromkeys(("neg_predictbyhttp_method", "neg_unknown_service_full"), 1002),
    **dict.fromkeys(("neg_grpc_service_name",), 1002),
    **dict.fromkeys(("req_new_json_body", "neg_body_garbage", "neg_gzip_corrupt"), 1003),
    **dict.fromkeys(("neg_gzip_truncated", "neg_gzip_says_none", "neg_gzip_bomb_32m"), 1003),
    **dict.fromkeys(("neg_snappy_lying_length", "neg_snappy_framed"), 1003),
    **dict.fromkeys(("neg_compress_lz4", "neg_compress_99"), 1003),
    **dict.fromkeys(("neg_attachment_gt_payload", "neg_attachment_negative"), 1003),
}
"""Files of frames whose response has an error code."""
CLOSED = {
    *("neg_bad_magic", "neg_magic_lowercase", "neg_truncated_header", "neg_truncated_meta"),
    *("neg_truncated_body", "neg_body_size_huge", "neg_body_size_64m_plus1"),
    *("neg_body_size_int_negative", "neg_meta_gt_body", "neg_garbage_meta"),
    *("neg_meta_missing_required", "neg_streaming_rpc_frame", "neg_tls_hello"),
}
"""Files after which the connection is closed."""


def entries_of(prefix: str, direction: str = "") -> list[dict[str, Any]]:
    """Return the entries whose file begins with *prefix*."""
    return [
        entry
        for entry in ENTRIES
        if entry["file"].startswith(prefix) and entry["direction"].startswith(direction)
    ]


def file_of(entry: dict[str, Any]) -> str:
    return str(entry["file"])


def data_of(file: str) -> bytes:
    return (GOLDEN / file).read_bytes()


def view_of(file: str) -> memoryview:
    return memoryview(data_of(file))


def rounded(value: Any) -> Any:
    """Return JSON with every fraction as the nearest float32: its digits may be written longer."""
    if isinstance(value, float):
        return str(np.float32(value)) if abs(value) < 3.40282351e38 else value
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def frames_of(file: str) -> list[Frame]:
    framer = BaiduFramer(LIMITS)
    frames = framer.receive(data_of(file))
    framer.receive(b"")
    return frames


def test_all_files_of_the_index_exist() -> None:
    """The index names 214 files."""
    assert 214 == len(ENTRIES)
    assert [] == [entry["file"] for entry in ENTRIES if not (GOLDEN / entry["file"]).exists()]


@pytest.mark.parametrize(
    "entry",
    [e for e in entries_of("pb/re") if "decoded" in e and "marker" not in e["file"]],
    ids=file_of,
)
def test_protobuf_is_decoded_as_in_the_index(entry: dict[str, Any]) -> None:
    """A message read from protobuf and written as JSON is the index's JSON."""
    message = read_message(view_of(entry["file"]), LIMITS)
    assert rounded(entry["decoded"]) == rounded(orjson.loads(write_json(message)))


@pytest.mark.parametrize(
    "entry",
    [e for e in entries_of("pb/re") if e["file"] not in UNLIKE and "marker" not in e["file"]],
    ids=file_of,
)
def test_protobuf_is_written_as_the_library_writes_it(entry: dict[str, Any]) -> None:
    """A decoded message is encoded with the same bytes."""
    data = data_of(entry["file"])
    assert data == b"".join(write_message(read_message(memoryview(data), LIMITS)))


@pytest.mark.parametrize(
    "entry", [*entries_of("pb/neg_"), *entries_of("pb/req_ndarray_marker")], ids=file_of
)
def test_invalid_protobuf_is_rejected(entry: dict[str, Any]) -> None:
    """An unparsable message ends the call; an invalid one, as of an ndarray, has a FAILURE."""
    wire = GrpcRequest(SERVICE + "Predict", (view_of(entry["file"]),))
    with pytest.raises(GatewayError) as caught:
        GRPC.decode_call(wire)
    assert "marker" not in entry["file"] or "ndarray has no data" in caught.value.message
    unparsable = "parse" in entry.get("expect", "") or "declared length" in entry["description"]
    response = GRPC.encode_error(None, caught.value)
    if unparsable:
        assert isinstance(caught.value, Unreadable)
        assert b"" == bytes(response.view)
    else:
        status = read_message(response.view, LIMITS).status
        assert status is not None
        assert Flag.FAILURE == status.flag
        assert status.code in (400, 413)


def posted(file: str) -> HttpRequest:
    path = "metadata/model" if "metadata" in file else "infer/predict"
    return HttpRequest("POST", f"/grps/v1/{path}", "", JSON_HEADERS, (view_of(file),))


@pytest.mark.parametrize("entry", entries_of("json/req_"), ids=file_of)
def test_json_of_clients_is_decoded(entry: dict[str, Any]) -> None:
    """Requests of official clients and documents are supported, with their wrong member name."""
    call: Any = HTTP.decode_call(posted(entry["file"]))
    assert "flat_double" not in entry["file"] or as_numpy(call.inputs[0]).size
    assert (ModelMetadataRequest if "metadata" in entry["file"] else InferRequest) is type(call)


@pytest.mark.parametrize("entry", entries_of("json/neg_"), ids=file_of)
def test_invalid_json_is_rejected(entry: dict[str, Any]) -> None:
    """The response has a FAILURE of code 400, or 413 over a limit."""
    with pytest.raises(GatewayError) as caught:
        HTTP.decode_call(posted(entry["file"]))
    response = HTTP.encode_error(None, caught.value)
    status = orjson.loads(response.view)["status"]
    assert response.status in (400, 413)
    assert ("FAILURE", response.status) == (status["status"], status["code"])


@pytest.mark.parametrize(
    "entry", [e for e in entries_of("json/res_") if "ndarray_py" not in e["file"]], ids=file_of
)
def test_json_of_servers_is_encoded_the_same(entry: dict[str, Any]) -> None:
    """A decoded document is encoded with the same members and values."""
    document = orjson.loads(data_of(entry["file"]))
    assert document == orjson.loads(write_json(read_response(document, LIMITS, NO_TEXT)))


@pytest.mark.parametrize("name", ["res_ndarray_py", "res_nan_ndarray_py"])
def test_ndarrays_of_servers_are_tensors(name: str) -> None:
    """An ndarray is one unnamed FP32 tensor, bare NaN and an empty model included."""
    call = InferRequest(model=ModelRef("m"))
    reply = HTTP.decode_reply(
        call, HttpResponse(200, JSON_HEADERS, (view_of(f"json/{name}.json"),))
    )
    document = json.loads(data_of(f"json/{name}.json"))
    assert json.dumps(document["ndarray"]) == json.dumps(as_numpy(reply.outputs[0]).tolist())
    message = read_response(document, LIMITS, NO_TEXT)
    assert document.keys() == json.loads(write_json(message)).keys()


def http_parts(raw: bytes) -> tuple[str, Headers, list[bytes]]:
    """Return start line, headers and body (its chunks) of a raw HTTP message."""
    head, _, body = raw.partition(b"\r\n\r\n")
    start, *lines = head.decode().split("\r\n")
    headers = Headers([tuple(line.split(": ", 1)) for line in lines])  # type: ignore[misc]  # of two
    if headers.get("transfer-encoding") != "chunked":
        return start, headers, [body]
    chunks = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        chunks.append(body[:length])
        body = body[length + 2 :]
    return start, headers, [chunk for chunk in chunks if chunk]


def request_of(file: str) -> HttpRequest:
    start, headers, body = http_parts(data_of(file))
    method, target, _ = start.split(" ")
    path, _, query = target.partition("?")
    return HttpRequest(method, path, query, headers, (memoryview(b"".join(body)),))


def responses_of(file: str) -> list[HttpResponse]:
    start, headers, chunks = http_parts(data_of(file))
    status = int(start.split(" ")[1])
    return [HttpResponse(status, headers, (memoryview(chunk),)) for chunk in chunks]


@pytest.mark.parametrize("entry", entries_of("http/", "request"), ids=file_of)
def test_recorded_requests_are_decoded(entry: dict[str, Any]) -> None:
    """A request of the official client has its type of call."""
    name = entry["file"].removeprefix("http/py_").removesuffix(".req.raw")
    assert CALLS[name] is type(HTTP.decode_call(request_of(entry["file"])))


@pytest.mark.parametrize("name", [n for n in CALLS if n.startswith("predict") and "ing" not in n])
def test_recorded_responses_are_decoded(name: str) -> None:
    """The server's echo of a request has the tensors and parameters of the request."""
    call = HTTP.decode_call(request_of(f"http/py_{name}.req.raw"))
    assert isinstance(call, InferRequest)
    [response] = responses_of(f"http/py_{name}.res.raw")
    reply = HTTP.decode_reply(call, response)
    sent = [tensor.renamed("") for tensor in call.inputs if tensor.shape is not None]
    back = [tensor.renamed("") for tensor in reply.outputs]
    if name in ("predict_str", "predict_octet"):
        assert [b"hello grps."] == [bytes(item) for one in back for item in as_items(one)]
    else:
        assert (sent, dict(call.parameters)) == (back, dict(reply.parameters))


INDEX = (
    RepositoryEntry("echo", "1.0.0", ModelState.UNKNOWN),
    RepositoryEntry("simple", "1.0.0", ModelState.UNKNOWN),
    RepositoryEntry("a-b", "2-rc", ModelState.UNKNOWN),
)


@pytest.mark.parametrize(
    ("call", "name", "expected"),
    [
        (ServerLiveRequest(), "py_live", True),
        (ServerReadyRequest(), "py_ready", True),
        (ServerSwitchRequest(is_online=True), "py_online", None),
        (ServerSwitchRequest(is_online=False), "py_offline", None),
        (ServerReadyRequest(), "cpp_not_ready", False),
        (ServerMetadataRequest(), "py_metadata_server", ServerMetadata("grps", "")),
        (RepositoryIndexRequest(), "py_metadata_server", INDEX),
    ],
)
def test_recorded_health_and_metadata_are_decoded(
    call: Call[Any], name: str, expected: object
) -> None:
    """Health is true, metadata is text of YAML; a server's index lists its models."""
    [response] = responses_of(f"http/{name}.res.raw")
    assert expected == HTTP.decode_reply(call, response)


def test_recorded_model_metadata_has_no_tensors() -> None:
    """A real server returns a model's version, but no tensors."""
    [response] = responses_of("http/py_metadata_model.res.raw")
    found = HTTP.decode_reply(ModelMetadataRequest(model=ModelRef("simple")), response)
    assert ("simple", ("1.0.0",)) == (found.name, found.versions)
    assert () == found.inputs == found.outputs


def test_unknown_path_of_brpc_is_an_error() -> None:
    """The error has the text of a response that is not JSON."""
    [response] = responses_of("http/cpp_unknown_path.res.raw")
    with pytest.raises(ModelNotFound, match="Fail to find method"):
        HTTP.decode_reply(InferRequest(model=ModelRef("m")), response)


def streamed(file: str) -> Iterator[InferResponse]:
    call = StreamInferRequest(model=ModelRef("m"), request=InferRequest(model=ModelRef("m")))
    splitter = HTTP.splitter()
    for part in responses_of(file):
        for piece in splitter.receive(part):
            yield HTTP.decode_item(call, piece)
    splitter.end()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("py_predict_str_streaming", [b"hello grps. 0", b"hello grps. 1", b"hello grps. 2"]),
        ("json_concat_one_chunk", [b"a", b"b"]),
        ("cpp_streaming_bin", None),
        ("py_streaming_bin_repr", None),
    ],
)
def test_recorded_streams_are_decoded(name: str, expected: list[bytes] | None) -> None:
    """Each message of a stream is one reply; bytes are unchanged."""
    found = [bytes(as_items(reply.outputs[0])[0]) for reply in streamed(f"http/{name}.res.raw")]
    if expected is None:
        expected = http_parts(data_of(f"http/{name}.res.raw"))[2]
    assert expected == found


def test_failure_in_a_recorded_stream_is_raised() -> None:
    """The replies before the FAILURE are returned first."""
    replies = streamed("http/py_streaming_error.res.raw")
    assert [b"hi 0"] == [bytes(item) for item in as_items(next(replies).outputs[0])]
    with pytest.raises(UpstreamError, match="boom streaming"):
        next(replies)


def grpc_messages(file: str) -> list[memoryview]:
    """Return the messages of a body of gRPC."""
    view, found = view_of(file), []
    while len(view):
        size = int.from_bytes(view[1:5], "big")
        found.append(view[5 : 5 + size])
        view = view[5 + size :]
    return found


def test_recorded_grpc_messages_are_decoded() -> None:
    """The request names the test model; the stream has three replies."""
    [message] = grpc_messages("grpc/predict_simple.req.lpm")
    call: Any = GRPC.decode_call(GrpcRequest(SERVICE + "Predict", (message,)))
    assert ModelRef("simple-1") == call.model
    assert ["INPUT0", "INPUT1"] == [tensor.name for tensor in call.inputs]
    stream = StreamInferRequest(model=call.model, request=call)
    messages = grpc_messages("grpc/predict_streaming.res.lpm")
    items = [GRPC.decode_item(stream, GrpcResponse((message,))) for message in messages]
    assert [False] * 3 == [item.is_final for item in items]


@pytest.mark.parametrize(
    "entry",
    [
        e
        for e in entries_of("brpc/", "request")
        if Path(e["file"]).stem not in {*CODES, *CLOSED} and "mux" not in e["file"]
    ],
    ids=file_of,
)
def test_frames_of_clients_are_decoded(entry: dict[str, Any]) -> None:
    """Each frame is the call of its method; a frame without a message has no data."""
    for frame in frames_of(entry["file"]):
        meta, _ = split_frame(memoryview(frame.payload[0]))
        if entry["file"] == "brpc/req_attachment_only.bin":
            with pytest.raises(InvalidRequest, match="no data"):
                BRPC.decode_call(frame)
            continue
        call = BRPC.decode_call(frame)
        response = BRPC.encode_error(call, UpstreamError("boom"))
        assert METHODS[meta.request.method_name] is type(call)
        assert meta.correlation_id == response.correlation


@pytest.mark.parametrize("name", CODES)
def test_rejected_frames_have_their_error_code(name: str) -> None:
    """The response has the table's error code and a text, but no message."""
    [frame] = frames_of(f"brpc/{name}.bin")
    codec = BrpcCodec(MessageLimits(message_bytes=16 << 20), {}) if "bomb" in name else BRPC
    with pytest.raises(GatewayError) as caught:
        codec.decode_call(frame)
    assert CODES[name] == brpc_code_of(caught.value)
    assert ends_call(caught.value, unread=True)
    refusal = BRPC.encode_error(None, caught.value)
    sent = b"".join(server_framer(LIMITS).send(Frame(refusal.payload, frame.correlation)))
    meta, rest = split_frame(memoryview(sent))
    assert (CODES[name], frame.correlation) == (meta.response.error_code, meta.correlation_id)
    assert meta.response.error_text
    assert not len(rest)


@pytest.mark.parametrize("name", sorted(CLOSED))
@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_invalid_byte_streams_are_rejected(name: str, step: int) -> None:
    """Another protocol or a wrong size raises before any frame is returned."""
    data = data_of(f"brpc/{name}.bin")
    framer = server_framer(LIMITS)
    frames: list[Frame] = []

    def feed() -> None:
        for at in range(0, len(data), step):
            frames.extend(framer.receive(data[at : at + step]))
        framer.receive(b"")

    with pytest.raises((InvalidRequest, TooLarge)):
        feed()
    assert [] == frames


def test_huge_size_is_rejected_by_the_header() -> None:
    """A body of 4 GiB is rejected with the twelfth byte, before it is buffered."""
    framer = BaiduFramer(LIMITS)
    data = data_of("brpc/neg_body_size_huge.bin")[:12]
    assert [] == framer.receive(data[:11])
    with pytest.raises(TooLarge, match="4294967295"):
        framer.receive(data[11:])


def test_baidu_std_is_detected_by_its_first_bytes() -> None:
    """Any prefix of the magic matches; other protocols do not."""
    others = ["mux_http_json", "mux_http_proto", "mux_h2_preface", "neg_bad_magic"]
    others += ["neg_magic_lowercase", "neg_streaming_rpc_frame", "neg_tls_hello"]
    assert [] == [name for name in others if looks_like(data_of(f"brpc/{name}.bin"))]
    frame = data_of("brpc/req_predict_str.bin")
    assert all(looks_like(frame[:size]) for size in (0, 1, 2, 3, 4, 50))


@pytest.mark.parametrize("name", ["mux_http_json", "mux_http_proto"])
def test_http_on_the_port_of_brpc_is_decoded(name: str) -> None:
    """The response has the form of the request, JSON or protobuf."""
    call = HTTP.decode_call(request_of(f"brpc/{name}.bin"))
    assert isinstance(call, InferRequest)
    reply = InferResponse(model=ModelRef("m"), outputs=call.inputs)
    response = HTTP.encode_reply(call, reply)
    message = (
        read_response(orjson.loads(response.view), LIMITS, response.view)
        if "json" in name
        else read_message(response.view, LIMITS)
    )
    assert (ContentFormat.STR_DATA, "hello grps.") == (message.form, message.text)


def test_frame_is_encoded_as_by_the_real_client() -> None:
    """The official client's first request is written byte for byte."""
    decoded = BRPC.decode_call(frames_of("brpc/req_predict_str.bin")[0])
    assert isinstance(decoded, InferRequest)
    call = InferRequest(inputs=decoded.inputs, parameters=decoded.parameters)
    number = frames_of("brpc/req_predict_str.bin")[0].correlation
    wire = BRPC.encode_call(call)
    sent = b"".join(BaiduFramer(LIMITS).send(Frame(wire.payload, number)))
    assert data_of("brpc/req_predict_str.bin") == sent


@pytest.mark.parametrize(
    ("name", "call", "expected"),
    [
        ("res_ok_live", ServerLiveRequest(), True),
        # Bytes behind the message are ignored.
        ("res_attachment", ServerLiveRequest(), True),
        ("res_not_ready", ServerReadyRequest(), False),
        ("res_server_metadata_nostatus", ServerMetadataRequest(), ServerMetadata("grps", "")),
    ],
)
def test_frames_of_servers_are_decoded(name: str, call: Call[Any], expected: object) -> None:
    """Health and metadata are read, with and without a Status."""
    [frame] = frames_of(f"brpc/{name}.bin")
    assert expected == BRPC.decode_reply(call, frame)


@pytest.mark.parametrize(
    "name", ["res_predict_simple", "res_predict_snappy", "res_predict_gzip", "res_predict_zlib"]
)
def test_compressed_responses_are_decoded(name: str) -> None:
    """A response is decoded with any compression."""
    [frame] = frames_of(f"brpc/{name}.bin")
    reply = BRPC.decode_reply(InferRequest(model=ModelRef("simple-1")), frame)
    assert [tensor.name for tensor in reply.outputs] in (
        ["OUTPUT0", "OUTPUT1"],
        ["OUTPUT0"],
        ["bin_data"],
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("res_app_error", ErrorCode.NOT_FOUND),
        ("res_err_nomethod", ErrorCode.UNSUPPORTED),
        ("res_err_noservice", ErrorCode.UNSUPPORTED),
        ("res_err_request", ErrorCode.INVALID_ARGUMENT),
        ("res_err_attachment", ErrorCode.INVALID_ARGUMENT),
        ("res_err_limit", ErrorCode.OVERLOADED),
        ("res_err_internal", ErrorCode.UPSTREAM),
    ],
)
def test_errors_of_servers_are_raised(name: str, code: ErrorCode) -> None:
    """A client of brpc receives the error text of the server unchanged."""
    [frame] = frames_of(f"brpc/{name}.bin")
    with pytest.raises(GatewayError) as caught:
        BRPC.decode_reply(InferRequest(model=ModelRef("m")), frame)
    again = b"".join(BRPC.encode_error(None, caught.value).payload)
    received, encoded = RpcMeta(), RpcMeta()
    received.CopyFrom(split_frame(memoryview(frame.payload[0]))[0])
    encoded.CopyFrom(split_frame(memoryview(again))[0])
    assert (code, received.response.error_text) == (caught.value.code, encoded.response.error_text)


def test_responses_out_of_order_keep_their_correlation_ids() -> None:
    """Two responses in one read are distinguished by their correlation ids."""
    request_numbers = [frame.correlation for frame in frames_of("brpc/req_two_pipelined.bin")]
    response_numbers = [frame.correlation for frame in frames_of("brpc/res_two_out_of_order.bin")]
    assert (2, request_numbers[::-1]) == (len(set(request_numbers)), response_numbers)


@pytest.mark.parametrize("names", [["OUTPUT1"], ["OUTPUT0", "OUTPUT1"], ["OUTPUT1", "OUTPUT0"]])
def test_only_requested_outputs_are_returned(names: list[str]) -> None:
    """Grps sends all outputs: only the requested ones are passed on, in the requested order."""
    [frame] = frames_of("brpc/res_predict_simple.bin")
    model = ModelRef("m")
    sent = {
        tensor.name: tensor
        for tensor in BRPC.decode_reply(InferRequest(model=model), frame).outputs
    }
    assert ["OUTPUT0", "OUTPUT1"] == list(sent)
    call = InferRequest(model=model, outputs=tuple(RequestedOutput(name) for name in names))
    assert [sent[name] for name in names] == list(BRPC.decode_reply(call, frame).outputs)


def test_every_file_is_covered() -> None:
    """A new file whose name no test covers fails this test."""
    tested = re.compile(r"(pb|json|http|grpc|brpc)/(py_|cpp_)?(req_|res_|neg_|mux_|\w+)")
    assert [] == [entry["file"] for entry in ENTRIES if not tested.match(entry["file"])]
