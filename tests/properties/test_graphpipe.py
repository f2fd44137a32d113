"""GraphPipe's codec against flatc's classes and flatbuffers' Builder, over arbitrary messages."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    as_items,
    as_raw,
    items_tensor,
    raw_tensor,
)
from gateway.protocols.graphpipe.config_parameter import CONFIG, CONFIG_BASE64
from gateway.protocols.graphpipe.datatypes import DATATYPES, NUMBERS
from gateway.protocols.graphpipe.http import HttpCodec
from gateway.protocols.graphpipe.stream import GraphPipeStreamCodec, SizePrefixFramer
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.stream import Frame
from tests.cases import graphpipe_oracle as oracle

MODEL = ModelRef("m")
HTTP = HttpCodec(DEFAULT_LIMITS, {})
STREAM = GraphPipeStreamCodec(DEFAULT_LIMITS, {"default_model": "m"})
PATH = "/graphpipe/m"

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)
SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)
MANY_ITEMS = st.integers(33, 80).map(lambda count: (count,))


@st.composite
def plain_tensors(draw: st.DrawFn) -> oracle.PlainTensor:
    number = draw(st.integers(1, 12))
    shape = draw(SHAPES | MANY_ITEMS)
    count = int(np.prod(shape, dtype=np.int64))
    if number == oracle.STRING:
        items = draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count))
        return oracle.PlainTensor(number, shape, b"", tuple(items), draw(st.booleans()))
    datatype = DATATYPES[number]
    assert datatype is not None
    size = count * datatype.size_bytes
    data = draw(st.binary(min_size=size, max_size=size))
    return oracle.PlainTensor(number, shape, data, (), draw(st.booleans()))


@st.composite
def plain_requests(draw: st.DrawFn) -> oracle.PlainRequest:
    tensors = tuple(draw(st.lists(plain_tensors(), max_size=4)))
    count = len(tensors)
    names = draw(st.lists(NAMES, min_size=count, max_size=count, unique=True))
    if draw(st.booleans()):
        names = []
    outputs = draw(st.lists(NAMES | st.just(""), max_size=4))
    return oracle.PlainRequest(draw(st.binary(max_size=20)), tuple(names), tensors, tuple(outputs))


def tensor_of(plain: oracle.PlainTensor, name: str = "") -> Tensor:
    datatype = DATATYPES[plain.number]
    assert datatype is not None
    if datatype is Datatype.BYTES:
        return items_tensor(name, plain.shape, plain.items)
    return raw_tensor(name, datatype, plain.shape, memoryview(plain.data))


def plain_of(tensor: Tensor) -> oracle.PlainTensor:
    assert tensor.datatype is not None
    assert tensor.shape is not None
    number = NUMBERS[tensor.datatype]
    if tensor.datatype is Datatype.BYTES:
        items = tuple(bytes(item) for item in as_items(tensor))
        return oracle.PlainTensor(number, tensor.shape, b"", items)
    return oracle.PlainTensor(number, tensor.shape, bytes(as_raw(tensor)))


def posted(body: bytes) -> InferRequest:
    call = HTTP.decode_call(HttpRequest("POST", PATH, body=(memoryview(body),)))
    assert isinstance(call, InferRequest)
    return call


@given(plain_requests(), st.booleans())
def test_built_requests_are_read_as_by_the_oracle(plain: oracle.PlainRequest, trim: bool) -> None:
    """Requests of the Builder, with or without all fields, are read as by flatc's classes."""
    body = oracle.build_request(plain, trim=trim)
    call = posted(body)
    read = oracle.read_request(body)
    assert read is not None
    assert read.tensors == tuple(plain_of(tensor) for tensor in call.inputs)
    assert read.input_names == tuple(tensor.name for tensor in call.inputs if tensor.name)
    form = call.context.origin
    assert form is not None
    assert read.output_names == form.form.outputs


