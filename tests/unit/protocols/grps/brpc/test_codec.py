"""Frames of baidu_std: framing, correlation ids, compression, and the codec on them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse, ServerLiveRequest, StreamInferRequest
from gateway.ir.context import Context, Metadata, ModelRef, Need
from gateway.ir.errors import (
    GatewayError,
    InvalidTensor,
    MalformedMessage,
    Overloaded,
    TooLarge,
    Unavailable,
    Unsupported,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.tensor import array_tensor, items_tensor
from gateway.protocols.grps import SPEC
from gateway.protocols.grps.brpc.codec import BrpcCodec, trace_headers
from gateway.protocols.grps.brpc.compression import (
    GZIP,
    NAMES,
    NONE,
    SNAPPY,
    ZLIB,
    compress,
    decompress,
    unpacked_bytes,
)
from gateway.protocols.grps.brpc.framing import BaiduFramer, frame_bytes, server_framer, split_frame
from gateway.protocols.grps.errors import Unreadable
from gateway.protocols.grps.messages import failure
from gateway.protocols.grps.protobuf.message import read_message, write_message
from gateway.schema.baidu_std_pb2 import RpcMeta, RpcRequestMeta, RpcResponseMeta
from gateway.wire.stream import Frame

CODEC = BrpcCodec(DEFAULT_LIMITS, {})
FP32 = array_tensor("x", np.arange(4000, dtype=np.float32))
CALL = InferRequest(model=ModelRef("m", "1"), inputs=(FP32,))
META = RpcMeta(request=RpcRequestMeta(service_name="s", method_name="m"), compress_type=0)


def sent(frame: Frame, number: int | None = 5, framer: BaiduFramer | None = None) -> bytes:
    """Return the bytes of a frame with this correlation id."""
    made = framer or BaiduFramer(DEFAULT_LIMITS)
    return b"".join(made.send(Frame(frame.payload, number)))


def received(data: bytes, step: int = 1 << 20) -> list[Frame]:
    """Return the frames of a whole stream, cut into pieces of *step* bytes."""
    framer = BaiduFramer(DEFAULT_LIMITS)
    found: list[Frame] = []
    for at in range(0, len(data), step):
        found += framer.receive(data[at : at + step])
    framer.receive(b"")
    return found


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**63 - 1, -1, -(2**63)])
def test_correlation_id_is_written_and_read(number: int) -> None:
    """Any 64-bit id is kept; the message behind the metadata is unchanged."""
    wire = CODEC.encode_call(CALL)
    [frame] = received(sent(wire, number))
    meta, rest = split_frame(memoryview(frame.payload[0]))
    whole = split_frame(memoryview(b"".join(wire.payload)))[1]
    assert (number, number, bytes(whole)) == (frame.correlation, meta.correlation_id, bytes(rest))


def test_correlation_id_is_written_into_any_payload_parts() -> None:
    """The frame does not depend on the parts of its payload."""
    wire = CODEC.encode_call(CALL)
    whole = b"".join(wire.payload)
    shapes = [wire.payload, (whole,), (whole[:5], whole[5:30], whole[30:])]
    assert 1 == len({sent(Frame(payload)) for payload in shapes})


@pytest.mark.parametrize("step", [1, 2, 11, 12, 13, 64, 100_000])
def test_frames_are_read_from_pieces_of_any_size(step: int) -> None:
    """Two frames are read byte by byte or at once."""
    data = sent(CODEC.encode_call(CALL), 1) + sent(CODEC.encode_call(ServerLiveRequest()), -2)
    frames = received(data, step)
    whole = b"".join(bytes(frame.payload[0]) for frame in frames)
    assert ([1, -2], data) == ([frame.correlation for frame in frames], whole)


def test_framer_reports_the_wanted_size() -> None:
    """It is the header's size, then the frame's, and 0 between frames."""
    data = sent(CODEC.encode_call(CALL))
    framer = BaiduFramer(DEFAULT_LIMITS)
    sizes = [framer.wanted]
    for piece in (data[:1], data[1:11], data[11:20], data[20:]):
        framer.receive(piece)
        sizes.append(framer.wanted)
    assert [0, 12, 12, len(data), 0] == sizes


def test_frames_before_a_fault_are_returned() -> None:
    """The fault is stored, and raised by the next call."""
    data = sent(CODEC.encode_call(ServerLiveRequest())) + b"GET / HTTP"
    framer = BaiduFramer(DEFAULT_LIMITS)
    assert (1, True) == (len(framer.receive(data)), isinstance(framer.fault, MalformedMessage))
    with pytest.raises(MalformedMessage, match="PRPC"):
        framer.receive(b"x")


def test_a_frame_over_the_limit_is_rejected_by_its_header() -> None:
    """The body is not read first; metadata that is too long is rejected, too."""
    small = MessageLimits(message_bytes=100)
    with pytest.raises(TooLarge, match="101 bytes, at most 100"):
        BaiduFramer(small).receive(b"PRPC" + (101).to_bytes(4, "big") + bytes(4))
    with pytest.raises(TooLarge, match="of metadata"):
        BaiduFramer(DEFAULT_LIMITS).receive(b"PRPC" + (1 << 20).to_bytes(4, "big") * 2)


def test_timeout_of_the_caller_becomes_a_deadline() -> None:
    """timeout_ms counts from the frame's arrival."""
    meta = RpcMeta()
    meta.CopyFrom(META)
    meta.request.timeout_ms = 250
    data = b"".join(frame_bytes(meta.SerializeToString(), []))
    framer = BaiduFramer(DEFAULT_LIMITS, clock=lambda: 100.0)
    assert 100.25 == framer.receive(data)[0].deadline


