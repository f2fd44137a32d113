"""Inference messages read by hand against the protobuf library, and round trips of the codec.

Any bytes are given to both: messages, and messages with their fields shuffled, repeated, dropped,
unpacked, split, with unknown fields and groups among them, cut short and with bytes changed.  What
the library makes of the bytes is put into the IR here the slow way; the codec must come to the
same, or refuse when this does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import event, example, given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import GatewayError, MalformedMessage
from gateway.ir.limits import DEFAULT_LIMITS, check_name, check_shape, is_usable_name
from gateway.ir.tensors.data import split_items
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw, items_tensor, raw_tensor
from gateway.protocols.oip.datatypes import CONTENTS_FIELD, CONTENTS_NAMES, parse_datatype
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.grpc.decode import InferReader, Read
from gateway.protocols.oip.grpc.encode import InferEncoder
from gateway.protocols.oip.parameters import join_parameters
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.protobuf.wire_format import (
    LEN,
    tag,
)
from tests.properties.oip_messages import (
    CLEAN,
    DIMS,
    INT64,
    UINT64,
    damaged,
    flat,
    requests,
    responses,
    spelled,
)

READER = InferReader(DEFAULT_LIMITS)
WRITER = InferEncoder()
CODEC = GrpcCodec(DEFAULT_LIMITS, {})
INFER = "/inference.GRPCInferenceService/ModelInfer"


REFUSED = "refused"
# The library drops such an entry without a word; we say so.
STRICTER = "has an unknown field in its map entry"


class Refused(Exception):
    """The slow reading finds something that is not allowed."""


# The slow reading.


def require(good: bool) -> None:
    if not good:
        raise Refused


def slow_parameters(entries: Any) -> dict[str, str]:
    found = {}
    for name, choice in entries.items():
        check_name("parameter", name, DEFAULT_LIMITS.name_bytes, "name_bytes")
        arm = choice.WhichOneof("parameter_choice")
        require(arm is not None)
        found[name] = repr(getattr(choice, arm))
    return found


def slow_contents(tensor: Any, datatype: Datatype, count: int) -> bytes | None:
    """Return the raw form of typed contents; None if they have no element."""
    contents = {name: list(getattr(tensor.contents, name)) for name in CONTENTS_NAMES.values()}
    contents = {name: values for name, values in contents.items() if values}
    if not contents:
        return None
    number = CONTENTS_FIELD.get(datatype)
    require(number is not None and list(contents) == [CONTENTS_NAMES[number or 0]])
    (values,) = contents.values()
    require(len(values) == count)
    if datatype is Datatype.BYTES:
        return flat(datatype, values)
    if datatype.is_integer:
        bounds = np.iinfo(datatype.numpy_dtype)
        require(all(bounds.min <= value <= bounds.max for value in values))
    return np.array(values, datatype.numpy_dtype).tobytes()


def slow_raw(datatype: Datatype, count: int, raw: bytes) -> bytes:
    if datatype is Datatype.BYTES:
        split_items("X", memoryview(raw), count)
    else:
        require(len(raw) == count * datatype.size_bytes)
    return raw


def slow_tensors(found: Any, raws: list[bytes], *, mixed: bool) -> list[Any]:
    described = []
    for tensor in found:
        check_name("tensor", tensor.name, DEFAULT_LIMITS.name_bytes, "name_bytes")
        datatype = parse_datatype(tensor.name, tensor.datatype)
        count = check_shape(tensor.name, datatype, tuple(tensor.shape), DEFAULT_LIMITS)
        parameters = slow_parameters(tensor.parameters)
        data = slow_contents(tensor, datatype, count)
        described.append([tensor.name, datatype, tuple(tensor.shape), parameters, data, count])
    require(len({one[0] for one in described}) == len(described))
    bare = [one for one in described if one[4] is None]
    if raws and not mixed:
        require(len(raws) == len(described) == len(bare))
    elif len(raws) != len(bare):
        for one in bare:
            if not one[5]:
                one[4] = b""
        bare = [one for one in bare if one[5]]
    require(len(raws) == len(bare))
    for one, raw in zip(bare, raws, strict=True):
        one[4] = slow_raw(one[1], one[5], raw)
    return [tuple(one[:5]) for one in described]


def slow_head(message: Any) -> tuple[Any, ...]:
    check_name("model", message.model_name, DEFAULT_LIMITS.model_name_bytes, "model_name_bytes")
    check_name("version", message.model_version, DEFAULT_LIMITS.name_bytes, "name_bytes")
    check_name("id", message.id, DEFAULT_LIMITS.name_bytes, "name_bytes")
    parameters = slow_parameters(message.parameters)
    return message.model_name, message.model_version, message.id, parameters


def slow_request(data: bytes) -> Any:
    message = pb.ModelInferRequest.FromString(data)
    head = slow_head(message)
    outputs = []
    for output in message.outputs:
        check_name("output", output.name, DEFAULT_LIMITS.name_bytes, "name_bytes")
        outputs.append((output.name, slow_parameters(output.parameters)))
    require("" not in [one.name for one in message.inputs])
    require("" not in [one.name for one in message.outputs])
    # Triton replies to a request that repeats an output.
    outputs = [one for index, one in enumerate(outputs) if one not in outputs[:index]]
    require(len({name for name, _ in outputs}) == len(outputs))
    raws = list(message.raw_input_contents)
    return (*head, outputs, slow_tensors(message.inputs, raws, mixed=False))


def slow_reply_head(message: Any) -> tuple[Any, ...]:
    """Return the head of a response, without fields that cannot be used."""
    limits = DEFAULT_LIMITS
    name, version = message.model_name, message.model_version
    parameters = {
        key: repr(getattr(choice, arm))
        for key, choice in message.parameters.items()
        if (arm := choice.WhichOneof("parameter_choice")) is not None
        and is_usable_name("parameter", key, limits.name_bytes)
    }
    return (
        name if is_usable_name("model", name, limits.model_name_bytes) else "",
        version if is_usable_name("version", version, limits.name_bytes) else "",
        message.id,
        parameters,
    )


def slow_response(data: bytes) -> Any:
    message = pb.ModelInferResponse.FromString(data)
    head = slow_reply_head(message)
    raws = list(message.raw_output_contents)
    return (*head, [], slow_tensors(message.outputs, raws, mixed=True))


def comparable(read: Read) -> Any:
    """Return a decoded message in the form of the slow reading."""
    message, request_id, found = read

    def plain(parameters: Any) -> dict[str, str]:
        return {name: repr(value) for name, value in parameters.items()}

    return (
        message.model.name,
        message.model.version,
        request_id,
        plain(message.parameters),
        [(name, plain(parameters)) for name, parameters in message.outputs],
        [(t.name, t.datatype, t.shape, plain(t.parameters), bytes(as_raw(t))) for t in found],
    )


def outcome(read: Any, data: Any) -> Any:
    """Return the result of a reading; REFUSED for any error that it may raise."""
    try:
        return read(data)
    except MalformedMessage as error:
        return STRICTER if error.message.endswith(STRICTER) else REFUSED
    except (Refused, GatewayError, DecodeError):
        return REFUSED


def agree(expected: Any, found: Any) -> None:
    """Compare the slow reading with ours, unless ours is stricter by intent."""
    event("refused" if expected == REFUSED else "read")
    if found != STRICTER:
        assert expected == found


@given(damaged(requests()))
@example(spelled(tag(4, LEN), b"\x0a\x01k"))
def test_requests_decode_as_by_protobuf(data: bytes) -> None:
    """A request decodes to the library's result, or is rejected where that rejects it."""
    found = outcome(lambda view: comparable(READER.request(view)), memoryview(data))
    agree(outcome(slow_request, data), found)