@given(plain_requests())
def test_written_requests_are_read_by_the_oracle(plain: oracle.PlainRequest) -> None:
    """The classes of flatc read the names, tensors and config of the call."""
    names = plain.input_names or ("",) * len(plain.tensors)
    outputs = [name for name in plain.output_names if name]
    call = InferRequest(
        model=MODEL,
        inputs=tuple(tensor_of(t, name) for t, name in zip(plain.tensors, names, strict=True)),
        outputs=tuple(RequestedOutput(name) for name in outputs),
        parameters=posted(oracle.build_request(plain)).parameters,
    )
    for body in (HTTP.encode_call(call).body, STREAM.encode_call(call).payload):
        read = oracle.read_request(b"".join(body))
        assert read is not None
        assert (plain.config, plain.input_names, plain.tensors) == (
            read.config,
            read.input_names,
            read.tensors,
        )
        assert outputs == list(read.output_names)


@given(plain_requests())
def test_requests_round_trip(plain: oracle.PlainRequest) -> None:
    """decode_call(encode_call(call)) is the call, over both carriers."""
    call = posted(oracle.build_request(plain)).changed(context=Context())
    for codec, again in (
        (HTTP, HTTP.decode_call(HTTP.encode_call(call))),
        (STREAM, STREAM.decode_call(STREAM.encode_call(call))),
    ):
        assert codec.name == again.context.protocol
        assert call == again.changed(context=Context())


@given(st.lists(plain_tensors(), min_size=1, max_size=4), st.booleans())
def test_responses_agree_with_the_oracle(tensors: list[oracle.PlainTensor], trim: bool) -> None:
    """Responses of the Builder decode, and encoded ones are read by flatc's classes."""
    call = InferRequest(model=MODEL)
    built = oracle.build_response(tensors, trim=trim)
    reply: InferResponse = HTTP.decode_reply(call, HttpResponse(200, body=(built,)))
    assert tensors == [plain_of(tensor) for tensor in reply.outputs]
    written = b"".join(HTTP.encode_reply(call, reply).body)
    assert (tuple(tensors), ()) == oracle.read_response(written)
    assert oracle.has_both_vectors(written)
    again: InferResponse = STREAM.decode_reply(call, Frame((written,)))
    assert reply == again


@given(st.lists(plain_tensors(), min_size=1, max_size=4))
def test_data_is_aligned_and_not_copied(tensors: list[oracle.PlainTensor]) -> None:
    """Numeric data is sent as the original buffer, at a multiple of 64 from the start."""
    reply = InferResponse(model=MODEL, outputs=tuple(map(tensor_of, tensors)))
    views = [
        as_raw(tensor)
        for tensor in reply.outputs
        if tensor.datatype is not Datatype.BYTES and tensor.nbytes
    ]
    at = 0
    found = []
    for part in HTTP.encode_reply(InferRequest(model=MODEL), reply).body:
        if any(part is view for view in views):
            found.append(part)
            assert 0 == at % 64
        at += len(part)
    assert len(views) == len(found)


@st.composite
def mutations(draw: st.DrawFn, base: bytes) -> bytes:
    data = bytearray(base[: draw(st.integers(0, len(base)))] if draw(st.booleans()) else base)
    for _ in range(draw(st.integers(0, 4))):
        if len(data) < 4:
            break
        at = draw(st.integers(0, len(data) - 4))
        word = draw(
            st.sampled_from([0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF])
            | st.integers(0, 255)
        )
        width = draw(st.sampled_from([1, 2, 4]))
        data[at : at + width] = word.to_bytes(4, "little")[:width]
    return bytes(data)


def outcome(decode: Callable[[], Any]) -> Any:
    """Return the result of *decode*; None if it raises an error, which must have a text."""
    try:
        return decode()
    except GatewayError as error:
        refusal = error
    assert refusal.message
    return None


def read_all(codec_call: Any) -> None:
    """Read every element of a decoded call or reply."""
    tensors = codec_call.inputs if isinstance(codec_call, InferRequest) else codec_call.outputs
    for tensor in tensors:
        as_raw(tensor)


