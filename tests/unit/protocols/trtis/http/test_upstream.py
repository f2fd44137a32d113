"""Tests of TensorRT v1 over HTTP to an old server: requests are encoded, responses decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedRegisterRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import CallSequence, Context, ModelRef, Need
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    ModelNotFound,
    NotReady,
    TooLarge,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelState, RepositoryEntry, SharedRegion
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_items, as_raw
from gateway.protocols.trtis.errors import TrtisStatus
from gateway.protocols.trtis.http.codec import HttpCodec
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.http import HttpResponse
from tests.cases.trtis_http import CALLS, OK, REPLY, SYSTEM, X_RAW, CallCase, M, X, answer, raw

CODEC: Any = HttpCodec(DEFAULT_LIMITS, {})
CALL = InferRequest(model=M, inputs=(X,), outputs=(RequestedOutput("y"),), batch_size=2)
LINE = 'model_name: "m" model_version: 3 batch_size: 2 output { name: "y" raw { dims: 2 batch_byte_size: 16 } } new: [1]'
TRAILER = pb.InferResponseHeader(
    model_name="m",
    model_version=3,
    batch_size=2,
    output=[{"name": "y", "raw": {"dims": [2], "batch_byte_size": 16}}],
).SerializeToString()


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_encodes_call(case: CallCase) -> None:
    """A call is written as a real client writes it."""
    wire = CODEC.encode_call(case.call)
    target = f"{wire.path}?{wire.query}" if wire.query else wire.path
    assert (case.method, case.target) == (wire.method, target)
    assert case.header == wire.headers.get("nv-inferrequest")
    assert case.body == bytes(wire.view)


def test_decodes_reply() -> None:
    """Unknown fields of the header are ignored; it is cached, and the output is of each body."""
    for value in (1, 2, 3):
        body = bytes((value,)) * len(X_RAW) + TRAILER
        reply = CODEC.decode_reply(CALL, answer(OK, LINE, body))
        assert (reply.model, reply.batch_size) == (REPLY.model, 2)
        (found,) = reply.outputs
        assert (found.name, found.datatype, found.shape) == ("y", None, (2,))
        assert as_raw(found) == body[: len(X_RAW)]
        view = np.frombuffer(as_raw(found), np.uint8)
        assert np.shares_memory(view, np.frombuffer(body, np.uint8))
    for _ in range(3):
        with pytest.raises(MalformedMessage, match="InferResponseHeader in text format"):
            CODEC.decode_reply(CALL, answer(OK, LINE + " {", X_RAW + TRAILER))


def test_codec_needs_all_that_v1_sends() -> None:
    """v1 sends names, datatypes, shapes, the batch size, and every output by name."""
    assert CODEC.needs == {Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.BATCHING, Need.OUTPUTS}


def test_context_is_forwarded() -> None:
    """Headers are sent with the id; those of framing and of the protocol are not."""
    context = Context(
        metadata=(("x-a", "1"), ("nv-status", "x"), ("host", "h"), ("grpc-x", "1"), ("x-b", "é")),
        request_id="id",
        deadline=9.0,
    )
    wire = CODEC.encode_call(ServerLiveRequest(context=context))
    assert wire.headers.pairs == (("x-a", "1"), ("x-b", "%C3%A9"), ("x-request-id", "id"))
    assert wire.deadline == 9.0


@pytest.mark.parametrize("version", ["1.11.0", "1.12.0"])
def test_schedule_is_sent_to_servers_from_1_12_on(version: str) -> None:
    """An unknown field would make the header unreadable to servers before 1.12."""
    codec = HttpCodec(DEFAULT_LIMITS, {"server_version": version})
    wire = codec.encode_call(CALL.changed(priority=2, timeout_us=5))
    sent = "priority: 2 timeout_microseconds: 5" in (wire.headers.get("nv-inferrequest") or "")
    assert sent == (version == "1.12.0")


def test_text_sequences_become_numbers() -> None:
    """A text becomes the same number every time, and another text another number."""
    ids = []
    for text in ("a", "a", "b", "\ud800"):
        wire = CODEC.encode_call(CALL.changed(sequence=CallSequence(text)))
        ids.append((wire.headers.get("nv-inferrequest") or "").split("correlation_id: ")[1])
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("text", "sent"),
    [("7", True), ("007", False), ("abc", False), ("18446744073709551616", False), ("²", False)],
)
def test_only_decimal_ids_are_sent(text: str, sent: bool) -> None:
    """v1 ids are numbers; any other id is restored in the reply."""
    call = CALL.changed(id=text)
    assert (
        f" id: {text}" in (CODEC.encode_call(call).headers.get("nv-inferrequest") or "")
    ) == sent
    assert CODEC.decode_reply(call, answer(OK, LINE, X_RAW + TRAILER)).id == text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (CALL.changed(batch_size=None), "batch size"),
        (CALL.changed(batch_size=0), "batch size is 0"),
        (CALL.changed(model=None), "names no model"),
        (CALL.changed(model=ModelRef("a b")), "cannot be part of a path"),
        (CALL.changed(model=ModelRef("a/b")), "cannot be part of a path"),
        (CALL.changed(model=ModelRef("m", "v1")), "TensorRT v1 expects a number"),
        (CALL.changed(inputs=(Tensor("x", None, (2,), X.data),)), "no name, datatype or shape"),
        (CALL.changed(inputs=(raw("x", Datatype.BF16, (4,), X_RAW),)), "BF16"),
        (CALL.changed(inputs=(raw("\ud800", Datatype.INT32, (2,), X_RAW),)), "cannot be written"),
        (CALL.changed(sequence=CallSequence(2**64)), "sequence"),
        (ModelReadyRequest(), "names no model"),
        (ModelLoadRequest(), "names no model"),
        (ModelLoadRequest(model=M, parameters={"config": "{}"}), "has the parameter 'config'"),
        (ModelUnloadRequest(model=M, dependents=True), "includes its dependents"),
        (ServerStatusRequest(), "server status is not supported over trtis."),
        (
            SharedRegisterRequest(region=SharedRegion(name="r", size_bytes=1, key="k")),
            "does not begin with a slash",
        ),
    ],
)
def test_rejects_calls_that_v1_cannot_represent(call: Any, text: str) -> None:
    """The error names the cause, before a request is sent."""
    with pytest.raises(Unsupported, match=text):
        CODEC.encode_call(call)


def test_rejects_data_of_the_wrong_size() -> None:
    """The number of bytes must match shape and batch size."""
    with pytest.raises(InvalidTensor, match=r"16 bytes: batch size 3 .* needs 24"):
        CODEC.encode_call(CALL.changed(batch_size=3))


@pytest.mark.parametrize(
    "status",
    [
        "code: SUCCESS",
        'code: SUCCESS server_id: "inference:0" request_id: 9999999999999999999',
        'code:SUCCESS  server_id: "a\\"b"',
        'server_id: "s" code: SUCCESS',
        'code: SUCCESS msg: "fine"',
    ],
)
def test_success_is_read_in_any_spelling(status: str) -> None:
    """This includes spellings outside the fast path."""
    assert CODEC.decode_reply(CALL, answer(status, LINE, X_RAW + TRAILER)).model == REPLY.model


@pytest.mark.parametrize(
    "status",
    [
        "code: SUCCESS request_id: 99999999999999999999",
        'code: SUCCESS server_id: "s',
        "code: SUCCES",
    ],
)
def test_invalid_success_status_is_rejected(status: str) -> None:
    """A number over 64 bits, an open text and another word are malformed."""
    with pytest.raises(MalformedMessage, match="RequestStatus in text format"):
        CODEC.decode_reply(CALL, answer(status, LINE, X_RAW + TRAILER))


def test_reads_datatypes_of_newer_servers() -> None:
    """Servers from 1.12 on send datatypes, which are used."""
    header = pb.InferResponseHeader.FromString(TRAILER)
    header.output[0].data_type = pb.TYPE_INT32
    reply = CODEC.decode_reply(CALL, answer(OK, LINE, X_RAW + header.SerializeToString()))
    assert reply.outputs[0].datatype is Datatype.INT32


def test_reads_classes_from_the_end_of_the_body() -> None:
    """Servers before 1.5 leave classes out of the header line; the end of the body has them."""
    header = pb.InferResponseHeader(batch_size=2)
    output = header.output.add(name="y")
    for index in range(2):
        classes = output.batch_classes.add()
        classes.cls.add(idx=index, value=1.5, label="a")
        classes.cls.add(idx=7, value=-1)
    call = CALL.changed(outputs=(RequestedOutput("y", 2),))
    wire = answer(OK, 'batch_size: 2 output { name: "y" }', header.SerializeToString())
    (found,) = CODEC.decode_reply(call, wire).outputs
    assert (found.datatype, found.shape) == (Datatype.BYTES, (2,))
    assert as_items(found) == [b"1.5:0:a", b"-1:7", b"1.5:1:a", b"-1:7"]


def test_output_in_shared_memory_refers_to_its_region() -> None:
    """Such an output has no bytes in the body."""
    shared = SharedMemoryData("r", 4, 32)
    call = CALL.changed(outputs=(RequestedOutput("y", shared=shared),))
    (found,) = CODEC.decode_reply(call, answer(OK, LINE, TRAILER)).outputs
    assert found.data == SharedMemoryData("r", 4, 16)


def _trailer(**changes: Any) -> bytes:
    header = pb.InferResponseHeader.FromString(TRAILER)
    for name, value in changes.items():
        setattr(header, name, value)
    return header.SerializeToString()


ONE_CLASS = {"batch_classes": [{"cls": [{"idx": 1}]}, {}]}


@pytest.mark.parametrize(
    ("output", "failure", "text"),
    [
        ({}, MalformedMessage, "neither raw nor classes"),
        ({"raw": {"dims": [-1]}}, InvalidTensor, "negative"),
        ({"raw": {"dims": [1 << 41]}}, TooLarge, "dimension"),
        ({"raw": {"dims": [1], "batch_byte_size": 3}}, MalformedMessage, "0 bytes: expected 3"),
        (ONE_CLASS, MalformedMessage, "from 0 to 1 classes"),
        # Its outputs would have another first dimension than requested.
        ({"raw": {"dims": [0]}}, MalformedMessage, "batch size 3: the request has 2"),
    ],
)
def test_rejects_unusable_outputs(
    output: dict[str, Any], failure: type[GatewayError], text: str
) -> None:
    """An output's parts must agree."""
    size = 3 if "batch size" in text else 2
    header = pb.InferResponseHeader(batch_size=size, output=[{"name": "y", **output}])
    with pytest.raises(failure, match=text):
        CODEC.decode_reply(CALL, answer(OK, 'output { name: "y" }', header.SerializeToString()))


