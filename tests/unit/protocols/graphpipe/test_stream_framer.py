"""GraphPipe's framer: wanted bytes, faults, views, and responses that begin early."""

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