@given(damaged(responses()))
def test_responses_decode_as_by_protobuf(data: bytes) -> None:
    """A response decodes to the library's result, or is rejected where that rejects it."""
    found = outcome(lambda view: comparable(READER.response(view)), memoryview(data))
    agree(outcome(slow_response, data), found)


@given(st.binary(max_size=200))
def test_any_bytes_decode_as_by_protobuf(data: bytes) -> None:
    """Bytes that are no message decode to the library's result, or are rejected."""
    found = outcome(lambda view: comparable(READER.request(view)), memoryview(data))
    agree(outcome(slow_request, data), found)


# Round trips.

HELD = st.dictionaries(
    CLEAN, st.booleans() | INT64 | CLEAN | st.floats(allow_nan=False), max_size=2
)


PATH_STEPS = CLEAN.filter(lambda text: text not in {".", ".."})
# Triton would read another version than the client meant.
VERSIONS = st.just("") | st.integers(0, 2**63 - 1).map(str)


@st.composite
def ir_tensors(draw: DrawFn, name: str) -> Tensor:
    """Draw a tensor as the IR has it."""
    datatype = draw(st.sampled_from(Datatype))
    shape = tuple(draw(st.lists(DIMS, max_size=3)))
    count = int(np.prod(shape, dtype=object))
    if datatype is Datatype.BYTES:
        items = draw(st.lists(st.binary(max_size=4), min_size=count, max_size=count))
        return items_tensor(name, shape, items, draw(HELD))
    size = count * datatype.size_bytes
    data = draw(st.binary(min_size=size, max_size=size))
    return raw_tensor(name, datatype, shape, memoryview(data), draw(HELD))