@pytest.mark.parametrize(
    ("wire", "failure", "text"),
    [
        (answer(OK, None, X_RAW + TRAILER), MalformedMessage, "no NV-InferResponse"),
        (answer(OK, "x {", X_RAW + TRAILER), MalformedMessage, "text format"),
        (answer("code: ?", LINE, X_RAW + TRAILER), MalformedMessage, "text format"),
        (answer(OK, LINE, X_RAW[:9]), MalformedMessage, "16 bytes: the body has 9 left"),
        (answer(OK, LINE, X_RAW), MalformedMessage, "does not repeat"),
        (answer(OK, LINE, X_RAW + b"\xff"), MalformedMessage, "InferResponseHeader"),
        (answer(OK, "", b""), MalformedMessage, "lacks the requested output 'y'"),
        (answer(OK, LINE, X_RAW + _trailer(model_name="\n")), InvalidRequest, "control"),
        (answer(None, LINE, X_RAW + TRAILER), UpstreamProtocolError, "without NV-Status"),
        (answer(None, code=404), UpstreamProtocolError, "HTTP status 404"),
        (answer(OK, code=500), UpstreamProtocolError, "500 and NV-Status SUCCESS"),
        (answer("code: INVALID_ARG msg: 'bad'", code=400), InvalidRequest, "bad"),
        (answer("code: UNAVAILABLE msg: 'gone'", code=400), NotReady, "gone"),
        (answer("code: INTERNAL", code=400), UpstreamError, "request status 3"),
        (answer("code: 77 msg: 'new'", code=400), UpstreamError, "new"),
        (answer("", code=400), UpstreamProtocolError, "request status 0"),
    ],
)
def test_rejects_unusable_responses(
    wire: HttpResponse, failure: type[GatewayError], text: str
) -> None:
    """An incomplete response, or a failure, is an error of its kind."""
    with pytest.raises(failure, match=text):
        CODEC.decode_reply(CALL, wire)


