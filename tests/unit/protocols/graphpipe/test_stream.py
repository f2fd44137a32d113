"""The GraphPipe codec and framing for TCP and unix sockets."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
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
    """A request of another implementation is decoded to the expected call for the default model."""
    [frame] = framer().receive(framed(case.message))
    assert case.call == CODEC.decode_call(frame).changed(context=Context())


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_writes_call(case: CallCase) -> None:
    """A request has a size prefix, and another implementation reads it correctly."""
    data = sent(CODEC.encode_call(case.call))
    assert len(data) - 4 == struct.unpack_from("<I", data)[0]
    assert oracle.read_request(case.message) == oracle.read_request(data[4:])


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_reads_reply(case: ReplyCase) -> None:
    """A response of another implementation is decoded to the expected reply."""
    [frame] = framer().receive(framed(case.message))
    assert case.reply == CODEC.decode_reply(case.call, frame)


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_writes_reply(case: ReplyCase) -> None:
    """Another implementation reads an encoded response correctly."""
    frame = CODEC.encode_reply(case.call, case.reply)
    read: Any = oracle.read_response
    if isinstance(case.call, ModelMetadataRequest):
        read = oracle.read_metadata
    assert read(case.message) == read(payload(frame))


def test_size_prefixed_messages_of_the_builder_are_read() -> None:
    """The Builder's own size prefix, which is part of its alignment, is the same framing."""
    plain = oracle.PlainRequest(b"c", ("x",), (oracle.PlainTensor(11, (1,), bytes(8)),), ())
    [frame] = framer().receive(oracle.build_request(plain, prefix=True))
    call = CODEC.decode_call(frame)
    assert isinstance(call, InferRequest)
    assert "x" == call.inputs[0].name


def test_framer_accepts_single_bytes() -> None:
    """A framer returns each frame with its last byte."""
    used = framer()
    found = [used.receive(bytes([byte])) for byte in GOOD + GOOD]
    assert [len(GOOD) - 1, 2 * len(GOOD) - 1] == [at for at, frames in enumerate(found) if frames]
    assert [] == used.receive(b"")


@pytest.mark.parametrize("cut", [1, 3, 4, 5, len(GOOD) - 1])
def test_stream_that_ends_within_a_frame_is_malformed(cut: int) -> None:
    """The end of a stream within a frame raises MalformedMessage."""
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
def test_invalid_size_is_rejected_at_once(start: bytes, kind: type[GatewayError]) -> None:
    """Four bytes are enough to reject a frame; nothing is allocated for its size."""
    with pytest.raises(kind):
        framer().receive(start)


def test_frames_before_an_invalid_one_are_returned() -> None:
    """Complete frames are returned first; the invalid size is rejected with the next bytes."""
    used = framer()
    assert [METADATA_REQUEST] == [payload(f) for f in used.receive(GOOD + bytes(4))]
    with pytest.raises(MalformedMessage):
        used.receive(b"x")


def test_payload_is_sent_without_a_copy() -> None:
    """The framer puts a size before the buffers and copies none of them."""
    view = memoryview(bytes(16))
    parts = framer().send(Frame((view, b"ab")))
    assert (struct.pack("<I", 18), True) == (parts[0], parts[1] is view)


def test_a_listener_needs_a_default_model() -> None:
    """A request on a stream names no model, so decoding without a default raises NotFound."""
    with pytest.raises(NotFound, match="default model"):
        GraphPipeStreamCodec().decode_call(Frame((METADATA_REQUEST,)))


def test_metadata_request_is_decoded() -> None:
    """A metadata request is for the listener's model; the deadline is that of the frame."""
    call = CODEC.decode_call(Frame((METADATA_REQUEST,), None, 3.5))
    assert (ModelMetadataRequest, REF, 3.5) == (type(call), call.model, call.context.deadline)


def test_outputs_have_the_requested_order() -> None:
    """The response has the outputs in the requested order, repeated ones too."""
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
def test_every_error_is_in_the_response_body(code: ErrorCode) -> None:
    """A stream has no status, so the error of a metadata call is in the body as well."""
    for call in (None, NAMED, ModelMetadataRequest(model=REF)):
        frame = CODEC.encode_error(call, ERROR_CLASSES[code]("why"))
        assert () == oracle.read_response(payload(frame))[0]
        assert "why" == oracle.read_response(payload(frame))[1][0][1]
        with pytest.raises(GatewayError, match="why"):
            CODEC.decode_reply(ModelMetadataRequest(model=REF), frame)


def test_upstream_errors_are_forwarded_unchanged() -> None:
    """Number and text of an upstream's error reach the client of this codec."""
    frame = Frame((oracle.build_response([], [(404, "no such model")]),))
    with pytest.raises(ModelNotFound) as raised:
        CODEC.decode_reply(NAMED, frame)
    again = oracle.read_response(payload(CODEC.encode_error(NAMED, raised.value)))
    assert ((), ((404, "no such model"),)) == again


