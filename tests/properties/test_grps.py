"""Properties of grps's codecs: encoded messages decode, and no bytes cause a crash."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor
from gateway.protocols.grps.brpc.codec import BrpcCodec
from gateway.protocols.grps.brpc.framing import BaiduFramer
from gateway.protocols.grps.datatypes import BY_DATATYPE
from gateway.protocols.grps.errors import Unreadable
from gateway.protocols.grps.grpc import SERVICE, GrpcCodec
from gateway.protocols.grps.http.codec import HttpCodec
from gateway.protocols.grps.messages import SUCCESS, ContentFormat, GrpsMessage, GrpsStatus
from gateway.protocols.grps.protobuf.message import read_message, write_message
from gateway.schema import grps_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame

LIMITS = DEFAULT_LIMITS
OPTIONS = {"default_model": "m"}
HTTP = HttpCodec(LIMITS, OPTIONS)
GRPC = GrpcCodec(LIMITS, OPTIONS)
BRPC = BrpcCodec(LIMITS, OPTIONS)
JSON = Headers((("Content-Type", "application/json"),))

NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=8)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TEXTS = st.text(max_size=6).filter(str.isprintable)


def _array(draw: st.DrawFn, datatype: Datatype, count: int) -> np.ndarray[Any, Any]:
    dtype = datatype.numpy_dtype
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    array = np.frombuffer(raw, dtype).copy()
    if datatype.is_float:
        # NaN has one spelling in JSON, and half of it one in float32.
        array[np.isnan(array)] = np.nan
    return array


@st.composite
def tensors(draw: st.DrawFn, name: str) -> Tensor:
    """Draw a tensor of any datatype that grps has."""
    shape = draw(SHAPES)
    datatype = draw(st.sampled_from(sorted(BY_DATATYPE, key=lambda one: one.name)))
    count = math.prod(shape)
    if datatype is Datatype.BYTES:
        items = draw(st.lists(TEXTS, min_size=count, max_size=count))
        return items_tensor(name, shape, [item.encode() for item in items])
    return array_tensor(name, _array(draw, datatype, count).reshape(shape))


@st.composite
def requests(draw: st.DrawFn) -> InferRequest:
    """Draw a request that grps can carry: named tensors, or one without a name."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    if len(names) == 1 and draw(st.booleans()):
        names = [""]
    inputs = tuple([draw(tensors(name)) for name in names])
    return InferRequest(model=ModelRef(draw(NAMES)), inputs=inputs)


def _http(call: InferRequest) -> Any:
    wire = HTTP.encode_call(call)
    body = (memoryview(b"".join(wire.body)),)
    return HTTP.decode_call(HttpRequest(wire.method, wire.path, wire.query, wire.headers, body))


def _grpc(call: InferRequest) -> Any:
    wire = GRPC.encode_call(call)
    return GRPC.decode_call(GrpcRequest(wire.method, (memoryview(b"".join(wire.message)),)))


def _brpc(call: InferRequest) -> Any:
    wire = BRPC.encode_call(call)
    [frame] = BaiduFramer(LIMITS).receive(b"".join(BaiduFramer(LIMITS).send(wire)))
    return BRPC.decode_call(frame)


CODECS: list[Callable[[InferRequest], Any]] = [_http, _grpc, _brpc]


@given(requests())
def test_requests_round_trip(call: InferRequest) -> None:
    """Model, names, datatypes, shapes and every bit of the elements survive, in all three forms."""
    for send in CODECS:
        found = send(call)
        assert (call.model, call.inputs) == (found.model, found.inputs)


@given(requests())
def test_responses_round_trip(call: InferRequest) -> None:
    """The outputs of a reply survive, for a call with tensors."""
    reply = InferResponse(model=ModelRef("m"), outputs=call.inputs)
    http = HTTP.decode_reply(call, HTTP.encode_reply(call, reply))
    grpc = GRPC.decode_reply(call, GRPC.encode_reply(call, reply))
    brpc = BRPC.decode_reply(call, BRPC.encode_reply(call, reply))
    assert [reply.outputs] * 3 == [http.outputs, grpc.outputs, brpc.outputs]


VALUES = st.one_of(
    st.fixed_dictionaries({"s_s": st.dictionaries(NAMES, TEXTS, max_size=2)}),
    st.fixed_dictionaries({"s_b": st.dictionaries(NAMES, st.binary(max_size=5), max_size=2)}),
    st.fixed_dictionaries({"s_i64": st.dictionaries(NAMES, st.integers(-(2**63), 2**63 - 1))}),
    st.fixed_dictionaries({"s_d": st.dictionaries(NAMES, st.floats(allow_nan=False))}),
)
MESSAGES = st.one_of(
    st.builds(lambda text: GrpsMessage(form=ContentFormat.STR_DATA, text=text), TEXTS),
    st.builds(
        lambda data: GrpsMessage(form=ContentFormat.BIN_DATA, data=data), st.binary(max_size=9000)
    ),
    st.builds(lambda entries: GrpsMessage(form=ContentFormat.GMAP, entries=entries), VALUES),
    st.builds(lambda code: GrpsMessage(status=GrpsStatus(code, "x", 2)), st.integers(-9, 999)),
    st.just(GrpsMessage(status=SUCCESS, model="m")),
)


