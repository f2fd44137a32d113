"""Hostile GraphPipe messages and streams: each is rejected in GraphPipe's form, then others served.

Every malformed message of the golden set, good ones with flipped bits, and byte streams that
are invalid, stall or are never read.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cases import graphpipe_oracle as oracle
from tests.cases.graphpipe_http import METADATA_REQUEST
from tests.hostile.judge import CANARY, Patient, check_text
from tests.hostile.process import eventually
from tests.hostile.wire import GOOD, Raw, is_good, post

pytestmark = pytest.mark.hostile

GOLDEN = Path(__file__).parents[1] / "golden" / "graphpipe"
ENTRIES = json.loads((GOLDEN / "index.json").read_text())["entries"]
MALFORMED = {
    str(entry["name"]): (GOLDEN / entry["request"]["file"]).read_bytes()
    for entry in ENTRIES
    if entry["category"] == "malformed"
}
# What may be answered like any other message: it is odd, and can be read.
ODD = {str(entry["name"]) for entry in ENTRIES if entry.get("expect") == "clean"}
VALID = [
    (GOLDEN / entry["request"]["file"]).read_bytes()
    for entry in ENTRIES
    if entry["category"] == "request"
]
TURNED = 400
PATH = "/graphpipe/simple"
INT32 = 6
ROW = oracle.PlainTensor(INT32, (1, 16), struct.pack("<16i", *range(16)))
QUESTION = oracle.build_request(oracle.PlainRequest(b"", (), (ROW, ROW), ("OUTPUT0",)))
SUM = struct.pack("<16i", *range(0, 32, 2))
MESSAGE_BYTES = 4 << 20
_SLOW_S = 30.0


def framed(message: bytes) -> bytes:
    """Return a message with its frame header."""
    return struct.pack("<I", len(message)) + message


def has_outputs(message: bytes) -> bool:
    """Assert that this is outputs or an error of the client; return whether it is outputs."""
    tensors, errors = oracle.read_response(message)
    if not errors:
        assert tensors
        return True
    ((number, text),) = errors
    assert () == tensors
    assert number in (400, 404, 413, 501), (number, text)
    assert CANARY not in text
    check_text(text)
    return False


def is_sum(message: bytes | None) -> bool:
    """Return whether this is the response to `QUESTION`."""
    assert message is not None
    return has_outputs(message) and [SUM] == [
        each.data for each in oracle.read_response(message)[0]
    ]


def is_metadata(message: bytes) -> bool:
    """Return whether this is metadata of the model, which a damaged message may request."""
    with suppress(Exception):
        return "simple" == oracle.read_metadata(message).name
    return False


class Stream:
    """A client of the stream listener."""

    def __init__(self, patient: Patient) -> None:
        address = patient.gateway.addresses["streams.graphpipe.tcp"]
        self.socket = socket.create_connection(address, 8.0)

    def send(self, data: bytes) -> None:
        """Send, unless the gateway has closed."""
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def answer(self) -> bytes | None:
        """Return the next message; None when the connection ended between messages."""
        head = self._exactly(4)
        if head is None:
            return None
        message = self._exactly(struct.unpack("<I", head)[0])
        assert message is not None, "the connection ended inside a message"
        return message

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionError:
                return None
            if not piece:
                assert not data, "the connection ended inside a message"
                return None
            data += piece
        return data


@contextmanager
def streaming(patient: Patient) -> Iterator[Stream]:
    """Open a stream, and close it."""
    stream = Stream(patient)
    try:
        yield stream
    finally:
        stream.socket.close()


def posted(raw: Raw, message: bytes) -> tuple[int, bytes]:
    """Post a message on an open connection and return status and body."""
    assert raw.send([post(message, path=PATH)])
    response = raw.answer()
    assert response is not None
    return response.status, response.body


def check_malformed(name: str, message: bytes) -> None:
    """Assert that this is an allowed response to a malformed message."""
    if not (name in ODD and is_metadata(message)):
        assert not has_outputs(message) or name in ODD


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_message_over_http_gets_an_error(patient: Patient, name: str) -> None:
    """It gets the error of the specification at once, and the connection stays usable."""
    started_s = time.monotonic()
    with Raw(patient.gateway.http) as raw:
        status, body = posted(raw, MALFORMED[name])
        assert 200 == status
        check_malformed(name, body)
        assert raw.send([GOOD])
        assert is_good(raw.answer())
    assert time.monotonic() - started_s < _SLOW_S


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_message_in_a_stream_gets_an_error(patient: Patient, name: str) -> None:
    """A frame of a valid size gets one response, and the next frame is served."""
    message = MALFORMED[name]
    with streaming(patient) as stream:
        stream.send(framed(message) + framed(QUESTION))
        response = stream.answer()
        assert response is not None
        check_malformed(name, response)
        if len(message) < 8:  # no message is as short: the frame itself is wrong
            assert stream.answer() is None
        else:
            assert is_sum(stream.answer())


def damaged(rng: random.Random) -> bytes:
    """Return a valid message with flipped bits, truncated, or with bytes of another."""
    message = bytearray(rng.choice(VALID))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(message))
        message[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if rng.random() < 0.2:
        del message[rng.randrange(len(message)) :]
    return bytes(message)


def test_damaged_messages_over_http_cause_no_internal_error(patient: Patient) -> None:
    """Flipped bits lead to an error or another response, never to a fault of the gateway."""
    rng = random.Random(4)  # noqa: S311  # the same damage in every run
    with Raw(patient.gateway.http) as raw:
        for _ in range(TURNED):
            status, body = posted(raw, damaged(rng))
            assert 200 == status
            if not is_metadata(body):
                has_outputs(body)
        assert raw.send([GOOD])
        assert is_good(raw.answer())


def test_damaged_messages_in_a_stream_keep_the_order(patient: Patient) -> None:
    """Responses of one stream stay in order, and the last one is good."""
    rng = random.Random(5)  # noqa: S311  # the same damage in every run
    with streaming(patient) as stream:
        for _ in range(TURNED):
            message = damaged(rng)
            stream.send(framed(message if len(message) >= 8 else message.ljust(8, b"\0")))
            response = stream.answer()
            assert response is not None
            if not is_metadata(response):
                has_outputs(response)
        stream.send(framed(QUESTION))
        assert is_sum(stream.answer())


@pytest.mark.parametrize(
    "size", [0, 1, 7, MESSAGE_BYTES + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], ids=hex
)
def test_invalid_sizes_end_the_stream(patient: Patient, size: int) -> None:
    """The client gets an error, nothing is allocated, and nothing behind it is read."""
    with streaming(patient) as stream:
        stream.send(struct.pack("<I", size) + framed(QUESTION) * 3)
        response = stream.answer()
        assert response is not None
        assert not has_outputs(response)
        assert stream.answer() is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"PRPC" + bytes(64),
    ],
    ids=["http", "http2", "tls", "brpc"],
)
def test_other_protocols_get_an_error_and_a_close(patient: Patient, data: bytes) -> None:
    """Bytes of another protocol get an error, and the stream ends."""
    with streaming(patient) as stream:
        stream.send(data)
        response = stream.answer()
        assert response is not None
        assert not has_outputs(response)
        assert stream.answer() is None


def test_frames_before_an_invalid_size_are_served(patient: Patient) -> None:
    """Frames before the invalid one get their responses first."""
    with streaming(patient) as stream:
        stream.send(framed(QUESTION) * 3 + struct.pack("<I", 1))
        responses = [stream.answer() for _ in range(4)]
        assert [True, True, True, False] == [is_sum(response) for response in responses]
        assert stream.answer() is None


def test_many_frames_at_once_are_served_in_order(patient: Patient) -> None:
    """More frames than may wait are read as they are served, and none is lost."""
    count = 200
    with streaming(patient) as stream:
        stream.send((framed(QUESTION) + framed(METADATA_REQUEST)) * count)
        for _ in range(count):
            response, metadata = stream.answer(), stream.answer()
            assert is_sum(response)
            assert metadata is not None
            assert is_metadata(metadata)


def test_frame_in_single_bytes_is_read(patient: Patient) -> None:
    """A frame may arrive byte by byte."""
    with streaming(patient) as stream:
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed(QUESTION):
            stream.send(bytes([byte]))
        assert is_sum(stream.answer())


@pytest.mark.parametrize(
    "sent",
    [b"", b"\x10", framed(QUESTION)[:40], struct.pack("<I", MESSAGE_BYTES) + bytes(100)],
    ids=["nothing", "half a size", "half a frame", "a large size"],
)
def test_stalled_stream_times_out(patient: Patient, sent: bytes) -> None:
    """A stalled stream is closed within the limits of the listener."""
    with streaming(patient) as stream:
        stream.send(sent)
        started_s = time.monotonic()
        response = stream.answer()
        if response is not None:
            tensors, ((number, text),) = oracle.read_response(response)
            assert ((), 504) == (tensors, number) or number in (400, 408), (number, text)
            assert stream.answer() is None
        assert time.monotonic() - started_s < 3 * _SLOW_S


def test_disconnect_within_a_frame_leaves_nothing(patient: Patient) -> None:
    """Connections that end within a frame leave no descriptor."""
    before = patient.gateway.descriptors()
    data = framed(QUESTION)
    for cut in range(1, len(data), 9):
        with streaming(patient) as stream:
            stream.send(data[:cut])
    assert eventually(lambda: patient.gateway.descriptors() <= before)


def test_unread_responses_stall_the_stream(patient: Patient) -> None:
    """Unread responses do not pile up: the stream stalls and ends."""
    rng = random.Random(6)  # noqa: S311  # any bytes
    row = oracle.PlainTensor(INT32, (4000, 16), rng.randbytes(256_000))
    request = framed(oracle.build_request(oracle.PlainRequest(b"", (), (row, row), ())))
    before = patient.gateway.status("VmRSS")
    with streaming(patient) as stream:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.socket.settimeout(8.0)
        with pytest.raises((ConnectionError, TimeoutError)):
            stream.socket.sendall(request * 400)
    assert patient.gateway.status("VmRSS") - before < 48 << 20
