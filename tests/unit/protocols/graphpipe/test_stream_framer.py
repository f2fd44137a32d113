"""What a transport learns from GraphPipe's framer beside the frames."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.protocols.graphpipe.stream import GraphPipeStreamCodec, SizePrefixFramer
from gateway.wire.stream import Frame
from tests.cases import graphpipe_oracle as oracle
from tests.cases.graphpipe_http import METADATA_REQUEST, ReplyCase
from tests.cases.graphpipe_stream import REPLIES, framed

GOOD = framed(METADATA_REQUEST)


def framer() -> SizePrefixFramer:
    return SizePrefixFramer(MessageLimits(message_bytes=1000))


def test_says_what_a_frame_wants_before_it_comes() -> None:
    """The declared size is known with its last byte; between frames nothing is wanted."""
    used = framer()
    found = [used.wanted]
    for byte in GOOD:
        used.receive(bytes([byte]))
        found.append(used.wanted)
    assert [0, 4, 4, 4, *[len(GOOD)] * (len(GOOD) - 4), 0] == found


def test_wants_the_next_frame_where_one_read_ends_within_it() -> None:
    """What is left over after a frame is the beginning of the next."""
    used = framer()
    assert 1 == len(used.receive(GOOD + GOOD[:9]))
    assert len(GOOD) == used.wanted
    assert 2 == len(used.receive(GOOD[9:] + GOOD))
    assert 0 == used.wanted


@pytest.mark.parametrize(
    ("bad", "kind"),
    [(b"GET / HTTP/1.1", MalformedMessage), (struct.pack("<I", 1001), TooLarge)],
)
def test_a_fault_after_a_frame_is_known_at_once(bad: bytes, kind: type[Exception]) -> None:
    """The frame is given and the fault told; whatever comes then meets the fault."""
    used = framer()
    assert 1 == len(used.receive(GOOD + bad))
    assert isinstance(used.fault, kind)
    with pytest.raises(kind):
        used.receive(b"more")


def test_frames_stay_as_they_were() -> None:
    """A frame given out does not change with what comes after it, and cannot be written to."""
    used = framer()
    used.receive(GOOD[:7])
    [first] = used.receive(GOOD[7:] + GOOD[:5])
    used.receive(b"x" * (len(GOOD) - 5))
    [view] = first.payload
    assert METADATA_REQUEST == bytes(view)
    assert isinstance(view, memoryview)
    assert view.readonly


def test_a_frame_in_one_piece_is_not_copied() -> None:
    """What arrives whole is looked at where it is."""
    data = bytes(bytearray(GOOD + GOOD))
    frames = framer().receive(data)
    wire = np.frombuffer(data, np.uint8)
    for frame in frames:
        assert np.shares_memory(wire, np.frombuffer(frame.payload[0], np.uint8))


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case.name)
def test_an_answer_may_be_begun_before_it_is_known(case: ReplyCase) -> None:
    """Its first byte goes out early; the whole reads as the same answer to other readers."""
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


def test_a_frame_of_exactly_the_step_is_begun_too() -> None:
    """No padding is needed where the size begins with a zero by itself."""
    used = framer()
    data = used.begin() + b"".join(used.send(Frame((bytes(256),))))
    assert struct.pack("<I", 256) + bytes(256) == data