def test_health_and_server_metadata_use_metadata_requests() -> None:
    """Every call but inference is sent as a metadata request."""
    metadata = oracle.PlainMetadata("m", "1.0", "srv", "", (), ())
    response = Frame((oracle.build_metadata(metadata),))
    down = Frame((oracle.build_response([], [(503, "loading")]),))
    calls: list[Call[bool]] = [
        ServerLiveRequest(),
        ServerReadyRequest(),
        ModelReadyRequest(model=REF),
    ]
    for call, when_down in zip(calls, (True, False, False), strict=True):
        assert oracle.read_request(payload(CODEC.encode_call(call))) is None
        assert CODEC.decode_reply(call, response)
        assert when_down is CODEC.decode_reply(call, down)
    assert ServerMetadata("srv", "1.0") == CODEC.decode_reply(ServerMetadataRequest(), response)
    not_found = Frame((oracle.build_response([], [(404, "gone")]),))
    with pytest.raises(ModelNotFound):
        CODEC.decode_reply(calls[2], not_found)


@pytest.mark.parametrize("call", [RepositoryIndexRequest(), StreamInferRequest(request=NAMED)])
def test_unsupported_calls_are_rejected(call: Any) -> None:
    """Repository index and stream calls raise Unsupported in each direction."""
    for function, *arguments in (
        (CODEC.encode_call, call),
        (CODEC.encode_reply, call, None),
        (CODEC.decode_reply, call, Frame((METADATA_REQUEST,))),
        (CODEC.encode_item, call, REPLIES[0].reply),
        (CODEC.decode_item, call, Frame(())),
    ):
        with pytest.raises(Unsupported):
            function(*arguments)


def test_a_payload_of_two_gigabytes_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload over the maximum size is rejected before it is sent."""
    monkeypatch.setattr(stream, "MAX_MESSAGE_BYTES", 10)
    with pytest.raises(TooLarge, match="at most 10"):
        framer().send(Frame((bytes(11),)))


def test_malformed_messages_are_rejected() -> None:
    """A valid frame with a malformed message raises InvalidRequest."""
    with pytest.raises(InvalidRequest):
        CODEC.decode_call(Frame((bytes(64),)))


def test_wanted_is_the_size_of_the_incoming_frame() -> None:
    """The size of a frame is known with the last byte of its prefix; between frames it is 0."""
    used = framer()
    found = [used.wanted]
    for byte in GOOD:
        used.receive(bytes([byte]))
        found.append(used.wanted)
    assert [0, 4, 4, 4, *[len(GOOD)] * (len(GOOD) - 4), 0] == found


def test_wanted_is_the_size_of_a_frame_begun_in_the_same_read() -> None:
    """Bytes after a frame are the beginning of the next one."""
    used = framer()
    assert 1 == len(used.receive(GOOD + GOOD[:9]))
    assert len(GOOD) == used.wanted
    assert 2 == len(used.receive(GOOD[9:] + GOOD))
    assert 0 == used.wanted


@pytest.mark.parametrize(
    ("bad", "kind"), [(b"GET / HTTP/1.1", MalformedMessage), (struct.pack("<I", 1001), TooLarge)]
)
def test_fault_after_a_frame_is_set_at_once(bad: bytes, kind: type[Exception]) -> None:
    """The frame is returned and the fault is set; later bytes raise the fault."""
    used = framer()
    assert 1 == len(used.receive(GOOD + bad))
    assert isinstance(used.fault, kind)
    with pytest.raises(kind):
        used.receive(b"more")


def test_returned_frames_do_not_change() -> None:
    """Later bytes do not change a returned frame, which is read-only."""
    used = framer()
    used.receive(GOOD[:7])
    [first] = used.receive(GOOD[7:] + GOOD[:5])
    used.receive(b"x" * (len(GOOD) - 5))
    [view] = first.payload
    assert METADATA_REQUEST == bytes(view)
    assert isinstance(view, memoryview)
    assert view.readonly


def test_a_frame_in_one_piece_is_not_copied() -> None:
    """Frames that arrive whole are views of the received bytes."""
    data = bytes(bytearray(GOOD + GOOD))
    frames = framer().receive(data)
    wire = np.frombuffer(data, np.uint8)
    for frame in frames:
        assert np.shares_memory(wire, np.frombuffer(frame.payload[0], np.uint8))


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_response_may_begin_before_its_size_is_known(case: ReplyCase) -> None:
    """A response whose first byte is sent early is read as the same reply by all readers."""
    used = SizePrefixFramer(MessageLimits())
    frame = GraphPipeStreamCodec().encode_reply(case.call, case.reply)
    plain = b"".join(used.send(frame))
    data = used.begin() + used.begin() + b"".join(used.send(frame))
    again = b"".join(used.send(frame))
    [read] = SizePrefixFramer(MessageLimits()).receive(data)
    message, padded = b"".join(frame.payload), bytes(read.payload[0])
    assert plain == again
    assert message == padded[: len(message)]
    assert b"" == padded[len(message) :].strip(b"\0")
    assert case.reply == GraphPipeStreamCodec().decode_reply(case.call, read)
    if isinstance(case.call, InferRequest):
        assert oracle.read_response(message) == oracle.read_response(padded)


def test_frame_whose_size_starts_with_zero_has_no_padding() -> None:
    """The first byte of a size of 256 is zero, so a frame that begins early has no padding."""
    used = framer()
    data = used.begin() + b"".join(used.send(Frame((bytes(256),))))
    assert struct.pack("<I", 256) + bytes(256) == data