@given(MESSAGES)
def test_messages_are_encoded_as_by_protobuf(message: GrpsMessage) -> None:
    """The protobuf library encodes the decoded message with the same bytes."""
    data = b"".join(write_message(message))
    found = pb.GrpsMessage.FromString(data)
    again = found.SerializeToString(deterministic=True)
    assert data == again
    assert data == b"".join(write_message(read_message(memoryview(again), LIMITS)))


SEEDS = [
    b"".join(
        write_message(
            GrpsMessage(
                model="m",
                form=ContentFormat.GTENSORS,
                tensors=(
                    array_tensor("a", np.arange(3, dtype=np.int8) - 1),
                    array_tensor("b", np.ones((1, 2), np.float16)),
                    items_tensor("c", (2,), [b"x", b"yz"]),
                ),
            )
        )
    ),
    b"".join(
        write_message(
            GrpsMessage(form=ContentFormat.GMAP, entries={"s_s": {"a": "b"}, "s_b": {"k": b"\x00"}})
        )
    ),
    b"".join(write_message(GrpsMessage(status=SUCCESS, form=ContentFormat.STR_DATA, text="hello"))),
]
DOCUMENTS = [
    b'{"gtensors":{"tensors":[{"name":"a","dtype":"DT_INT64","shape":[2],"flat_int64":[1,"-2"]}]}}',
    b'{"gmap":{"s_b":{"k":"AAE="},"s_f":{"f":"NaN"}},"model":"m-1"}',
    b'{"ndarray":[[1,2.5],[true,-3]]}',
    b'{"status":{"code":200,"msg":"OK","status":"SUCCESS"},"str_data":"x"}',
]


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Draw a valid message with some bytes changed, cut out or put in."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 4)))
        data[at:end] = draw(st.binary(max_size=4))
    return bytes(data)


CALL = InferRequest(model=ModelRef("m"))
STREAM = StreamInferRequest(model=ModelRef("m"), request=CALL)


def _only_our_errors(attempt: Callable[[], Any]) -> GatewayError | None:
    try:
        attempt()
    except GatewayError as error:
        return error
    return None


@given(st.one_of(mutated(SEEDS), st.binary(max_size=60)))
def test_any_bytes_decode_as_by_protobuf_or_are_rejected(data: bytes) -> None:
    """Both halves of the codec raise only GatewayErrors, and agree with the library."""
    request = GrpcRequest(SERVICE + "Predict", (memoryview(data),))
    error = _only_our_errors(lambda: GRPC.decode_call(request))
    _only_our_errors(lambda: GRPC.decode_reply(CALL, GrpcResponse((memoryview(data),))))
    try:
        pb.GrpsMessage.FromString(data)
    except Exception:  # noqa: BLE001  # whatever the library's words
        assert error is not None
    else:
        assert not isinstance(error, Unreadable)
    if error is not None:
        assert GRPC.encode_error(None, error) is not None


@given(st.one_of(mutated(DOCUMENTS), st.binary(max_size=60)))
def test_any_json_decodes_or_is_rejected(data: bytes) -> None:
    """Only GatewayErrors are raised, and the encoded error is always JSON."""
    request = HttpRequest("POST", "/grps/v1/infer/predict", "", JSON, (memoryview(data),))
    error = _only_our_errors(lambda: HTTP.decode_call(request))
    for status in (200, 500):
        response = HttpResponse(status, JSON, (memoryview(data),))
        _only_our_errors(lambda response=response: HTTP.decode_reply(CALL, response))  # type: ignore[misc]
        _only_our_errors(lambda response=response: HTTP.decode_item(STREAM, response))  # type: ignore[misc]
    if error is not None:
        document = orjson.loads(HTTP.encode_error(None, error).view)
        assert "FAILURE" == document["status"]["status"]


FRAMES = [
    b"".join(BaiduFramer(LIMITS).send(Frame(BRPC.encode_call(call).payload, number)))
    for number, call in (
        (7, InferRequest(model=ModelRef("m"), inputs=(array_tensor("x", np.ones(3)),))),
        (-1, InferRequest(inputs=(items_tensor("", (1,), [b"x"]),))),
    )
]


@given(st.one_of(mutated(FRAMES), mutated([FRAMES[0] + FRAMES[1]]), st.binary(max_size=40)))
def test_any_bytes_are_frames_or_rejected(data: bytes) -> None:
    """Each frame is a call or an error."""
    framer = BaiduFramer(LIMITS)
    frames: list[Frame] = []
    _only_our_errors(lambda: frames.extend(framer.receive(data)))
    for frame in frames:
        error = _only_our_errors(lambda frame=frame: BRPC.decode_call(frame))  # type: ignore[misc]
        _only_our_errors(lambda frame=frame: BRPC.decode_reply(CALL, frame))  # type: ignore[misc]
        if error is not None:
            assert BRPC.encode_error(None, error).payload


@given(
    st.lists(st.sampled_from(FRAMES), min_size=1, max_size=4),
    st.lists(st.integers(1, 90), max_size=30),
)
def test_any_split_of_the_bytes_reads_the_same_frames(sent: list[bytes], cuts: list[int]) -> None:
    """A framer returns the sent frames from pieces of any size."""
    data = b"".join(sent)
    framer = BaiduFramer(LIMITS)
    found: list[Frame] = []
    at = 0
    for cut in [*cuts, len(data)]:
        if data[at : at + cut]:
            found += framer.receive(data[at : at + cut])
        at += cut
    if at < len(data):
        found += framer.receive(data[at:])
    assert (sent, 0) == ([bytes(frame.payload[0]) for frame in found], framer.wanted)
