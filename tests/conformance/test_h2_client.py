"""A client of gRPC with a server that violates HTTP/2: the errors that server and caller get.

After a case the client makes a second call: on the same connection if that is still usable.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

import pytest

from gateway.ir.errors import GatewayError
from gateway.wire.grpc import GrpcStatus
from tests.conformance.h2_case import setting, window
from tests.conformance.h2_kit import (
    COMPRESSION_ERROR,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    connection,
    judged,
    split,
    stream,
)
from tests.hostile.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    frame,
    literal,
    message,
    number,
)
from tests.integration.grpc_echo import MAKES, ask, calling

GOOD = b"good"
STATUS = literal(b":status", b"200")
TYPE = literal(b"content-type", b"application/grpc")
HEAD = STATUS + TYPE
OK = literal(b"grpc-status", b"0")
_LAST = END_HEADERS | END_STREAM


def head(block: bytes = HEAD, at: int = 1, flags: int = END_HEADERS) -> bytes:
    """Write a HEADERS frame of a response."""
    return frame(HEADERS, flags, at, block)


def response(block: bytes = HEAD, tail: bytes = OK, at: int = 1) -> bytes:
    """Write a whole response."""
    return head(block, at) + frame(DATA, 0, at, message(GOOD)) + head(tail, at, _LAST)


RESPONSE = response()
SETTINGS_FRAME = frame(SETTINGS)
ANSWERED = "answered"


@dataclass(frozen=True)
class Case:
    """A server's response to the first call, and the expected outcome.

    Attributes:
        expected: The error that the server gets; "answered" for none.
        begin: The first frames of the server, before any call.
    """

    section: str
    data: bytes
    expected: str
    begin: bytes = SETTINGS_FRAME


CASES = {
    "answer": Case("8.1", RESPONSE, ANSWERED),
    "unknown_frames": Case("4.1", frame(0xEE, 1, 1, b"a") + frame(0xEE) + RESPONSE, ANSWERED),
    "block_in_continuations": Case(
        "6.10",
        frame(HEADERS, 0, 1, HEAD[:5])
        + frame(CONTINUATION, 4, 1, HEAD[5:])
        + RESPONSE[9 + len(HEAD) :],
        ANSWERED,
    ),
    "padded_answer": Case(
        "6.1",
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\3" + HEAD + bytes(3))
        + frame(DATA, PADDED, 1, b"\3" + message(GOOD) + bytes(3))
        + head(OK, 1, _LAST),
        ANSWERED,
    ),
    "priorities": Case("6.3", frame(PRIORITY, 0, 9, bytes(5)) + RESPONSE, ANSWERED),
    "interim_answers": Case("8.1", head(literal(b":status", b"103")) * 2 + RESPONSE, ANSWERED),
    "ping": Case("6.7", frame(PING, payload=bytes(8)) + RESPONSE, ANSWERED),
    "goaway_after_the_call": Case(
        "6.8", frame(GOAWAY, payload=b"\0\0\0\1" + bytes(4)) + RESPONSE, ANSWERED
    ),
    "settings_in_between": Case(
        "6.5", setting(4, 100) + setting(3, 1) + setting(1, 0) + RESPONSE, ANSWERED
    ),
    "no_settings_first": Case(
        "3.4", b"", connection(PROTOCOL_ERROR), frame(PING, payload=bytes(8))
    ),
    "settings_ack_with_a_payload": Case(
        "6.5", frame(SETTINGS, ACK, 0, bytes(6)), connection(FRAME_SIZE_ERROR)
    ),
    "push_allowed_by_a_server": Case("6.5.2", b"", connection(PROTOCOL_ERROR), setting(2, 1)),
    "frame_size_too_small": Case("6.5.2", setting(5, 1), connection(PROTOCOL_ERROR)),
    "window_too_large": Case("6.5.2", setting(4, 1 << 31), connection(FLOW_CONTROL_ERROR)),
    "settings_on_a_stream": Case("6.5", frame(SETTINGS, 0, 1), connection(PROTOCOL_ERROR)),
    "settings_of_odd_length": Case(
        "6.5", frame(SETTINGS, payload=b"abc"), connection(FRAME_SIZE_ERROR)
    ),
    "push_promise": Case("8.4", frame(PUSH, 4, 1, b"\0\0\0\2" + HEAD), connection(PROTOCOL_ERROR)),
    "ping_too_short": Case("6.7", frame(PING, payload=b"abc"), connection(FRAME_SIZE_ERROR)),
    "ping_on_a_stream": Case("6.7", frame(PING, 0, 1, bytes(8)), connection(PROTOCOL_ERROR)),
    "reset_too_short": Case("6.4", frame(RST, 0, 1, b"a"), connection(FRAME_SIZE_ERROR)),
    "reset_on_stream_0": Case("6.4", frame(RST, 0, 0, bytes(4)), connection(PROTOCOL_ERROR)),
    "update_by_nothing": Case("6.9", window(0), connection(PROTOCOL_ERROR)),
    "update_by_nothing_on_a_stream": Case("6.9", window(0, 1), stream(PROTOCOL_ERROR)),
    "window_overflows": Case("6.9.1", window((1 << 31) - 1), connection(FLOW_CONTROL_ERROR)),
    "window_of_a_stream_overflows": Case(
        "6.9.1", window((1 << 31) - 1, 1), stream(FLOW_CONTROL_ERROR)
    ),
    "more_than_the_window": Case(
        "6.9.1", head() + frame(DATA, 0, 1, bytes(70_000)), connection(FLOW_CONTROL_ERROR)
    ),
    "data_on_stream_0": Case("6.1", frame(DATA, 0, 0, b"a"), connection(PROTOCOL_ERROR)),
    "data_on_an_idle_stream": Case("5.1", frame(DATA, 0, 5, b"a"), connection(PROTOCOL_ERROR)),
    "headers_on_an_idle_stream": Case("5.1", head(at=5), connection(PROTOCOL_ERROR)),
    "headers_on_an_even_stream": Case("5.1.1", head(at=2), connection(PROTOCOL_ERROR)),
    "headers_on_stream_0": Case("6.2", head(at=0), connection(PROTOCOL_ERROR)),
    "padding_too_long": Case(
        "6.1", head() + frame(DATA, PADDED, 1, b"\xff" + message(GOOD)), connection(PROTOCOL_ERROR)
    ),
    "continuation_alone": Case("6.10", frame(CONTINUATION, 4, 1, HEAD), connection(PROTOCOL_ERROR)),
    "continuation_on_another_stream": Case(
        "6.10",
        frame(HEADERS, 0, 1, HEAD[:5]) + frame(CONTINUATION, 4, 3, HEAD[5:]),
        connection(PROTOCOL_ERROR),
    ),
    "frame_in_a_block": Case(
        "4.3",
        frame(HEADERS, 0, 1, HEAD[:5]) + frame(PING, payload=bytes(8)),
        connection(PROTOCOL_ERROR),
    ),
    "frame_over_the_limit": Case(
        "4.2", b"\xff\xff\xff" + bytes([DATA, 0, 0, 0, 0, 1]), connection(FRAME_SIZE_ERROR)
    ),
    "block_that_is_no_hpack": Case("4.3", head(HEAD + b"\x80"), connection(COMPRESSION_ERROR)),
    "table_over_its_limit": Case(
        "H4.2", head(number(4097, 5, 0x20) + HEAD), connection(COMPRESSION_ERROR)
    ),
    "goaway_too_short": Case("6.8", frame(GOAWAY, payload=b"a"), connection(FRAME_SIZE_ERROR)),
    "goaway_on_a_stream": Case("6.8", frame(GOAWAY, 0, 1, bytes(8)), connection(PROTOCOL_ERROR)),
    "no_status": Case("8.3.2", head(TYPE), stream(8)),
    "two_statuses": Case("8.3", head(STATUS + HEAD), stream(PROTOCOL_ERROR)),
    "status_behind_other_fields": Case("8.3", head(TYPE + STATUS), stream(PROTOCOL_ERROR)),
    "pseudo_field_of_a_request": Case(
        "8.3", head(HEAD + literal(b":path", b"/")), stream(PROTOCOL_ERROR)
    ),
    "upper_case_name": Case("8.2.1", head(HEAD + literal(b"X-A", b"a")), stream(PROTOCOL_ERROR)),
    "value_with_lf": Case("8.2.1", head(HEAD + literal(b"x-a", b"a\nb")), stream(PROTOCOL_ERROR)),
    "connection_field": Case(
        "8.2.2", head(HEAD + literal(b"connection", b"close")), stream(PROTOCOL_ERROR)
    ),
    "status_in_trailers": Case(
        "8.1", head() + frame(DATA, 0, 1, message(GOOD)) + head(STATUS + OK, 1, _LAST), "failed"
    ),
    "trailers_without_the_end": Case(
        "8.1", head() + frame(DATA, 0, 1, message(GOOD)) + head(OK), stream(8)
    ),
    "data_before_headers": Case("8.1", frame(DATA, 0, 1, message(GOOD)), stream(8)),
    "data_after_the_end": Case("5.1", RESPONSE + frame(DATA, 0, 1, b"a"), ANSWERED),
    "headers_after_the_end": Case("5.1", RESPONSE + head(), ANSWERED),
}


class Server:
    """Sends the bytes of a case to the first call, and a valid response to all others."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.connections = 0
        self.received = b""
        self._open = 0
        self.all_closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        self._open += 1
        self.all_closed.clear()
        first = self.connections == 1
        writer.write(self._case.begin if first else SETTINGS_FRAME)
        received, answered = b"", 0
        with suppress(ConnectionError):
            while piece := await reader.read(65_536):
                received += piece
                if first:
                    self.received = received
                requests = [
                    at
                    for kind, flags, at, _ in split(received[len(PREFACE) :])
                    if kind == DATA and flags & END_STREAM
                ]
                for at in requests[answered:]:
                    writer.write(self._case.data if first and at == 1 else response(at=at))
                answered = len(requests)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._open -= 1
        if not self._open:
            self.all_closed.set()


@pytest.mark.parametrize("name", CASES)
async def test_native_client_conforms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets the error code; the first call fails or succeeds, and the next one succeeds."""
    monkeypatch.setattr(MAKES, "client", "native")
    case = CASES[name]
    server = Server(case)
    found = "failed"
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listening:
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with calling(address) as client:
            with suppress(GatewayError):
                first = await client.send(ask(b"first"), deadline=monotonic() + 30)
                found = "answered" if first.status is GrpcStatus.OK else "failed"
            second = await client.send(ask(b"second"), deadline=monotonic() + 30)
            assert (GrpcStatus.OK, GOOD) == (second.status, bytes(second.view))
            same = server.connections == 1
        async with asyncio.timeout(20):
            await server.all_closed.wait()
    judgement = judged(server.received[len(PREFACE) :])
    if case.expected.startswith("connection"):
        assert (case.expected, False) == (connection(judgement.goaway or 0), same)
    elif case.expected.startswith("stream"):
        assert (case.expected, True) == (stream(judgement.resets.get(1, 0)), same)
    else:
        assert (case.expected, None, {}) == (found, judgement.goaway, judgement.resets)