def test_error_keeps_the_servers_status() -> None:
    """The origin has the server's code and text, for a caller of the same protocol."""
    with pytest.raises(InvalidRequest) as caught:
        CODEC.decode_reply(CALL, answer("code: ALREADY_EXISTS msg: 'taken'", code=400))
    assert caught.value.origin is not None
    assert caught.value.origin.form == TrtisStatus(pb.ALREADY_EXISTS, "taken")


def test_health_is_read_from_the_status_code() -> None:
    """200 is true, 400 is false; any other status is an error."""
    for call in (ServerLiveRequest(), ServerReadyRequest()):
        assert CODEC.decode_reply(call, HttpResponse(200)) is True
        assert CODEC.decode_reply(call, HttpResponse(400)) is False
        with pytest.raises(UpstreamProtocolError, match="502"):
            CODEC.decode_reply(call, HttpResponse(502))


STATUS = pb.ServerStatus(id="s", version="1.9.0")
STATUS.model_status["m"].config.max_batch_size = 2
STATUS.model_status["m"].version_status[3].ready_state = pb.MODEL_READY
STATUS.model_status["m"].version_status[4].ready_state = pb.MODEL_LOADING
STATUS.model_status["m"].version_status[4].ready_state_reason.message = "wait"
STATUS.model_status["bare"].SetInParent()