@st.composite
def tensor_tuples(draw: DrawFn) -> tuple[Tensor, ...]:
    """Draw tensors of different names."""
    names = draw(st.lists(CLEAN.filter(bool), max_size=3, unique=True))
    return tuple(draw(ir_tensors(name)) for name in names)


@st.composite
def calls(draw: DrawFn) -> InferRequest:
    """Draw an inference request."""
    sequence_id = draw(st.integers(1, 2**63 - 1) | CLEAN.filter(bool))
    sequence = CallSequence(sequence_id, draw(st.booleans()), draw(st.booleans()))
    return InferRequest(
        model=ModelRef(draw(PATH_STEPS), draw(VERSIONS)),
        id=draw(CLEAN),
        inputs=draw(tensor_tuples()),
        outputs=tuple(
            RequestedOutput(name, parameters=draw(HELD))
            for name in draw(st.lists(CLEAN.filter(bool), max_size=2, unique=True))
        ),
        sequence=draw(st.none() | st.just(sequence)),
        priority=draw(UINT64),
        timeout_us=draw(st.none() | st.integers(1, 2**63 - 1)),
        parameters=draw(HELD),
    )


@given(calls())
def test_calls_round_trip(call: InferRequest) -> None:
    """A decoded call is equal to the encoded one."""
    wire = CODEC.encode_call(call)
    assert INFER == wire.method
    found = CODEC.decode_call(GrpcRequest(wire.method, (b"".join(wire.message),)))
    assert call == found.changed(context=call.context)


@given(tensor_tuples(), CLEAN, CLEAN.filter(bool), CLEAN, HELD)
def test_replies_round_trip(
    outputs: tuple[Tensor, ...], request_id: str, name: str, version: str, parameters: Any
) -> None:
    """A decoded reply is equal to the encoded one."""
    call = InferRequest(
        model=ModelRef("m"), id=request_id, outputs=tuple(RequestedOutput(t.name) for t in outputs)
    )
    reply = InferResponse(
        model=ModelRef(name, version), id=request_id, outputs=outputs, parameters=parameters
    )
    wire = CODEC.encode_reply(call, reply)
    assert reply == CODEC.decode_reply(call, GrpcResponse((b"".join(wire.message),)))


PLAIN: dict[str, Any] = {"sequence": None, "priority": 0, "timeout_us": None, "parameters": {}}


@given(calls(), st.booleans())
def test_calls_are_encoded_as_by_the_full_writer(call: InferRequest, plain: bool) -> None:
    """The fast path of the codec writes the same bytes."""
    request = call.changed(**PLAIN) if plain else call
    model = request.model
    assert model is not None
    parts = WRITER.request(
        model, request.id, join_parameters(request), request.inputs, request.outputs
    )
    assert b"".join(parts) == b"".join(CODEC.encode_call(request).message)


@given(tensor_tuples(), CLEAN)
def test_replies_are_encoded_as_by_the_full_writer(
    outputs: tuple[Tensor, ...], request_id: str
) -> None:
    """The fast path of the codec writes the same bytes."""
    model = ModelRef("m")
    reply = InferResponse(model=model, outputs=outputs)
    parts = WRITER.response(model, request_id, {}, outputs)
    found = CODEC.encode_reply(InferRequest(model=model, id=request_id), reply)
    assert b"".join(parts) == b"".join(found.message)
