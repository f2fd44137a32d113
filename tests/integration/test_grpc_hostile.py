"""Raw HTTP/2 frames that no gRPC library sends: the server responds or resets, and stays usable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway.transports.contract import ServerLimits
from gateway.wire.grpc import GrpcStatus
from tests.integration.grpc_echo import (
    STREAM,
    UNARY,
    Answers,
    ask,
    calling,
    echo,
    only_quiet,
    serving,
)

HEADERS, DATA, RST, SETTINGS = 1, 0, 3, 4
END_STREAM, END_HEADERS = 1, 4

pytestmark = pytest.mark.usefixtures("grpc_makes")


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Bytes of a hostile peer may not write to stderr or log a warning."""
    yield
    only_quiet(capfd, caplog)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Write one HTTP/2 frame."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def field(name: bytes, value: bytes) -> bytes:
    """Write one header field as an HPACK literal."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call(
    path: bytes = UNARY.encode(), *extra: bytes, stream: int = 1, flags: int = END_HEADERS
) -> bytes:
    """Write the HEADERS frame that begins a call."""
    fields = (
        field(b":method", b"POST"),
        field(b":scheme", b"http"),
        field(b":path", path),
        field(b":authority", b"x"),
        field(b"te", b"trailers"),
        field(b"content-type", b"application/grpc"),
    )
    return frame(HEADERS, flags, stream, b"".join(fields + extra))


MESSAGE = frame(DATA, END_STREAM, 1, b"\0\0\0\0\1x")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)


async def status_of(address: str, data: bytes) -> int:
    """Send *data*, return the gRPC status of the first response."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(PREFACE + data)
        received = b""
        name = b"\x0bgrpc-status"
        async with asyncio.timeout(20):
            while name not in received or len(received.split(name, 1)[1]) < 3:
                more = await reader.read(65536)
                if not more:
                    raise ConnectionError(f"closed after {received!r}")
                received += more
        length, rest = received.split(name, 1)[1][0], received.split(name, 1)[1][1:]
        return int(rest[:length])
    finally:
        writer.close()


CASES = {
    "good": (call() + MESSAGE, GrpcStatus.OK),
    "no_message": (call(flags=END_HEADERS | END_STREAM), GrpcStatus.INVALID_ARGUMENT),
    "no_message_for_a_stream": (
        call(STREAM.encode(), flags=END_HEADERS | END_STREAM),
        GrpcStatus.INVALID_ARGUMENT,
    ),
    "half_a_message": (
        call() + frame(DATA, END_STREAM, 1, b"\0\0\0\0\5x"),
        GrpcStatus.INVALID_ARGUMENT,
    ),
    "metadata_that_is_not_ascii": (call(UNARY.encode(), field(b"x-a", b"\xff\xfe")) + MESSAGE, 0),
    "metadata_with_a_tab": (call(UNARY.encode(), field(b"x-a", b"a\tb")) + MESSAGE, 0),
    "four_gigabytes_declared": (
        call() + frame(DATA, 0, 1, b"\0\xff\xff\xff\xffx"),
        GrpcStatus.RESOURCE_EXHAUSTED,
    ),
    "garbage_as_gzip": (
        call(UNARY.encode(), field(b"grpc-encoding", b"gzip"))
        + frame(DATA, END_STREAM, 1, b"\1\0\0\0\3xyz"),
        GrpcStatus.INVALID_ARGUMENT,
    ),
    "no_time_left": (
        call(UNARY.encode(), field(b"grpc-timeout", b"0n")) + MESSAGE,
        GrpcStatus.DEADLINE_EXCEEDED,
    ),
    "path_without_slash": (call(b"x") + MESSAGE, GrpcStatus.UNIMPLEMENTED),
    "path_of_control_characters": (call(b"/\1\2/\x7f") + MESSAGE, GrpcStatus.UNIMPLEMENTED),
    "path_that_is_not_text": (call(b"/te\xff\xfe/x") + MESSAGE, GrpcStatus.UNIMPLEMENTED),
    "path_of_unicode": (call("/ünï/cöde".encode()) + MESSAGE, GrpcStatus.UNIMPLEMENTED),
}


UNLIKE = {"path_that_is_not_text": pytest.mark.needs("any_path")}


@pytest.mark.parametrize("name", [pytest.param(each, marks=UNLIKE.get(each, ())) for each in CASES])
async def test_malformed_frames_get_their_status(name: str, grpc_makes: tuple[str, str]) -> None:
    """Each gets its status at once, and a good call after it succeeds."""
    data, status = CASES[name]
    if name == "garbage_as_gzip" and grpc_makes[0] == "reference":
        status = GrpcStatus.INTERNAL  # the C core's own answer
    async with serving(Answers(echo)) as server, calling(server) as client:
        assert status == await status_of(server.address, data)
        assert GrpcStatus.OK is (await client.send(ask(), deadline=None)).status


async def test_rapid_resets_do_not_delay_other_calls() -> None:
    """Thousands of calls that are reset at once delay no other call."""
    data = b"".join(
        call(stream=2 * number + 1) + frame(RST, 0, 2 * number + 1, b"\0\0\0\x08")
        for number in range(2000)
    )
    async with serving(Answers(echo)) as server, calling(server) as client:
        host, port = server.address.rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + data)
        async with asyncio.timeout(20):
            assert GrpcStatus.OK is (await client.send(ask(), deadline=None)).status
        writer.close()


async def test_incomplete_message_times_out() -> None:
    """A call whose message stays incomplete gets its status after `body_timeout`."""
    limits = ServerLimits(body_timeout_s=0.1)
    data = call() + frame(DATA, 0, 1, b"\0\0\0\0\5x")
    async with serving(Answers(echo), limits) as server, calling(server) as client:
        assert GrpcStatus.DEADLINE_EXCEEDED == await status_of(server.address, data)
        assert GrpcStatus.OK is (await client.send(ask(), deadline=None)).status


async def test_other_protocols_are_disconnected() -> None:
    """The server closes connections that send HTTP/1.1 or garbage."""
    async with serving(Answers(echo)) as server, calling(server) as client:
        host, port = server.address.rsplit(":", 1)
        for data in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01" + bytes(100)):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            async with asyncio.timeout(20):
                while await reader.read(65536):
                    pass
            writer.close()
        assert GrpcStatus.OK is (await client.send(ask(), deadline=None)).status