@pytest.mark.parametrize(
    ("left_s", "timeout_ms"), [(0.25, 250), (0.0004, 1), (-3.0, 1), (1e9, 2**31 - 1)]
)
def test_remaining_time_of_a_deadline_is_sent(left_s: float, timeout_ms: int) -> None:
    """The timeout is in whole milliseconds, at least one; the rest of the frame is the same."""
    wire = CODEC.encode_call(CALL)
    framer = BaiduFramer(DEFAULT_LIMITS, clock=lambda: 100.0)
    timed = b"".join(framer.send(Frame(wire.payload, 5, 100.0 + left_s)))
    [frame], [plain] = received(timed), received(sent(wire, 5))
    meta, rest = split_frame(memoryview(frame.payload[0]))
    plain_meta, plain_rest = split_frame(memoryview(plain.payload[0]))
    assert timeout_ms == meta.request.timeout_ms
    meta.request.ClearField("timeout_ms")
    assert (plain_meta, plain_rest) == (meta, rest)


def test_server_sends_frames_with_a_correlation_id_and_no_timeout() -> None:
    """Brpc closes a broken connection without a frame; a client may omit the id."""
    broken = CODEC.encode_error(None, MalformedMessage("broken"))
    assert [] == server_framer(DEFAULT_LIMITS).send(broken)
    assert sent(broken, None)
    wire = CODEC.encode_reply(ServerLiveRequest(), True)
    timed = server_framer(DEFAULT_LIMITS).send(Frame(wire.payload, 5, 1.0))
    assert sent(wire, 5) == b"".join(timed)


def test_magic_may_be_sent_before_the_frame() -> None:
    """The magic is sent once; the next frame omits it."""
    framer = server_framer(DEFAULT_LIMITS)
    wire = CODEC.encode_reply(ServerLiveRequest(), True)
    data = framer.begin() + framer.begin() + sent(wire, 5, framer)
    assert (data, data) == (sent(wire, 5), sent(wire, 5, framer))


