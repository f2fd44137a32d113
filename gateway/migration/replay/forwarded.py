"""Calls that a server got as they came: sent again as bytes, and their replies compared as a whole.

Nobody here has read their tensors. So a reply is two outputs: all numbers of its JSON, or of its
message of protobuf, in the order of their sorted names; and all that is no number. Members that
the protocol says to differ from call to call are left out. Any other reply is its bytes.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from msgspec.structs import replace  # noqa: TID251  # rows have no wire origin

from gateway.api.protocol import Codec
from gateway.ir.calls import Call, InferResponse, OpaqueCall
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError, MalformedMessage, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor
from gateway.ir.unread import message_of
from gateway.ir.values.doubles import MOST_EXACT
from gateway.migration.replay.wire_messages import body_of
from gateway.migration.replay.wire_replay import recorded_request
from gateway.policies.access.operations import PASSTHROUGH
from gateway.registry import protocol
from gateway.settings.units import Url
from gateway.shadow.records.records import INVALID_VALUES, OLD, RecordedCall, item_rows
from gateway.wire.event_stream import event_data

REPLY: Final = "reply"
NUMBERS: Final = "numbers of the reply"


def codec_of(url: Url, options: Mapping[str, Any] = MappingProxyType({})) -> Codec[Any, Any]:
    """Return the codec of the server at *url*, with the *options* of its upstream.

    Raises:
        LookupError, ValueError: The protocol does not exist, or an option is wrong.
    """
    spec = protocol(url.protocol)
    # Every message names a model here; a listener's own default is not known.
    own = {spec.default_model: "default"} if spec.default_model else {}
    return spec.carriers[url.carrier].codec(MessageLimits(), spec.options({**own, **options}))


def of_protocol(record: RecordedCall, name: str) -> RecordedCall:
    """Return a call of `passthrough` as one of the HTTP codec *name*; all others as they are.

    Nobody has read it, so the server that gets it says what it is.
    """
    if record.call.protocol != PASSTHROUGH or not name.endswith(".http"):
        return record
    return replace(record, call=replace(record.call, protocol=name))


def can_forward(record: RecordedCall, codec: Codec[Any, Any] | None) -> bool:
    """Return whether a server of the form of *codec* gets a call that nobody else reads."""
    return (
        record.is_forwarded
        and codec is not None
        and bool(codec.whole and record.wire)
        and record.call.protocol == codec.name
    )


def forwarded_call(record: RecordedCall, codec: Codec[Any, Any]) -> Call[Any]:
    """Return a recorded call whose message a server of the form of *codec* gets.

    Raises:
        GatewayError: The message is of another form, not recorded, or malformed.
    """
    message = recorded_request(record, codec)
    try:
        call = codec.decode_call(message)
    except GatewayError as refused:
        found = codec.decode_unread(message, refused)
        if found is None:
            raise
        call = found
    return call.with_context(request_id=record.call.request_id)


def outputs_of_whole(call: Call[Any], reply: InferResponse | Origin) -> tuple[Tensor, ...]:
    """Return the message of the reply to such a call as outputs.

    Raises:
        Unsupported: The call was written anew.
    """
    sent = call.message if isinstance(call, OpaqueCall) else call.context.origin
    origin = reply if isinstance(reply, Origin) else reply.origin
    if sent is None or origin is None or not origin.whole:
        raise Unsupported("the server did not get the message as it came")
    return _outputs(sent.codec, getattr(sent.wire, "method", ""), body_of(message_of(origin)))


def forwarded_outputs(record: RecordedCall) -> tuple[tuple[Tensor, ...], ...] | None:
    """Return the recorded replies of such a call as outputs; None if they were not recorded.

    Raises:
        MalformedMessage: The record is malformed.
    """
    sent = [each for each in record.wire if each.side == "request"]
    replies = [each for each in record.wire if each.side == "reply"]
    if not (sent and replies):
        return None
    try:
        method = str(json.loads(sent[0].head)["method"])
    except INVALID_VALUES as error:
        raise MalformedMessage(f"recorded call {record.id} is malformed: {error}") from error
    name = record.call.protocol
    return tuple([_outputs(name, method, bytes(each.body)) for each in replies])


def with_outputs(record: RecordedCall, items: Sequence[Sequence[Tensor]]) -> RecordedCall:
    """Return *record* with the outputs of its replies in the place of its messages."""
    return RecordedCall(record.call, item_rows(items, OLD), record.items)


def _outputs(name: str, method: str, body: bytes) -> tuple[Tensor, ...]:
    spec = None if name == PASSTHROUGH else protocol(name.partition(".")[0])
    kind = None if spec is None else _types(spec.name).get(method, (None, None))[1]
    varying: frozenset[str] = frozenset() if spec is None else spec.varying
    text = event_data(body) or body
    try:
        value = json.loads(text) if kind is None else _values(kind, body)
        numbers: list[float] = []
        rest = json.dumps(_without_numbers(value, numbers, varying), sort_keys=True).encode()
    except (ValueError, RecursionError, DecodeError):
        return (items_tensor(REPLY, (1,), [body]),)
    array = np.array(numbers, "<f8")
    return (
        items_tensor(REPLY, (1,), [rest]),
        array_tensor(NUMBERS, array, Datatype.FP64),
    )


@cache
def _types(name: str) -> Mapping[str, tuple[Descriptor, Descriptor]]:
    binding = protocol(name).grpc
    return {} if binding is None else binding.message_types()


def _values(kind: Descriptor, body: bytes) -> Any:
    message = GetMessageClass(kind)()
    message.ParseFromString(body)
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _without_numbers(
    value: Any, numbers: list[float], varying: frozenset[str], place: str = ""
) -> Any:
    """Return JSON with 0 for each number that a double has, which is added to *numbers*.

    Args:
        value: The JSON.
        numbers: Gets the numbers, in the order of sorted names.
        varying: Members that are left out.
        place: That of the value, with a dot at its end; "" for the whole.
    """
    if isinstance(value, dict):
        return {
            key: _without_numbers(value[key], numbers, varying, f"{place}{key}.")
            for key in sorted(value)
            if place + key not in varying
        }
    if isinstance(value, list):
        return [_without_numbers(each, numbers, varying, place) for each in value]
    if type(value) is float or (type(value) is int and abs(value) <= MOST_EXACT):
        numbers.append(float(value))
        return 0
    return value
