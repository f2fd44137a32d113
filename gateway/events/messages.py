"""What a serving process sends to the sinks of events in the shadow process, and what comes back.

A message is a call with the sinks that get it, the sinks themselves, or a question. The other way
go results, as counts of each sink. The call stays bytes until an event of it is sent.
"""

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct, field

from gateway.events.definition import SinkDefinition
from gateway.shadow.records.records import RecordedCall
from gateway.shadow.records.transfer import SampleMessage, decode_message, encode_message

REQUEST, RESPONSE = 1, 2
"""The events of a call, as bits."""

CALL_BYTES: Final = 1024
"""Counted for a call besides its message, for the objects that refer to it."""

_HEAD: Final = struct.Struct("!I")


class EventNote(Struct, array_like=True):
    """The head of a message to the shadow process.

    Attributes:
        events: The events of a call for each sink, by the id of its definition.
        ce_id: What both events of the call are named by.
        version: Of the model that replied; "" where it has none.
        definitions: Pickled sinks in force; None in messages that do not change them.
        question: The shadow process replies to a number above 0 with what it still has.
        flush: Send what waits for a full batch.
        ends: Drop what is still there of this sender, with the reason `shutdown`.
    """

    events: dict[str, int] = field(default_factory=dict)
    ce_id: str = ""
    version: str = ""
    definitions: bytes | None = None
    question: int = 0
    flush: bool = False
    ends: bool = False


class SinkResult(Struct, array_like=True):
    """What became of events of a sink since the last results.

    Attributes:
        delivered: Events that the sink took.
        dropped: Events that were lost, by reason.
        nbytes: Bytes of the calls that are done.
    """

    delivered: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    nbytes: int = 0

    @property
    def events(self) -> int:
        """The number of events."""
        return self.delivered + sum(self.dropped.values())


class Held(Struct, array_like=True):
    """What the shadow process has of a sender for a sink: events, and the bytes of their calls."""

    events: int = 0
    nbytes: int = 0


class EventResults(Struct, array_like=True):
    """What became of events since the last results.

    Attributes:
        epoch: Of the sender of the calls; 0 when the shadow process has just started.
        sinks: Results by the name of the sink.
        question: The number of the question that `held` answers; 0 for none.
        held: What there still is of this sender, by the name of the sink.
    """

    epoch: int = 0
    sinks: dict[str, SinkResult] = field(default_factory=dict)
    question: int = 0
    held: dict[str, Held] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventMessage:
    """A message as the shadow process receives it.

    Attributes:
        note: Its head.
        call: The bytes of the call, for `call_of`.
    """

    note: EventNote
    call: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_NOTE: Final = msgspec.msgpack.Decoder(EventNote)
_RESULTS: Final = msgspec.msgpack.Decoder(EventResults)


def encode_call(record: RecordedCall) -> Sequence[bytes]:
    """Return a call as buffers; those of elements are not copied."""
    return encode_message(SampleMessage(record))


def encode_note(note: EventNote) -> bytes:
    """Return what stands before a call."""
    head = _ENCODER.encode(note)
    return _HEAD.pack(len(head)) + head


def decode_event_message(view: memoryview) -> EventMessage:
    """Return a message, with a copy of the bytes of its call."""
    (length,) = _HEAD.unpack_from(view)
    at = _HEAD.size + length
    return EventMessage(_NOTE.decode(view[_HEAD.size : at]), bytes(view[at:]))


def call_of(call: bytes) -> RecordedCall:
    """Return the call of `encode_call`; large elements are views."""
    record = decode_message(memoryview(call)).record
    assert record is not None  # noqa: S101  # a serving process wrote it
    return record


def encode_definitions(definitions: Sequence[SinkDefinition]) -> bytes:
    """Return sinks as bytes of a note."""
    return pickle.dumps(tuple(definitions))


def decode_definitions(data: bytes) -> tuple[SinkDefinition, ...]:
    """Return the sinks of `encode_definitions`."""
    # Only processes of this gateway write to the private socket pair.
    found: tuple[SinkDefinition, ...] = pickle.loads(data)  # noqa: S301
    return found


def decode_results(packet: bytes) -> EventResults:
    """Return results, which `transfer.encode_confirmation` wrote."""
    return _RESULTS.decode(packet)