def status_response(**model: Any) -> HttpResponse:
    status = pb.ServerStatus()
    status.model_status["m"].config.CopyFrom(pb.ModelConfig(**model))
    return answer(OK, body=status.SerializeToString())


def test_decodes_status() -> None:
    """Server metadata, index, readiness and signatures are in one status message."""
    wire = answer(OK, body=STATUS.SerializeToString())
    assert CODEC.decode_reply(ServerMetadataRequest(), wire).version == "1.9.0"
    ready, loading = (
        RepositoryEntry("m", "3", ModelState.READY),
        RepositoryEntry("m", "4", ModelState.LOADING, "wait"),
    )
    everything = (RepositoryEntry("bare"), ready, loading)
    assert everything == CODEC.decode_reply(RepositoryIndexRequest(), wire)
    assert (ready,) == CODEC.decode_reply(RepositoryIndexRequest(ready_only=True), wire)
    for version, expected in (("", True), ("3", True), ("4", False), ("5", False)):
        call = ModelReadyRequest(model=ModelRef("m", version))
        assert CODEC.decode_reply(call, wire) is expected
    assert CODEC.decode_reply(ModelReadyRequest(model=ModelRef("x")), wire) is False
    assert CODEC.decode_reply(ModelMetadataRequest(model=M), wire).versions == ("3", "4")
    with pytest.raises(ModelNotFound, match="no version '9': expected one of 3, 4"):
        CODEC.decode_reply(ModelMetadataRequest(model=ModelRef("m", "9")), wire)
    with pytest.raises(ModelNotFound, match="'x' is not in the status"):
        CODEC.decode_reply(ModelMetadataRequest(model=ModelRef("x")), wire)


def test_unknown_model_is_not_ready() -> None:
    """An error status for an unknown model means not ready."""
    refused = answer("code: INVALID_ARG msg: 'no model'", code=400)
    assert CODEC.decode_reply(ModelReadyRequest(model=M), refused) is False
    with pytest.raises(ModelNotFound, match="no model"):
        CODEC.decode_reply(ModelMetadataRequest(model=M), refused)


@pytest.mark.parametrize(
    ("model", "failure", "text"),
    [
        ({"max_batch_size": -1}, MalformedMessage, "max_batch_size -1"),
        ({"input": [{"name": "a", "dims": [-2]}]}, InvalidTensor, "-1 or more"),
        ({"input": [{"name": "a\n"}]}, InvalidRequest, "control"),
        ({"output": [{"name": str(n)} for n in range(2_049)]}, TooLarge, "2049 outputs"),
    ],
)
def test_rejects_unusable_configurations(
    model: dict[str, Any], failure: type[GatewayError], text: str
) -> None:
    """The error names the part that is invalid."""
    with pytest.raises(failure, match=text):
        CODEC.decode_reply(ModelMetadataRequest(model=M), status_response(**model))


def test_unknown_datatype_is_decoded_as_none() -> None:
    """A datatype that the schema lacks is None."""
    wire = status_response(input=[{"name": "a", "dims": [2], "data_type": 99}])
    (found,) = CODEC.decode_reply(ModelMetadataRequest(model=M), wire).inputs
    assert (found.datatype, found.shape) == (None, (2,))


def test_invalid_status_message_is_malformed() -> None:
    """The error names the expected message."""
    with pytest.raises(MalformedMessage, match="ServerStatus"):
        CODEC.decode_reply(ServerMetadataRequest(), answer(OK, body=b"\xff"))


@pytest.mark.parametrize(
    "call",
    [
        ModelLoadRequest(model=M),
        ModelUnloadRequest(model=M),
        SharedRegisterRequest(region=SYSTEM),
        SharedUnregisterRequest(region="r"),
        SharedUnregisterRequest(),
    ],
    ids=["load", "unload", "register", "unregister", "unregister all"],
)
def test_control_reply_has_no_content(call: Any) -> None:
    """The status of a control response is all its content: success is None, an error is raised."""
    assert CODEC.decode_reply(call, answer(OK)) is None
    with pytest.raises(GatewayError, match="bad"):
        CODEC.decode_reply(call, answer("code: INVALID_ARG msg: 'bad'", code=400))


def test_reply_of_an_unsupported_call_is_rejected() -> None:
    """Decoding the reply of a call that the codec cannot send raises Unsupported."""
    with pytest.raises(Unsupported, match="server status"):
        CODEC.decode_reply(ServerStatusRequest(), answer(OK))
