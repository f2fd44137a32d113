"""A hostile brpc server behind the gateway: callers get an error in time, then good responses.

The server is well-behaved except for `Predict`, whose response each test sets.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cases import brpc_oracle as oracle
from tests.cases.brpc_oracle import FLOAT32, GZIP, INT32, NONE, SNAPPY, Tensor
from tests.hostile.judge import bugs_of, check_text
from tests.hostile.process import Gateway, running
from tests.hostile.wire import Raw, ask, post

pytestmark = pytest.mark.hostile

_FREE = ("--http", "127.0.0.1:0", "--grpc", "off", "--admin", "127.0.0.1:0")
_MIB = 1 << 20
_IN_TIME_S = 30.0
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}
).encode()
QUESTION = post(BODY, "X-Request-Timeout: 2s", path="/v2/models/m/infer")

STATUS = oracle.put(1, oracle.put(1, 200) + oracle.put(2, "OK") + oracle.put(3, oracle.SUCCESS))
RIGHT = STATUS + oracle.message("", [Tensor("y", FLOAT32, (1, 2), (3.0, 4.0))])

BOMB = gzip.compress(bytes(256 << 20))

Answers = Callable[[int], bytes]
"""What is sent for a question of this number."""


def response_frame(
    number: int, body: bytes = RIGHT, *, code: int = 0, text: str | bytes = "", compress: int = NONE
) -> bytes:
    """Return the frame of a response."""
    response = oracle.put(1, code) + (oracle.put(2, text) if text else b"")
    meta = oracle.put(2, response) + oracle.put(3, compress) + oracle.put(4, number)
    return oracle.frame(meta, body)


class Server:
    """A server on a thread; `predict` makes its responses."""

    def __init__(self) -> None:
        self.predict: Answers = response_frame
        self.closes = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listening.getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening and end every connection."""
        for sock in (self._listening, *self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        buffer = b""
        with suppress(OSError):
            while piece := connection.recv(65536):
                buffer += piece
                while (
                    len(buffer) >= 12 and len(buffer) >= 12 + struct.unpack_from(">I", buffer, 4)[0]
                ):
                    body, meta = struct.unpack_from(">II", buffer, 4)
                    self._answer(connection, oracle.fields(buffer[12 : 12 + meta]))
                    buffer = buffer[12 + body :]

    def _answer(self, connection: socket.socket, meta: oracle.Fields) -> None:
        method, number = oracle.fields(meta[1][-1])[2][-1], meta[4][-1]
        if method == b"Predict":
            connection.sendall(self.predict(number))
            if self.closes:
                connection.close()
        elif method == b"ServerMetadata":
            connection.sendall(
                response_frame(number, STATUS + oracle.put(4, "models: [{name: m, version: '1'}]"))
            )
        else:
            connection.sendall(response_frame(number, STATUS))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The server."""
    found = Server()
    yield found
    found.close()


@pytest.fixture(scope="module")
def front(server: Server) -> Iterator[Gateway]:
    """A gateway in front of it, which keeps running unharmed."""
    with running("--upstream", f"grps+brpc://127.0.0.1:{server.port}", *_FREE) as gateway:
        for _ in range(20):
            assert ask_and_check(gateway) == (200, None)
        memory, descriptors = gateway.status("VmRSS"), gateway.descriptors()
        yield gateway
        assert gateway.status("VmRSS") - memory < 48 * _MIB
        assert gateway.descriptors() <= descriptors + 4
        assert "Traceback" not in bugs_of(gateway)


def ask_and_check(gateway: Gateway) -> tuple[int, str | None]:
    """Call, and return the status and the error; a good response is checked."""
    started_s = time.monotonic()
    found = ask(gateway.http, QUESTION)
    assert time.monotonic() - started_s < _IN_TIME_S
    assert found is not None
    if found.status == 200:
        assert [3.0, 4.0] == found.json["outputs"][0]["data"]
        return 200, None
    text: str = found.json["error"]
    check_text(text)
    return found.status, text


HOSTILE: dict[str, tuple[Answers, int]] = {
    "another's number": (lambda number: response_frame(number + 1), 502),
    "no number": (lambda _: oracle.frame(oracle.put(2, b""), RIGHT), 502),
    "a number too large": (lambda _: response_frame(2**63 - 1), 502),
    "no frame": (lambda _: b"HTTP/1.1 200 OK\r\n\r\n", 502),
    "a length too large": (lambda _: struct.pack(">4sII", b"PRPC", 0xFFFFFFFF, 10), 502),
    "metadata beyond the frame": (lambda _: struct.pack(">4sII", b"PRPC", 10, 11), 502),
    "metadata that is none": (lambda _: oracle.frame(b"\xff" * 20), 502),
    "a question": (lambda number: oracle.Question("Predict").bytes(number), 502),
    "no message": (lambda number: response_frame(number, b""), 502),
    "a message that is none": (lambda number: response_frame(number, b"\xff" * 20), 502),
    "unknown compression": (lambda number: response_frame(number, compress=9), 502),
    "a bomb": (
        lambda number: response_frame(number, BOMB, compress=GZIP),
        502,
    ),
    "snappy that lies": (
        lambda number: response_frame(number, b"\xff\xff\xff\xff\x0f" + bytes(64), compress=SNAPPY),
        502,
    ),
    "an attachment that is not there": (
        lambda number: oracle.frame(
            oracle.put(2, b"") + oracle.put(4, number) + oracle.put(5, 1 << 30), RIGHT
        ),
        502,
    ),
    "fewer elements than the shape": (
        lambda number: response_frame(
            number, STATUS + oracle.message("", [Tensor("y", FLOAT32, (1, 9), (3.0, 4.0))])
        ),
        502,
    ),
    "a shape beyond all memory": (
        lambda number: response_frame(
            number, STATUS + oracle.message("", [Tensor("y", INT32, (2**32 - 1,) * 3, (1,))])
        ),
        502,
    ),
    "an error code without a text": (lambda number: response_frame(number, b"", code=2001), 500),
    "an error code of no kind": (
        lambda number: response_frame(number, b"", code=-77, text="odd"),
        500,
    ),
    "an error text of controls": (
        lambda number: response_frame(number, b"", code=1003, text="\r\n\x00\x1b[31m" * 2_000),
        400,
    ),
    "an error text that is none": (
        lambda number: response_frame(number, b"", code=1003, text=b"\xff\xfe"),
        400,
    ),
    "too much load": (lambda number: response_frame(number, b"", code=2004, text="busy"), 503),
    "a failure of no kind": (
        lambda number: response_frame(number, oracle.put(1, oracle.put(1, 7) + oracle.put(3, 2))),
        500,
    ),
    "silence": (lambda _: b"", 504),
    "half a header": (lambda _: b"PRPC\0", 504),
    # So large that what else comes on the connection does not complete it.
    "half an answer": (lambda number: response_frame(number, RIGHT + bytes(1 << 20))[:200], 504),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_responses_become_errors(front: Gateway, server: Server, name: str) -> None:
    """Each becomes an error of the caller's protocol, in time; the next call succeeds."""
    server.predict, status = HOSTILE[name]
    try:
        found = ask_and_check(front)
    finally:
        server.predict = response_frame
    assert status == found[0], found
    assert (200, None) == ask_and_check(front)


@pytest.mark.parametrize("name", ["silence", "half a header", "half an answer"])
def test_upstream_close_within_a_response_is_an_error_at_once(
    front: Gateway, server: Server, name: str
) -> None:
    """The caller gets 503 at once, not at its deadline."""
    server.predict, server.closes = HOSTILE[name][0], True
    try:
        status, _ = ask_and_check(front)
    finally:
        server.predict, server.closes = response_frame, False
    assert 503 == status  # at its deadline it would be 504
    assert (200, None) == ask_and_check(front)


@pytest.mark.parametrize(
    "extra",
    [response_frame(3), b"PRPC", b"\0" * 64, response_frame(0) * 50],
    ids=["another answer", "half a header", "zeros", "many"],
)
def test_surplus_bytes_never_become_a_response(
    front: Gateway, server: Server, extra: bytes
) -> None:
    """Unsolicited bytes end their connection, and the next call succeeds."""
    wrong = STATUS + oracle.message("", [Tensor("y", FLOAT32, (1, 2), (9.0, 9.0))])
    server.predict = lambda number: (
        response_frame(number) + extra + response_frame(number + 1, wrong)
    )
    try:
        found = [ask_and_check(front) for _ in range(10)]
    finally:
        server.predict = response_frame
    assert {status for status, _ in found} <= {200, 502, 503}
    assert (200, None) == ask_and_check(front)


def test_duplicate_response_is_dropped(front: Gateway, server: Server) -> None:
    """The second response with one id belongs to no call."""
    server.predict = lambda number: response_frame(number) * 2
    try:
        found = [ask_and_check(front) for _ in range(10)]
    finally:
        server.predict = response_frame
    assert {status for status, _ in found} <= {200, 502, 503}
    assert (200, None) == ask_and_check(front)


CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
upstreams: {{server: {{url: "grps+brpc://127.0.0.1:{port}", limits: {{connections: 1}}}}}}
"""


def test_callers_of_a_shared_connection_get_their_own_responses(
    server: Server, tmp_path: Path
) -> None:
    """Each gets its own response when the upstream reverses the order."""
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(port=server.port))
    lock, numbers = threading.Lock(), []

    def swapped(number: int) -> bytes:
        with lock:
            numbers.append(number)
            if len(numbers) % 4:
                return b""
            values = [(each, float(each)) for each in reversed(numbers)]
            numbers.clear()
        return b"".join(
            response_frame(
                each, STATUS + oracle.message("", [Tensor("y", FLOAT32, (1,), (value,))])
            )
            for each, value in values
        )

    with running(str(config)) as front, ExitStack() as stack:
        assert ask_and_check(front) == (200, None)
        server.predict = swapped
        try:
            raws = [stack.enter_context(Raw(front.http)) for _ in range(4)]
            for raw in raws:
                assert raw.send([QUESTION])
            found = [raw.answer() for raw in raws]
        finally:
            server.predict = response_frame
    values = [each.json["outputs"][0]["data"][0] for each in found if each is not None]
    assert 4 == len(set(values))
