"""Described messages against the protobuf library, over all descriptions.

Messages are drawn from the schemas, with fields in any order, repeated, unpacked, unknown ones among
them, and damaged. What the library reads is what a description must read. A description leaves
messages of other readers closed, so it may accept a message that the library refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError, Message
from hypothesis import assume, event, example, given
from hypothesis import strategies as st

from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.seldon.grpc import messages as seldon
from gateway.protocols.tfs.grpc import messages as tfs
from gateway.protocols.torchserve.grpc import messages as torchserve
from gateway.protocols.trtis.grpc import codec as trtis
from gateway.schema import seldon_pb2
from gateway.schema import tensorflow_messages_pb2 as tensorflow
from gateway.schema import tensorflow_serving_pb2 as tensorflow_serving
from gateway.schema import tensorrt_v1_pb2 as tensorrt_v1
from gateway.schema import torchserve_inference_pb2 as torchserve_inference
from gateway.wire.protobuf import tensor_protos
from gateway.wire.protobuf import wire_format as pb
from gateway.wire.protobuf.messages import (
    FieldKind,
    MessageDescriptor,
    MessageField,
    generate_reader,
)
from gateway.wire.protobuf.wire_format import Parts
from tests.properties.test_protobuf import any_message, damaged, plain, read

DESCRIBED: Sequence[tuple[MessageDescriptor[Any], type[Message]]] = [
    (tensor_protos.TENSOR, tensorflow.TensorProto),
    (tensor_protos.TENSOR_SHAPE, tensorflow.TensorShapeProto),
    (tfs.REQUEST, tensorflow_serving.PredictRequest),
    (tfs.RESPONSE, tensorflow_serving.PredictResponse),
    (tfs.EXAMPLES, tensorflow_serving.ClassificationRequest),
    (trtis.REQUEST, tensorrt_v1.InferRequest),
    (trtis.RESPONSE, tensorrt_v1.InferResponse),
    (torchserve.REQUEST, torchserve_inference.PredictionsRequest),
    (torchserve.RESPONSE, torchserve_inference.PredictionResponse),
    (seldon.SELDON_MESSAGE, seldon_pb2.SeldonMessage),
    (torchserve.STATUS, torchserve_inference.RpcStatus),
]
SMALL_LIMITS = MessageLimits(name_bytes=3, tensors=2, outputs=2, rank=1)
CASES = st.sampled_from(DESCRIBED).flatmap(
    lambda pair: st.tuples(
        st.just(pair), any_message(pair[1].DESCRIPTOR) | damaged(any_message(pair[1].DESCRIPTOR))
    )
)


def slots(*values: Any) -> tuple[Any, ...]:
    return values


def with_slots(descriptor: MessageDescriptor[Any]) -> MessageDescriptor[tuple[Any, ...]]:
    """Return the same description, of which the reader returns the values of all fields."""
    fields = [
        each if each.message is None else each._replace(message=with_slots(each.message))
        for each in descriptor.fields
    ]
    return MessageDescriptor(descriptor.name, slots, fields, descriptor.limit, descriptor.more)


SLOTS = {id(descriptor): with_slots(descriptor) for descriptor, _ in DESCRIBED}


def expected_slots(descriptor: MessageDescriptor[Any], message: Message) -> tuple[Any, ...]:
    """Return what the reader of *descriptor* must find in a message that the library has read."""
    fields = [each for each in descriptor.fields if each.kind is not FieldKind.ELEMENTS]
    found = tuple([expected_value(each, message) for each in fields])
    return found if len(fields) == len(descriptor.fields) else (*found, elements(message))


def expected_value(field: MessageField, message: Message) -> Any:
    schema: Any = message.DESCRIPTOR.fields_by_number[field.number]
    if field.choice and not message.HasField(schema.name):
        return None
    value: Any = getattr(message, schema.name)
    if field.kind is FieldKind.MAP:
        return {name: plain_bytes(each) for name, each in value.items()}
    if field.message is None:
        return list(value) if field.repeated else plain_bytes(value)
    if field.repeated:
        return [expected_slots(field.message, each) for each in value]
    return expected_slots(field.message, value)


def plain_bytes(value: Any) -> Any:
    """Return a message in its canonical form, and any other value as it is."""
    return value.SerializeToString(deterministic=True) if isinstance(value, Message) else value


def elements(message: Message) -> dict[str, Any]:
    """Return the elements of a tensor by the names of their fields."""
    fields = message.DESCRIPTOR.fields_by_name
    return {name: value for name, value in plain(message).items() if is_elements(fields[name])}


def is_elements(schema: Any) -> bool:
    return schema.is_repeated and schema.message_type is None


def actual_slots(
    descriptor: MessageDescriptor[Any], schema: Any, values: Sequence[Any]
) -> tuple[Any, ...]:
    """Return what a reader has found, in the form of `expected_slots`."""
    fields = [each for each in descriptor.fields if each.kind is not FieldKind.ELEMENTS]
    found = [
        None if value is None else actual_value(each, schema.fields_by_number[each.number], value)
        for each, value in zip(fields, values, strict=False)
    ]
    return tuple(found) if len(found) == len(values) else (*found, by_name(schema, values[-1]))


def actual_value(field: MessageField, schema: Any, value: Any) -> Any:
    if field.kind is FieldKind.MAP:
        closed = schema.message_type.fields_by_name["value"]
        return {name: canonical(closed, [view]) for name, view in value.items()}
    if field.kind is FieldKind.CLOSED:
        return canonical(schema, value)
    if field.message is not None:
        nested, kind = field.message, schema.message_type
        if field.repeated:
            return [actual_slots(nested, kind, each) for each in value]
        return actual_slots(nested, kind, value)
    if field.kind is FieldKind.VIEW and field.repeated:
        return [bytes(each) for each in value]
    return bytes(value) if type(value) is memoryview else value


def canonical(schema: Any, views: Sequence[memoryview]) -> Any:
    """Return the value of a closed field, by the library."""
    if schema.message_type is None:
        return bytes(views[-1]) if views else b""
    return plain_bytes(schema.message_type._concrete_class.FromString(b"".join(views)))


def written_parts(descriptor: MessageDescriptor[Any], message: Message) -> Parts:
    """Write the described fields of a message that the library has read."""
    arguments: dict[str, Any] = {}
    for field in descriptor.fields:
        schema: Any = message.DESCRIPTOR.fields_by_number.get(field.number)
        if field.kind is FieldKind.ELEMENTS:
            continue
        value = getattr(message, schema.name)
        if field.choice and not message.HasField(schema.name):
            continue
        if field.kind is FieldKind.MAP:
            arguments[field.name] = [(name, plain_bytes(each)) for name, each in value.items()]
        elif field.message is None:
            arguments[field.name] = plain_bytes(value)
        elif field.repeated:
            arguments[field.name] = [written_parts(field.message, each) for each in value]
        elif message.HasField(schema.name):
            arguments[field.name] = written_parts(field.message, value)
    return descriptor.write(**arguments)


def by_name(schema: Any, occurrences: dict[int, list[Any]]) -> dict[str, Any]:
    """Return the elements that a reader has found, by the names of their fields."""
    fields = [schema.fields_by_number.get(number) for number in occurrences]
    return {
        field.name: read(field, values)
        for field, values in zip(fields, occurrences.values(), strict=True)
        if field is not None
    }


def has_odd_entry(descriptor: MessageDescriptor[Any], data: bytes) -> bool:
    """Return whether an entry of a map has other fields than one key and one value.

    The library drops one with unknown fields, and merges two values.
    """
    maps = [each.tag for each in descriptor.fields if each.kind is FieldKind.MAP]
    entries = [value for key, value in pb.fields(memoryview(data)) if key in maps]
    tags = [[key for key, _ in pb.fields(entry)] for entry in entries]
    return any(not set(each) <= {10, 18} or len(set(each)) < len(each) for each in tags)


Outcome = tuple[str, Any, int]


def outcome(reader: Any, data: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> Outcome:
    """Return what a reader makes of a message, and how many fields may follow it."""
    counter = pb.FieldCounter(40)
    try:
        found = reader((memoryview(data),), limits, counter)
    except (GatewayError, pb.WireError) as error:
        return type(error).__name__, str(error), 0
    return "read", found, counter.remaining


@given(CASES)
@example(((tensor_protos.TENSOR, tensorflow.TensorProto), b"\x08\x80\x80\x80\x80\x08"))
def test_reads_described_messages_as_protobuf(case: Any) -> None:
    """What the library accepts is read with the same values, or refused by a limit."""
    (descriptor, kind), data = case
    try:
        message = kind.FromString(data)
    except DecodeError:
        event("refused by the library")
        return
    kind_found, found, _ = outcome(SLOTS[id(descriptor)].read, data)
    if kind_found != "read":
        event("refused here")
        assert "field number 0" in found or "not allowed" in found or kind_found == "TooLarge"
        return
    assume(not has_odd_entry(descriptor, data))
    assert expected_slots(descriptor, message) == actual_slots(descriptor, kind.DESCRIPTOR, found)


@given(CASES)
def test_writes_described_messages_as_protobuf(case: Any) -> None:
    """A described message that is written has the fields of the one that was read."""
    (descriptor, kind), data = case
    try:
        message = kind.FromString(data)
    except DecodeError:
        return
    for name in elements(message):  # the protocol writes them
        message.ClearField(name)
    written = kind.FromString(b"".join(written_parts(descriptor, message)))
    assert expected_slots(descriptor, message) == expected_slots(descriptor, written)


@given(CASES, st.sampled_from([DEFAULT_LIMITS, SMALL_LIMITS]))
def test_compiled_readers_are_those_of_python(case: Any, limits: MessageLimits) -> None:
    """Both readers return the same values, raise the same errors, and count the same fields."""
    (descriptor, _), data = case
    described = SLOTS[id(descriptor)]
    expected = outcome(generate_reader(described), data, limits)
    assert expected == outcome(described.read, data, limits)