@pytest.mark.parametrize("name", ["none", "snappy", "gzip", "zlib"])
def test_requests_are_compressed_as_configured(name: str) -> None:
    """The other end decodes the same call."""
    codec = BrpcCodec(DEFAULT_LIMITS, {"compress": name})
    [frame] = received(sent(codec.encode_call(CALL)))
    call = codec.decode_call(frame)
    assert isinstance(call, InferRequest)
    assert (ModelRef("m-1"), (FP32,)) == (call.model, call.inputs)


@pytest.mark.parametrize("number", [NONE, GZIP, SNAPPY])
def test_a_message_that_is_sent_on_is_compressed_as_configured(number: int) -> None:
    """The option of the upstream counts; without it the bytes of the client go on."""
    given = BrpcCodec(DEFAULT_LIMITS, {"compress": NAMES[ZLIB]}).encode_call(CALL)
    call = CODEC.decode_call(given)
    codec = BrpcCodec(DEFAULT_LIMITS, {"compress": NAMES[number]} if number else {})
    assert codec.sends_on(call)
    meta, rest = split_frame(codec.encode_call(call).view)
    received_meta, message = split_frame(given.view)
    if number == NONE:
        assert (ZLIB, bytes(message)) == (meta.compress_type, bytes(rest))
    else:
        plain = bytes(decompress(received_meta.compress_type, message, 1 << 20))
        assert number == meta.compress_type
        assert sorted(plain) == sorted(bytes(decompress(number, rest, 1 << 20)))


@pytest.mark.parametrize("number", [NONE, GZIP])
def test_a_compressed_failure_is_rewritten(number: int) -> None:
    """A compressed text may hold the traceback of a program."""
    call = CODEC.decode_call(CODEC.encode_call(CALL))
    text = write_message(failure(400, "refused"))
    meta = RpcMeta(response=RpcResponseMeta(error_code=0), compress_type=number, correlation_id=9)
    body = compress(number, b"".join(text) + b"\x82\x7d\x03own")
    wire = Frame(frame_bytes(meta.SerializeToString(), [body]))
    with pytest.raises(GatewayError) as caught:
        CODEC.decode_reply(call, wire)
    meta, rest = split_frame(CODEC.encode_error(call, caught.value).view)
    assert NONE == meta.compress_type
    assert (number == NONE) is bytes(rest).endswith(b"own")
    assert "refused" == read_message(rest, DEFAULT_LIMITS).status.msg  # type: ignore[union-attr]  # it has one


@pytest.mark.parametrize("number", [SNAPPY, GZIP, ZLIB])
@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 50])
def test_compressed_data_is_decompressed(number: int, data: bytes) -> None:
    """Every method restores the data, also an empty message."""
    packed = memoryview(compress(number, data))
    assert data == bytes(decompress(number, packed, 1 << 20))


BOMB = bytes(4 << 20)
GZIP_BOMB, GZIP_X = gzip.compress(BOMB, mtime=0), gzip.compress(b"x", mtime=0)
SNAPPY_BOMB = bytes(cramjam.snappy.compress_raw(BOMB))


@pytest.mark.parametrize(
    ("number", "data", "text"),
    [
        (GZIP, GZIP_BOMB, "exceeds 1048576"),
        (ZLIB, zlib.compress(BOMB), "exceeds 1048576"),
        (SNAPPY, SNAPPY_BOMB, "exceeds"),
        (SNAPPY, b"\xff\xff\xff\xff\x0f", "exceeds"),
        (SNAPPY, b"\x80\x80\x20" + b"\x00" * 9, "cannot contain"),
        (SNAPPY, b"\xff" * 11, "damaged"),
        (SNAPPY, b"", "damaged"),
        (GZIP, b"", "ends early"),
        (GZIP, GZIP_X + b"y", "exceeds"),
        (GZIP, GZIP_BOMB[:-4] + bytes(4), "exceeds 0 bytes"),
        (GZIP, GZIP_X + bytes(2), "exceeds"),
        (ZLIB, zlib.compress(b"x") + b"y", "after the compressed"),
        (ZLIB, b"\x00\x00", "damaged"),
        (4, b"x", "compress_type 4 is unknown"),
        (-1, b"x", "compress_type -1 is unknown"),
    ],
)
def test_bombs_and_damaged_data_are_rejected(number: int, data: bytes, text: str) -> None:
    """No data is decompressed beyond the limit."""
    with pytest.raises(Unreadable, match=text):
        decompress(number, memoryview(data), 1 << 20)


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (GZIP, GZIP_BOMB),
        (ZLIB, zlib.compress(BOMB)),
        (SNAPPY, SNAPPY_BOMB),
        (SNAPPY, b"\xff" * 11),
        (ZLIB, b"damaged"),
    ],
)
def test_decompressed_size_of_rejected_data_is_zero(number: int, data: bytes) -> None:
    """Such data is rejected when it is read."""
    assert 0 == unpacked_bytes(number, memoryview(data), 1 << 20)


