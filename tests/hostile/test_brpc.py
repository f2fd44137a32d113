"""Hostile frames of brpc: an error code or a silent close, while others are served.

Every bad frame of the golden set, good ones with flipped bits, wrong lengths, decompression bombs,
clients that stall or never read, and HTTP after frames.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import struct
import time
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cases import brpc_oracle as oracle
from tests.cases.brpc_oracle import GZIP, INT32, SNAPPY, ZLIB, Client, Question, Tensor
from tests.hostile.frames import BEGIN, frame
from tests.hostile.judge import CANARY, Patient, check_text
from tests.hostile.process import eventually
from tests.hostile.wire import GOOD, REFUSED

pytestmark = pytest.mark.hostile

GOLDEN = Path(__file__).parents[1] / "golden" / "grps"
ENTRIES = {
    Path(entry["file"]).stem: str(entry.get("expect", ""))
    for entry in json.loads((GOLDEN / "index.json").read_text())["entries"]
    if entry["file"].startswith("brpc/")
}
REQUESTS = {name: (GOLDEN / "brpc" / f"{name}.bin").read_bytes() for name in ENTRIES}
NEGATIVE = [name for name in ENTRIES if name.startswith("neg_")]
VALID = [data for name, data in REQUESTS.items() if name.startswith("req_")]

ROWS = [Tensor(f"INPUT{n}", INT32, (1, 16), tuple(range(16))) for n in range(2)]
PREDICT = Question("Predict", oracle.message("simple", ROWS))
SUM = Tensor("OUTPUT0", INT32, (1, 16), tuple(range(0, 32, 2)))
OK = (200, "OK", oracle.SUCCESS)
MESSAGE_BYTES = 4 << 20
TURNED = 500
_SLOW_S = 30.0

# What is answered with an error code; the rest is closed without a word.
CODES = {
    "neg_attachment_gt_payload": 1003,
    "neg_attachment_negative": 1003,
    "neg_body_garbage": 1003,
    "neg_compress_99": 1003,
    "neg_compress_lz4": 1003,
    "neg_gzip_bomb_32m": 1003,
    "neg_gzip_corrupt": 1003,
    "neg_gzip_says_none": 1003,
    "neg_gzip_truncated": 1003,
    "neg_snappy_framed": 1003,
    "neg_snappy_lying_length": 1003,
    "neg_meta_no_request": 1001,
    "neg_response_sent_to_server": 1001,
    "neg_unknown_service_short": 1001,
    "neg_zero_body": 1001,
    "neg_grpc_service_name": 1002,
    "neg_predictbyhttp_method": 1002,
    "neg_streaming_method": 1002,
    "neg_unknown_method": 1002,
    "neg_unknown_service_full": 1002,
}


@pytest.fixture
def address(patient: Patient) -> str:
    """The address that serves brpc."""
    return patient.gateway.address("brpc.grps.brpc")


def is_good(client: Client) -> bool:
    """Return whether the connection still serves a good request."""
    response = client.ask(PREDICT, 4711)
    return (response.status, response.message.tensors and response.message.tensors[0]) == (OK, SUM)


def judged(response: oracle.Answer | None) -> oracle.Answer:
    """Assert that *response* is acceptable for a client, and return it."""
    assert response is not None, "closed without a word"
    text = response.text
    if response.code:
        assert response.code in (1001, 1002, 1003), (response.code, text)
        assert response.size == 0
        check_text(text)
    elif response.status != OK:
        code, text, flag = response.status
        assert (oracle.FAILURE, True) == (flag, 400 <= code < 500 or code == 501), response.status
        check_text(text)
    assert CANARY not in text
    return response


def send(client: Client, data: bytes) -> None:
    """Send, unless the gateway has closed."""
    with suppress(ConnectionError):
        client.socket.sendall(data)


def test_error_codes_cover_the_golden_set() -> None:
    """Every frame of the golden set with an error code has its expected code."""
    names = {name for name in NEGATIVE if "error 100" in ENTRIES[name]}
    assert names <= set(CODES)
    assert set(CODES) <= set(NEGATIVE)


@pytest.mark.parametrize("name", NEGATIVE)
def test_bad_frames_get_an_error_or_a_close(address: str, name: str) -> None:
    """Each gets its error code and the connection stays usable, or it is closed at once."""
    started_s = time.monotonic()
    with Client(address) as client:
        send(client, REQUESTS[name])
        if name in CODES:
            response = judged(client.answer())
            assert CODES[name] == response.code
            assert is_good(client)
        else:
            with suppress(OSError):
                client.socket.shutdown(socket.SHUT_WR)
            assert client.answer() is None
    assert time.monotonic() - started_s < _SLOW_S


@pytest.mark.parametrize(
    ("body", "meta"),
    [
        (0xFFFFFFFF, 0),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x80000000, 10),
        (MESSAGE_BYTES + 1, 10),
        (10, 11),
        (0, 1),
        (1 << 20, 1 << 20),
        (1 << 20, 65_537),
    ],
    ids=str,
)
def test_invalid_lengths_close_the_connection(
    patient: Patient, address: str, body: int, meta: int
) -> None:
    """The header suffices: nothing is allocated, and nothing behind it is read."""
    before = patient.gateway.status("VmRSS")
    with Client(address) as client:
        send(client, struct.pack(">4sII", b"PRPC", body, meta) + PREDICT.bytes(1) * 3)
        assert client.answer() is None
    assert patient.gateway.status("VmRSS") - before < 8 << 20


def test_frames_before_an_invalid_length_are_served(address: str) -> None:
    """Frames before it get their responses first."""
    with Client(address) as client:
        frames = b"".join(PREDICT.bytes(number) for number in (1, 2, 3))
        send(client, frames + struct.pack(">4sII", b"PRPC", 10, 11))
        responses = [judged(client.answer()) for _ in range(3)]
        assert {1, 2, 3} == {response.number for response in responses}
        assert client.answer() is None


META = {
    "a long service": oracle.put(1, oracle.put(1, "a." + "s" * 60_000) + oracle.put(2, "m")),
    "a service that is no text": oracle.put(1, oracle.put(1, b"\xff\xfe") + oracle.put(2, "m")),
    "a method with controls": oracle.put(
        1, oracle.put(1, oracle.FULL_NAME) + oracle.put(2, "\r\n\x00\x1b[31m")
    ),
    "both kinds": oracle.put(1, oracle.put(1, "a") + oracle.put(2, "b"))
    + oracle.put(2, oracle.put(1, 0)),
    "many unknown fields": oracle.put(1, oracle.put(1, "a") + oracle.put(2, "b"))
    + oracle.put(99, 1) * 10_000,
    "a name as a number": oracle.put(1, oracle.put(1, 1) + oracle.put(2, 2)),
    "a group": oracle.put(1, oracle.put(1, "a") + oracle.put(2, "b")) + b"\xa3\x06\xa4\x06",
    "a group without an end": b"\xa3\x06" * 200,
    "a field number of 0": b"\x00\x00",
    "a varint without an end": b"\x20" + b"\xff" * 11,
    "a length beyond the end": b"\x0a\xff\xff\x03",
    "stream settings": oracle.put(1, oracle.put(1, oracle.FULL_NAME) + oracle.put(2, "Predict"))
    + oracle.put(8, oracle.put(1, 1)),
    "an attachment of 2 GiB": oracle.put(
        1, oracle.put(1, oracle.FULL_NAME) + oracle.put(2, "Predict")
    )
    + oracle.put(5, 0x7FFFFFFF),
    "a negative timeout": oracle.put(
        1, oracle.put(1, oracle.FULL_NAME) + oracle.put(2, "CheckLiveness") + oracle.put(8, -1)
    ),
    "a checksum": oracle.put(1, oracle.put(1, oracle.FULL_NAME) + oracle.put(2, "CheckLiveness"))
    + oracle.put(11, 1)
    + oracle.put(12, b"\0\0\0\0"),
}


@pytest.mark.parametrize("name", META)
def test_invalid_metadata_gets_an_error_or_a_close(address: str, name: str) -> None:
    """It is accepted, rejected with a code, or ends the connection."""
    with Client(address) as client:
        send(client, oracle.frame(META[name]))
        response = client.answer()
        if response is not None:
            judged(response)
            assert is_good(client)


def _serves(address: str) -> bool:
    with Client(address) as client:
        send(client, PREDICT.bytes(1))
        response = client.answer()
        # The limit of connections is the error of a frame, not of the model.
        return response is not None and response.code == 0 and response.status == OK


def damaged(rng: random.Random) -> bytes:
    """Return a valid frame with bytes turned over, their number and lengths right or not."""
    data = bytearray(rng.choice(VALID))
    first = 12 if rng.random() < 0.9 else 4
    for _ in range(rng.randint(1, 5)):
        data[rng.randrange(first, len(data))] = rng.choice(
            [0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)]
        )
    return bytes(data)


def test_damaged_frames_cause_no_internal_error(address: str) -> None:
    """Flipped bytes lead to a response, an error or a close, never to a fault of the gateway."""
    rng = random.Random(7)  # noqa: S311  # the same damage in every run
    with ExitStack() as stack:
        client = stack.enter_context(Client(address))
        for _ in range(TURNED):
            send(client, damaged(rng))
            send(client, PREDICT.bytes(4711))
            ours = False
            while not ours:
                response = client.answer()
                if response is None:
                    client = stack.enter_context(Client(address))
                    break
                if response.code != 2004:  # many at once may meet the limit on what is in flight
                    judged(response)
                ours = response.number == 4711
    # Those that damage has ended count until they are closed at both ends.
    assert eventually(lambda: _serves(address))


BOMBS = {
    "gzip": (GZIP, gzip.compress(bytes(64 << 20), mtime=0)),
    "gzip of gzip": (GZIP, gzip.compress(gzip.compress(bytes(64 << 20), mtime=0), mtime=0)),
    "gzip that says less": (GZIP, gzip.compress(bytes(64 << 20), mtime=0)[:-4] + b"\x10\0\0\0"),
    "zlib": (ZLIB, zlib.compress(bytes(64 << 20))),
    "snappy that says 4 GiB": (SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "snappy that says 3 MiB": (SNAPPY, oracle.varint(3 << 20) + bytes(100)),
    "snappy that says less": (SNAPPY, oracle.varint(1) + b"\xf0\xff" + bytes(256)),
    "snappy copies before its start": (SNAPPY, oracle.varint(64) + b"\xfe\xff\xff" * 4),
}


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bombs_are_rejected(patient: Patient, address: str, name: str) -> None:
    """Sixteen bombs at once are rejected and take little memory."""
    kind, packed = BOMBS[name]
    request = oracle.put(1, oracle.FULL_NAME) + oracle.put(2, "Predict")
    meta = oracle.put(1, request) + oracle.put(3, kind)
    patient.gateway.forget_peak()
    before = patient.gateway.status("VmRSS")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(address)) for _ in range(16)]
        for client in clients:
            send(client, oracle.frame(meta + oracle.put(4, 5), packed))
        responses = [judged(client.answer()) for client in clients]
        assert is_good(clients[0])
    assert {1003} == {response.code for response in responses}
    assert patient.gateway.status("VmHWM") - before < 48 << 20


@pytest.mark.parametrize("kind", [GZIP, ZLIB, SNAPPY])
def test_large_compressed_message_is_served(address: str, kind: int) -> None:
    """A large message within the limits succeeds in every compression."""
    rows = [Tensor(f"INPUT{n}", INT32, (2000, 16), tuple(range(32_000))) for n in range(2)]
    # A connection that sends nothing while this is written would be closed.
    frame = Question("Predict", oracle.message("simple", rows), compress=kind).bytes(1)
    with Client(address) as client:
        send(client, frame)
        response = client.answer()
    assert response is not None
    assert OK == response.status


def test_repeated_correlation_ids_get_one_response_each(address: str) -> None:
    """Each request gets one response; connections do not share ids."""
    count = 64
    with Client(address) as first, Client(address) as second:
        for client in (first, second):
            send(client, PREDICT.bytes(9) * count)
        for client in (first, second):
            responses = [client.answer() for _ in range(count)]
            assert [9] * count == [
                response.number for response in responses if response is not None
            ]
            assert all(response.code in (0, 2004) for response in responses if response is not None)


def test_many_frames_at_once_all_get_a_response(address: str) -> None:
    """More frames than may be in flight succeed or get ELIMIT; none is lost."""
    count = 1500
    with Client(address) as client:
        send(client, b"".join(PREDICT.bytes(number) for number in range(count)))
        responses = [client.answer() for _ in range(count)]
        found = sorted(response.number for response in responses if response is not None)
        assert list(range(count)) == found
        assert {response.code for response in responses if response is not None} <= {0, 2004}
        assert is_good(client)


def test_frame_in_single_bytes_is_read(address: str) -> None:
    """A frame may arrive byte by byte."""
    with Client(address) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in PREDICT.bytes(5):
            send(client, bytes([byte]))
        response = judged(client.answer())
    assert (5, OK) == (response.number, response.status)


HALVES = {
    "nothing": b"",
    "a byte of either": b"P",
    "half a magic": b"PRP",
    "half a header": PREDICT.bytes(1)[:9],
    "half the metadata": PREDICT.bytes(1)[:30],
    "half a message": PREDICT.bytes(1)[:-10],
    "a large frame": struct.pack(">4sII", b"PRPC", MESSAGE_BYTES, 60) + bytes(100),
    "half a method": b"POS",
    "half a request": b"POST /GrpsBrpcService/Predict HTTP/1.1\r\nHost: h\r\n",
    "half a body": b"POST /GrpsBrpcService/Predict HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{",
}


@pytest.mark.parametrize("name", HALVES)
def test_stalled_connections_time_out(patient: Patient, address: str, name: str) -> None:
    """Thirty stalled connections are closed in time, and others are served."""
    with ExitStack() as stack:
        stalled = [stack.enter_context(Client(address)) for _ in range(30)]
        for client in stalled:
            send(client, HALVES[name])
        started_s = time.monotonic()
        with Client(address) as client:
            assert is_good(client)
        for client in stalled:
            with suppress(ConnectionError):
                while client.socket.recv(65536):
                    pass
        assert time.monotonic() - started_s < 4 * _SLOW_S
    assert patient.gateway.alive


def test_slow_frame_is_cut(address: str) -> None:
    """A frame below the minimum rate ends its connection."""
    frame = PREDICT.bytes(1)
    is_left = False
    with Client(address) as client:
        started_s = time.monotonic()
        for byte in frame[:-1]:
            send(client, bytes([byte]))
            client.socket.settimeout(0.1)
            with suppress(TimeoutError):
                is_left = client.answer() is None
            if is_left:
                break
        assert time.monotonic() - started_s < 4 * _SLOW_S
    assert is_left


def test_disconnect_within_a_frame_leaves_nothing(patient: Patient, address: str) -> None:
    """Connections that end within a frame leave no descriptor."""
    before = patient.gateway.descriptors()
    data = PREDICT.bytes(1)
    for cut in range(1, len(data), 7):
        with Client(address) as client:
            send(client, data[:cut])
    assert eventually(lambda: patient.gateway.descriptors() <= before)


def test_unread_responses_stall_the_connection(patient: Patient, address: str) -> None:
    """Unread responses do not pile up: the connection stalls and ends."""
    rows = [Tensor(f"INPUT{n}", INT32, (2000, 16), (1 << 30,) * 32_000) for n in range(2)]
    frame = Question("Predict", oracle.message("simple", rows)).bytes(1)
    assert len(frame) > 300_000
    before = patient.gateway.status("VmRSS")
    sent = 0
    with Client(address, 8.0) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with suppress(ConnectionError, TimeoutError):
            for _ in range(3000):
                client.socket.sendall(frame)
                sent += 1
    assert 8 < sent < 3000  # more than are answered at a time, but not all
    # As for any client that reads nothing: the budget is 32 MiB, and the allocator keeps the rest.
    assert patient.gateway.status("VmRSS") - before < 64 << 20


def is_closed(client: Client) -> bool:
    """Read the received bytes; return whether the connection ends after them."""
    client.socket.settimeout(0.01)
    try:
        while client.socket.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_connections_of_one_client_are_limited(patient: Patient, address: str) -> None:
    """Connections over the limit are closed, in any protocol; later others are accepted."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(address)) for _ in range(60)]
        for number, client in enumerate(clients):
            send(client, [b"P", PREDICT.bytes(1), b"GET /GrpsBrpcService/"][number % 3])
        # A refused one gets its response first, or is closed after a second without a frame.
        assert eventually(lambda: sum(map(is_closed, clients)) >= 12)
    assert eventually(lambda: patient.gateway.alive)
    with Client(address) as client:
        assert is_good(client)


