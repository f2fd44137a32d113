"""Heads of responses: the same bytes with and without the cache of repeated headers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.transports.http.response_writer import write_response
from gateway.wire.http import Buffer, ExtendedHeaders, Headers, HttpRequest, HttpResponse
from tests.memory_client import http_memory

pytestmark = pytest.mark.usefixtures("build")

PLAIN = Headers((("Content-Type", "application/json"), ("bad name", "x"), ("X-Odd", "a\r\nb: c")))
DATED = Headers((("date", "today"),))


class RecordingTransport(asyncio.Transport):
    """A transport that records the bytes written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: Any) -> None:
        self.data += data


def lines(response: HttpResponse) -> list[bytes]:
    """Return the lines of the response head written for *response*, without today's date."""
    transport = RecordingTransport()
    write_response(transport, response, keep=True, version=(1, 1))
    head, _, body = transport.data.partition(b"\r\n\r\n")
    assert b"".join(response.body) == body
    return [line for line in head.split(b"\r\n") if not line.startswith(b"Date: ")]


@pytest.mark.parametrize("request_id", ["r-1", "", "a\r\nb", "r" * 200])
def test_the_request_id_is_a_header_after_those_of_the_codec(request_id: str) -> None:
    """Line breaks in it are escaped, and the headers of the codec stay as they are."""
    fixed_lines = [b"HTTP/1.1 200 OK", b"Content-Type: application/json", b"X-Odd: a%0D%0Ab: c"]
    field = b"x-request-id: " + request_id.replace("\r\n", "%0D%0A").encode()
    expected = [*fixed_lines, *([field] if request_id else []), b"Content-Length: 2"]
    for _ in range(2):
        assert expected == lines(HttpResponse(200, PLAIN, (b"{}",), request_id=request_id))


def test_a_response_to_head_has_no_content_length_of_zero() -> None:
    """RFC 9110 8.6: it is the length of the response to GET, which an upstream may leave out."""
    for body, expected in (((), []), ((b"{}",), [b"Content-Length: 2"])):
        transport = RecordingTransport()
        response = HttpResponse(200, body=body)
        write_response(transport, response, keep=True, version=(1, 1), head_only=True)
        found = transport.data.split(b"\r\n")
        assert expected == [line for line in found if line.startswith(b"Content-Length")]
        assert [b"", b""] == found[-2:]


def test_a_response_has_exactly_one_date() -> None:
    """The date of the codec wins; otherwise the transport adds one."""
    for _ in range(2):
        for headers, expected in ((DATED, b"date: today"), (Headers(), b"Date: ")):
            transport = RecordingTransport()
            response = HttpResponse(200, headers, (b"x",))
            write_response(transport, response, keep=True, version=(1, 1))
            dates = [line for line in transport.data.split(b"\r\n") if b"ate: " in line]
            assert 1 == len(dates)
            assert dates[0].startswith(expected)


@pytest.mark.parametrize("size", [0, 9, 10, 8192, 8193])
@pytest.mark.parametrize("keep", [False, True])
def test_headers_of_the_transport_follow_those_of_the_codec(size: int, keep: bool) -> None:
    """The body follows the headers."""
    transport = RecordingTransport()
    body: list[Buffer] = [bytearray(b"x" * (size // 2)), memoryview(b"y" * (size - size // 2))]
    response = HttpResponse(404, DATED, body, request_id="r")
    write_response(transport, response, keep=keep, version=(1, 0), varies=True)
    connection = "keep-alive" if keep else "close"
    head = (
        "HTTP/1.1 404 Not Found\r\ndate: today\r\nx-request-id: r\r\nVary: Accept-Encoding\r\n"
        f"Content-Length: {size}\r\nConnection: {connection}\r\n\r\n"
    )
    assert head.encode() + b"".join(body) == transport.data


async def test_the_memory_client_has_the_request_id_as_a_header() -> None:
    """Frontend and client read it as over a socket."""

    class Named:
        async def handle(self, wire: HttpRequest, /) -> HttpResponse:
            request_id = (wire.headers.get("x-request-id") or "").encode()
            return HttpResponse(200, PLAIN, (request_id,), request_id="r")

        async def __call__(self, wire: HttpRequest, /) -> Any:
            yield await self.handle(wire)

    frontend: Any = Named()
    request = HttpRequest("GET", "/", request_id="q")
    answer = await http_memory(frontend).send(request, deadline=None)
    assert "r" == answer.headers.get("x-request-id")
    assert b"q" == bytes(answer.view)


def test_fields_of_one_response_leave_the_lines_of_the_others_cached() -> None:
    """They follow those of the codec, which are written once for all responses."""
    kept = Headers((("Content-Type", "application/json"),))
    cached = []
    for left in ("2", "1"):
        headers = ExtendedHeaders(kept, (("RateLimit", left), ("date", "today")))
        expected = [b"Content-Type: application/json", b"RateLimit: %b" % left.encode()]
        found = lines(HttpResponse(200, headers, (b"{}",)))
        assert [*expected, b"date: today", b"Content-Length: 2"] == found[1:]
        cached.append(kept._read[1])
    assert cached[0] == (b"Content-Type: application/json\r\n", False)
    assert cached[0] is cached[1]