@pytest.mark.parametrize(("number", "pack"), [(GZIP, gzip.compress), (ZLIB, zlib.compress)])
def test_tensor_with_a_high_compression_ratio_is_read(
    number: int, pack: Callable[[bytes], bytes]
) -> None:
    """Only the byte limit bounds a message that was compressed a thousandfold."""
    packed = memoryview(pack(bytes(8 << 20)))
    assert 900 * len(packed) < 8 << 20
    assert 8 << 20 == len(decompress(number, packed, 8 << 20))
    with pytest.raises(Unreadable, match="exceeds 8388607 bytes"):
        decompress(number, packed, (8 << 20) - 1)


@pytest.mark.parametrize("number", [NONE, SNAPPY, GZIP, ZLIB, 4, -1])
@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_frame_reports_its_decompressed_size(number: int, size: int) -> None:
    """The size is known before decompression; an attachment does not count."""
    body, attachment = compress(number, bytes(size)), b"attached" * 1000
    meta = RpcMeta(compress_type=number, attachment_size=len(attachment))
    data = b"".join(frame_bytes(meta.SerializeToString(), [body, attachment]))
    expected = size if number in (SNAPPY, GZIP, ZLIB) else 0
    assert expected == server_framer(DEFAULT_LIMITS).receive(data)[0].extra_bytes
    assert 0 == BaiduFramer(DEFAULT_LIMITS).receive(data)[0].extra_bytes


@pytest.mark.parametrize(
    ("call", "error", "code"),
    [
        (ServerLiveRequest(), InvalidTensor("x"), 0),
        (ServerLiveRequest(), Overloaded("x"), 2004),
        (ServerLiveRequest(), Unavailable("the gateway is shutting down"), 0),
        (None, Unavailable("the gateway is shutting down"), 2003),
    ],
)
def test_failure_is_in_the_message_unless_it_has_a_code(
    call: Any, error: GatewayError, code: int
) -> None:
    """Overload is ELIMIT, and shutdown without a call ELOGOFF, without a message."""
    meta, rest = split_frame(CODEC.encode_error(call, error).view)
    assert (code, code == 0) == (meta.response.error_code, bool(rest))


def test_responses_keep_the_correlation_id() -> None:
    """Replies and errors have the correlation id of the request."""
    [frame] = received(sent(CODEC.encode_call(CALL), 77))
    codec = BrpcCodec(DEFAULT_LIMITS, {"default_model": "m"})
    call = codec.decode_call(frame)
    reply: Any = InferResponse(model=ModelRef("m"), outputs=(items_tensor("t", (1,), [b"x"]),))
    responses = [codec.encode_reply(call, reply), codec.encode_error(call, InvalidTensor("x"))]
    assert [77, 77] == [response.correlation for response in responses]