def test_connection_keeps_its_first_protocol(address: str) -> None:
    """Frames are not served after HTTP on one connection, nor HTTP after frames."""
    with Client(address) as client:
        assert is_good(client)
        send(client, b"GET /GrpsBrpcService/CheckLiveness HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.answer() is None
    with Client(address) as client:
        send(client, b"GET /GrpsBrpcService/CheckLiveness HTTP/1.1\r\nHost: h\r\n\r\n")
        first = client.socket.recv(65536)
        send(client, PREDICT.bytes(1))
        rest = b""
        with suppress(ConnectionError):
            while piece := client.socket.recv(65536):
                rest += piece
    assert first.startswith(b"HTTP/1.1 200 ")
    assert rest.startswith(REFUSED)
    assert b"PRPC" not in rest[:4]


@pytest.mark.parametrize("data", [b"PRPC" + bytes(64), b"\xff" * 64, frame(9, 0, 1, b"x")])
def test_invalid_frames_after_a_preface_get_goaway(address: str, data: bytes) -> None:
    """Other bytes end the connection as HTTP/2 does; brpc frames are no longer read."""
    with Client(address) as client:
        send(client, BEGIN + data + PREDICT.bytes(1))
        response = b""
        with suppress(ConnectionError):
            while piece := client.socket.recv(65536):
                response += piece
    kinds = _kinds(response)
    assert 7 == kinds[-1], kinds  # GOAWAY


def _kinds(data: bytes) -> list[int]:
    """Return the types of the frames of HTTP/2."""
    found = []
    while data:
        found.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"GET /GrpsBrpcService/" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /GrpsBrpcService/Predict HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n",
        (
            b"POST /GrpsBrpcService/Predict HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        b"POST /GrpsBrpcService/Predict HTTP/9.9\r\nHost: h\r\n\r\n",
        b"GET /../v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n",
        GOOD,
    ],
    ids=["a long path", "a large body", "two lengths", "a version", "a path above", "another's"],
)
def test_hostile_http_on_the_brpc_port_is_rejected(address: str, data: bytes) -> None:
    """The limits and checks of HTTP hold, and only the brpc service is served."""
    with Client(address) as client:
        send(client, data)
        response = client.socket.recv(65536)
    assert response.startswith(REFUSED), response[:100]