@given(st.data(), plain_requests())
def test_mutated_requests_raise_gateway_errors_or_decode(
    data: st.DataObject, plain: oracle.PlainRequest
) -> None:
    """Truncated or overwritten requests raise no other exception."""
    body = data.draw(mutations(oracle.build_request(plain)))
    wire = HttpRequest("POST", PATH, body=(memoryview(body),))
    call = outcome(lambda: HTTP.decode_call(wire))
    if isinstance(call, InferRequest):
        read_all(call)


@given(st.data(), st.lists(plain_tensors(), max_size=3))
def test_mutated_responses_raise_gateway_errors_or_decode(
    data: st.DataObject, tensors: list[oracle.PlainTensor]
) -> None:
    """A damaged response raises no other exception, for any call and status."""
    metadata = oracle.PlainMetadata(
        "m", "1", "s", "d", (oracle.PlainIO("x", "BOOL as Uint8", (-1, 2), 1),), ()
    )
    base = data.draw(
        st.sampled_from(
            [
                oracle.build_response(tensors),
                oracle.build_response([], [(404, "no such model")]),
                oracle.build_metadata(metadata),
            ]
        )
    )
    body = data.draw(mutations(base))
    calls: list[Any] = [InferRequest(model=MODEL), ModelMetadataRequest(model=MODEL)]
    for call, status in itertools.product(calls, (200, 400)):
        wire = HttpResponse(status, body=(body,))
        reply = outcome(functools.partial(HTTP.decode_reply, call, wire))
        if isinstance(reply, InferResponse):
            read_all(reply)


@given(st.binary(max_size=200))
def test_any_bytes_raise_gateway_errors_or_decode(body: bytes) -> None:
    """Bytes that are no message raise a GatewayError, too."""
    outcome(lambda: HTTP.decode_call(HttpRequest("POST", PATH, body=(body,))))
    outcome(lambda: STREAM.decode_call(Frame((body,))))


DECLARED = st.builds(
    TensorMetadata,
    NAMES,
    st.none() | st.sampled_from(Datatype),
    st.none() | st.lists(st.integers(-1, 9), max_size=4).map(tuple),
)


@given(st.lists(DECLARED, max_size=3), st.lists(DECLARED, max_size=3))
def test_metadata_round_trip(inputs: list[TensorMetadata], outputs: list[TensorMetadata]) -> None:
    """Names, datatypes (BOOL and BF16 too) and shapes survive, unknown ones included."""
    call = ModelMetadataRequest(model=MODEL)
    metadata = ModelMetadata(name="m", inputs=tuple(inputs), outputs=tuple(outputs))
    wire = HTTP.encode_reply(call, metadata)
    read: ModelMetadata = HTTP.decode_reply(call, wire)
    assert (metadata.inputs, metadata.outputs) == (read.inputs, read.outputs)
    plain = oracle.read_metadata(b"".join(wire.body))
    for expected, found in zip((*inputs, *outputs), (*plain.inputs, *plain.outputs), strict=True):
        assert (expected.name, expected.shape) == (found.name, found.shape)


@given(st.lists(st.binary(min_size=8, max_size=40), max_size=6), st.data())
def test_any_split_of_the_bytes_reads_the_same_frames(
    payloads: list[bytes], data: st.DataObject
) -> None:
    """A framer returns the sent frames in order from pieces of any size."""
    writer = SizePrefixFramer(DEFAULT_LIMITS)
    sent = b"".join(b"".join(writer.send(Frame((payload,)))) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))
    reader = SizePrefixFramer(DEFAULT_LIMITS)
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        if start < end:
            found += [bytes(frame.payload[0]) for frame in reader.receive(sent[start:end])]
    assert payloads == found
    assert [] == reader.receive(b"")


@given(st.binary(min_size=1, max_size=40))
def test_config_round_trip(config: bytes) -> None:
    """Any config decodes to a parameter and encodes to the same bytes."""
    plain = oracle.PlainRequest(config, (), (), ())
    call = posted(oracle.build_request(plain))
    assert 1 == len({CONFIG, CONFIG_BASE64} & set(call.parameters))
    again = oracle.read_request(b"".join(HTTP.encode_call(call).body))
    assert again is not None
    assert config == again.config