def test_request_id_is_forwarded() -> None:
    """RpcRequestMeta.request_id is the call's id; one unsafe for logs is dropped."""
    wire = CODEC.encode_call(ServerLiveRequest(context=Context(request_id="r-1")))
    odd = CODEC.encode_call(ServerLiveRequest(context=Context(request_id="a\nb")))
    calls = [CODEC.decode_call(received(sent(one))[0]) for one in (wire, odd)]
    assert ["r-1", ""] == [call.context.request_id for call in calls]


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("traceparent", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", (("traceparent", f"00-{TRACE[16:]:0>32}-{SPAN}-01"),)),
        (f"00-{'a' * 32}-{'b' * 16}-00", ()),
        ("00-1", ()),
    ],
    ids=["sampled", "not_sampled", "invalid"],
)
def test_lower_half_of_the_trace_id_is_forwarded(traceparent: str, expected: Metadata) -> None:
    """The ids have 64 bits; only those of sampled traces are sent."""
    metadata = (("traceparent", traceparent), ("other", "x"))
    wire = CODEC.encode_call(CALL.with_context(metadata=metadata))
    assert expected == CODEC.decode_call(wire).context.metadata


def test_a_trace_without_a_span_has_no_header() -> None:
    """Both ids are needed."""
    request = RpcRequestMeta(service_name="s", method_name="m", trace_id=-1)
    assert () == trace_headers(request)
    request.span_id = 1
    assert (("traceparent", f"00-{'f' * 16:0>32}-{1:016x}-01"),) == trace_headers(request)


def test_streams_are_unsupported() -> None:
    """The error is raised before a frame is sent."""
    stream = StreamInferRequest(model=ModelRef("m"), request=CALL)
    for function, *arguments in (
        (CODEC.encode_call, stream),
        (CODEC.encode_item, stream, InferResponse(model=ModelRef("m"), outputs=())),
        (CODEC.decode_item, stream, Frame(())),
    ):
        with pytest.raises(Unsupported, match=r"stream infer is not supported over grps\.brpc"):
            function(*arguments)


def test_frame_without_protobuf_is_unreadable() -> None:
    """Newer clients may send JSON in a frame, with its content type."""
    meta = RpcMeta(content_type=1)
    meta.request.service_name, meta.request.method_name = "GrpsBrpcService", "Predict"
    wire = Frame(frame_bytes(meta.SerializeToString(), [b"{}"]))
    with pytest.raises(Unreadable, match="content_type 1 is not protobuf"):
        CODEC.decode_call(Frame((b"".join(wire.payload),)))


@pytest.mark.parametrize("message", [b"\xff", b""], ids=["no message", "no data"])
def test_unusable_response_is_malformed(message: bytes) -> None:
    """An invalid response is an error of the upstream, not of the call."""
    meta = RpcMeta(compress_type=0)
    meta.response.error_code = 0
    wire = Frame((b"".join(frame_bytes(meta.SerializeToString(), [message])),))
    with pytest.raises(MalformedMessage):
        CODEC.decode_reply(CALL, wire)


def test_spec_describes_the_stream_transport() -> None:
    """Tensors have a datatype; responses may be out of order, and have a widened one."""
    needs = frozenset({Need.DATATYPES, Need.WIDENED})
    assert ("grps.brpc", needs) == (CODEC.name, CODEC.needs)
    assert SPEC.stream is not None
    assert not SPEC.stream.is_ordered
    assert ("brpc",) == SPEC.stream.carriers
    assert {"none", "snappy", "gzip", "zlib"} == set(NAMES.values())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PRPC",
        b"PRPC" + bytes(7),
        b"XXXX" + bytes(20),
        b"PRPC" + bytes(7) + b"\x09" + bytes(9),
    ],
)
def test_payload_that_is_not_a_frame_is_rejected(data: bytes) -> None:
    """The codec raises only a GatewayError; a correlation id needs a frame."""
    with pytest.raises(GatewayError):
        CODEC.decode_call(Frame((data,)))
    if len(data) < 12:
        with pytest.raises(MalformedMessage, match=f"{len(data)} bytes is not a baidu_std frame"):
            BaiduFramer(DEFAULT_LIMITS).send(Frame((data,), 1))
