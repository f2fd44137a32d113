"""The GraphPipe codec and framing for TCP and unix sockets."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    TooLarge,
    Unsupported,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import ServerMetadata
from gateway.protocols.graphpipe import stream
from gateway.protocols.graphpipe.stream import GraphPipeStreamCodec, SizePrefixFramer
from gateway.wire.stream import Frame
from tests.cases import graphpipe_oracle as oracle
from tests.cases.graphpipe_http import METADATA_REQUEST, NAMED, CallCase, ReplyCase
from tests.cases.graphpipe_stream import CALLS, MODEL, REPLIES, framed

CODEC = GraphPipeStreamCodec(DEFAULT_LIMITS, {"default_model": MODEL})
REF = ModelRef("m", "3")
GOOD = framed(METADATA_REQUEST)


def framer(message_bytes: int = 1000) -> SizePrefixFramer:
    return SizePrefixFramer(MessageLimits(message_bytes=message_bytes))


def payload(frame: Frame) -> bytes:
    return b"".join(frame.payload)


def sent(frame: Frame) -> bytes:
    return b"".join(framer().send(frame))


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_reads_call(case: CallCase) -> None:
    """What another implementation built is the call that it says, for the listener's model."""
    [frame] = framer().receive(framed(case.message))
    assert case.call == CODEC.decode_call(frame).changed(context=Context())


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_writes_call(case: CallCase) -> None:
    """A call has its size before it and reads, to another implementation, as what it says."""
    data = sent(CODEC.encode_call(case.call))
    assert len(data) - 4 == struct.unpack_from("<I", data)[0]
    assert oracle.read_request(case.message) == oracle.read_request(data[4:])


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_reads_reply(case: ReplyCase) -> None:
    """What another implementation built is the answer that it says."""
    [frame] = framer().receive(framed(case.message))
    assert case.reply == CODEC.decode_reply(case.call, frame)


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_writes_reply(case: ReplyCase) -> None:
    """An answer reads, to another implementation, as what it says."""
    frame = CODEC.encode_reply(case.call, case.reply)
    read: Any = oracle.read_response
    if isinstance(case.call, ModelMetadataRequest):
        read = oracle.read_metadata
    assert read(case.message) == read(payload(frame))


def test_size_prefixed_messages_of_the_builder_are_read() -> None:
    """The Builder's own size prefix, which stands inside its alignment, is the same framing."""
    plain = oracle.PlainRequest(b"c", ("x",), (oracle.PlainTensor(11, (1,), bytes(8)),), ())
    [frame] = framer().receive(oracle.build_request(plain, prefix=True))
    call = CODEC.decode_call(frame)
    assert isinstance(call, InferRequest)
    assert "x" == call.inputs[0].name


def test_frames_come_byte_by_byte() -> None:
    """A framer waits for whole frames, however slowly they come."""
    used = framer()
    found = [used.receive(bytes([byte])) for byte in GOOD + GOOD]
    assert [len(GOOD) - 1, 2 * len(GOOD) - 1] == [at for at, frames in enumerate(found) if frames]
    assert [] == used.receive(b"")


@pytest.mark.parametrize("cut", [1, 3, 4, 5, len(GOOD) - 1])
def test_a_stream_that_ends_inside_a_frame_is_broken(cut: int) -> None:
    """Half a message is no message."""
    used = framer()
    assert [] == used.receive(GOOD[:cut])
    with pytest.raises(MalformedMessage, match="ended"):
        used.receive(b"")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (struct.pack("<I", 0), MalformedMessage),
        (struct.pack("<I", 7), MalformedMessage),
        (struct.pack("<I", 1001), TooLarge),
        (struct.pack("<I", 0xFFFFFFFF), TooLarge),
        (b"POST / HTTP/1.1\r\n", MalformedMessage),
        (b"GETx", MalformedMessage),
    ],
)
def test_an_impossible_size_is_refused_at_once(start: bytes, kind: type[GatewayError]) -> None:
    """Four bytes are enough to refuse; nothing is allocated for what they claim."""
    with pytest.raises(kind):
        framer().receive(start)


def test_frames_before_a_bad_one_are_not_lost() -> None:
    """What came whole is answered first; the bad size is refused with the next bytes."""
    used = framer()
    assert [METADATA_REQUEST] == [payload(f) for f in used.receive(GOOD + bytes(4))]
    with pytest.raises(MalformedMessage):
        used.receive(b"x")


def test_payload_is_sent_as_it_is() -> None:
    """The framer puts a size before the buffers and copies none of them."""
    view = memoryview(bytes(16))
    parts = framer().send(Frame((view, b"ab")))
    assert (struct.pack("<I", 18), True) == (parts[0], parts[1] is view)


def test_a_listener_needs_a_default_model() -> None:
    """Nothing on a stream names a model."""
    with pytest.raises(NotFound, match="default model"):
        GraphPipeStreamCodec().decode_call(Frame((METADATA_REQUEST,)))


