"""What a serving process sends the process that records, and what comes back.

A message is a sampled call. Its head is msgpack with the elements of small tensors. The others
follow as they are, without a copy. The other way go confirmations: how many calls are written, and
how many are lost and why. Both come from processes of one gateway over a private socket pair.
"""

import struct
from collections.abc import Sequence
from typing import Final, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace  # noqa: TID251  # rows have no wire origin

from gateway.ir.identity import ANONYMOUS
from gateway.shadow.records.records import RecordedCall, TensorRow

_HEAD: Final = struct.Struct("!I")
_SMALL_BYTES: Final = 4096  # a copy of so many is cheaper than a buffer of its own


class ShadowRequest(Struct, array_like=True):
    """What a shadow call needs besides the record of the call; nothing of it is written.

    Attributes:
        metadata: Headers or gRPC metadata of the caller.
        upstream_us: Time of the call at its target; 0 if unknown.
        noise: Whether the old target is asked once more.
        client: Name of the client.
        error: The text of the error that ended the call, as the log may show it; "" for none.
        broken: Sequences of which the sender has lost a call.
    """

    metadata: tuple[tuple[str, str], ...] = ()
    upstream_us: int = 0
    noise: bool = False
    client: str = ANONYMOUS.name
    error: str = ""
    broken: tuple[str, ...] = ()


class SampleMessage(Struct, array_like=True):
    """A sampled call, or only counts.

    Attributes:
        record: None to have everything before this message written and confirmed.
        skipped: Calls that were not sent since the last message, by reason.
        dropped: The same, for calls that were lost.
        shadow: None for a call that is only written.
        percent: Share of the calls that the sender chose when it sent this one.
    """

    record: RecordedCall | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    shadow: ShadowRequest | None = None
    percent: float = 100.0


class _Sizes(Struct, array_like=True):
    """The head on the wire.

    Attributes:
        tensors: Bytes that follow for each tensor, -1 for one without any; empty if nothing
            follows.
        messages: Bytes that follow for each message.
    """

    message: SampleMessage
    tensors: list[int]
    messages: list[int]


class Confirmation(Struct, array_like=True):
    """What became of calls since the last confirmation.

    Attributes:
        epoch: Of the sender of the calls; 0 when the recording process has just started.
        done: Every call up to this number has a result.
        recorded: Calls that were written.
        nbytes: Bytes of their elements and messages.
        lost: Calls that could not be written or compared, by reason.
        stopped: Why the recording has stopped; "" while it runs.
        outcomes: Calls that were compared, by the outcome; they count in `recorded`.
        skipped: Calls that cannot be compared, by reason.
    """

    epoch: int = 0
    done: int = 0
    recorded: int = 0
    nbytes: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    outcomes: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)


_ENCODER: Final = msgspec.msgpack.Encoder()
_SIZES: Final = msgspec.msgpack.Decoder(_Sizes)
_CONFIRMATION: Final = msgspec.msgpack.Decoder(Confirmation)


def encode_message(message: SampleMessage) -> Sequence[bytes]:
    """Return a message as buffers; those of elements are not copied."""
    record, tensors, messages = message.record, [], []
    buffers: list[bytes] = []
    if record is not None and (record.wire or _has_large(record.tensors)):
        rows = [*record.tensors]
        for place, row in enumerate(record.tensors):
            tensors.append(-1)
            if row.data is not None and len(row.data) > _SMALL_BYTES:
                tensors[place] = len(row.data)
                rows[place] = replace(row, data=None)
                buffers.append(row.data)
        messages = [len(each.body) for each in record.wire]
        buffers += [each.body for each in record.wire if len(each.body)]
        wire = [replace(each, body=b"") for each in record.wire]
        message = replace(message, record=RecordedCall(record.call, rows, record.items, wire))
    head = _ENCODER.encode(_Sizes(message, tensors, messages))
    return [_HEAD.pack(len(head)) + head, *buffers]


def _has_large(rows: Sequence[TensorRow]) -> bool:
    for row in rows:  # noqa: SIM110  # `any` would need a generator for each call
        if row.data is not None and len(row.data) > _SMALL_BYTES:
            return True
    return False


def decode_message(view: memoryview) -> SampleMessage:
    """Return the message of `encode_message`; large elements and messages are views of *view*."""
    (length,) = _HEAD.unpack_from(view)
    at = _HEAD.size + length
    found = _SIZES.decode(view[_HEAD.size : at])
    message, record = found.message, found.message.record
    if record is None or not (found.tensors or found.messages):
        return message
    tensors = list(record.tensors)
    for place, size in enumerate(found.tensors):
        if size >= 0:
            tensors[place] = replace(tensors[place], data=cast("bytes", view[at : at + size]))
            at += size
    wire = list(record.wire)
    for place, size in enumerate(found.messages):
        wire[place] = replace(wire[place], body=cast("bytes", view[at : at + size]))
        at += size
    message.record = RecordedCall(record.call, tensors, record.items, wire)
    return message


def encode_confirmation(confirmation: Struct) -> bytes:
    """Return a confirmation as one packet."""
    return _ENCODER.encode(confirmation)


def decode_confirmation(packet: bytes) -> Confirmation:
    """Return the confirmation of `encode_confirmation`."""
    return _CONFIRMATION.decode(packet)