def test_metadata_is_asked_for() -> None:
    """A metadata request asks for that of the listener's model; the deadline is the frame's."""
    call = CODEC.decode_call(Frame((METADATA_REQUEST,), None, 3.5))
    assert (ModelMetadataRequest, REF, 3.5) == (type(call), call.model, call.context.deadline)


def test_outputs_come_in_the_order_asked_for() -> None:
    """Names of outputs are kept for the answer, repeated ones too."""
    plain = oracle.PlainRequest(b"", (), (), ("b", "a", "b"))
    call = CODEC.decode_call(Frame((oracle.build_request(plain),)))
    assert isinstance(call, InferRequest)
    reply = CODEC.decode_reply(
        InferRequest(model=REF, outputs=call.outputs),
        Frame(
            (
                oracle.build_response(
                    [oracle.PlainTensor(1, (), b"b"), oracle.PlainTensor(1, (), b"a")]
                ),
            )
        ),
    )
    tensors, _ = oracle.read_response(payload(CODEC.encode_reply(call, reply)))
    assert [b"b", b"a", b"b"] == [tensor.data for tensor in tensors]


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_is_in_the_answer(code: ErrorCode) -> None:
    """A stream has no status, so metadata fails in the answer too, and is read as an error."""
    for call in (None, NAMED, ModelMetadataRequest(model=REF)):
        frame = CODEC.encode_error(call, ERROR_CLASSES[code]("why"))
        assert ((), "why") == (
            oracle.read_response(payload(frame))[0],
            oracle.read_response(payload(frame))[1][0][1],
        )
        with pytest.raises(GatewayError, match="why"):
            CODEC.decode_reply(ModelMetadataRequest(model=REF), frame)


def test_errors_of_upstreams_go_back_as_they_came() -> None:
    """Number and text of an upstream's error are those that a caller of this codec gets."""
    frame = Frame((oracle.build_response([], [(404, "no such model")]),))
    with pytest.raises(ModelNotFound) as raised:
        CODEC.decode_reply(NAMED, frame)
    again = oracle.read_response(payload(CODEC.encode_error(NAMED, raised.value)))
    assert ((), ((404, "no such model"),)) == again


def test_health_and_server_are_told_by_metadata() -> None:
    """Every question but inference is a metadata request."""
    metadata = oracle.PlainMetadata("m", "1.0", "srv", "", (), ())
    answer = Frame((oracle.build_metadata(metadata),))
    down = Frame((oracle.build_response([], [(503, "loading")]),))
    questions: list[Call[bool]] = [
        ServerLiveRequest(),
        ServerReadyRequest(),
        ModelReadyRequest(model=REF),
    ]
    for question, when_down in zip(questions, (True, False, False), strict=True):
        assert oracle.read_request(payload(CODEC.encode_call(question))) is None
        assert CODEC.decode_reply(question, answer)
        assert when_down is CODEC.decode_reply(question, down)
    assert ServerMetadata("srv", "1.0") == CODEC.decode_reply(ServerMetadataRequest(), answer)
    not_found = Frame((oracle.build_response([], [(404, "gone")]),))
    with pytest.raises(ModelNotFound):
        CODEC.decode_reply(questions[2], not_found)


def test_what_streams_cannot_ask_is_unsupported() -> None:
    """Lists of models and streams of answers are refused."""
    streaming = StreamInferRequest(request=NAMED)
    calls: list[Call[Any]] = [RepositoryIndexRequest(), streaming]
    for call in calls:
        with pytest.raises(Unsupported):
            CODEC.encode_call(call)
        with pytest.raises(Unsupported):
            CODEC.encode_reply(call, None)
    with pytest.raises(Unsupported):
        CODEC.encode_item(streaming, REPLIES[0].reply)
    with pytest.raises(Unsupported):
        CODEC.decode_item(streaming, Frame(()))


def test_a_payload_of_two_gigabytes_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that no reader takes is refused before it is sent."""
    monkeypatch.setattr(stream, "MAX_MESSAGE_BYTES", 10)
    with pytest.raises(TooLarge, match="at most 10"):
        framer().send(Frame((bytes(11),)))


def test_an_answer_to_no_question_of_ours_is_refused() -> None:
    """What cannot be asked has no answer."""
    answer = Frame((oracle.build_metadata(oracle.PlainMetadata("m", "", "", "", (), ())),))
    unknown: Call[Any] = RepositoryIndexRequest()
    with pytest.raises(Unsupported):
        CODEC.decode_reply(unknown, answer)


def test_broken_messages_are_refused() -> None:
    """A good frame with a bad message in it is the client's fault."""
    with pytest.raises(InvalidRequest):
        CODEC.decode_call(Frame((bytes(64),)))
