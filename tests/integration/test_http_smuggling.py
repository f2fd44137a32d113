"""Requests that two HTTP parsers might read in two ways: one response at most, then the end."""

from __future__ import annotations

import pytest

from gateway.transports.http.faults import HttpError
from tests.integration.http_kit import Echo, parse, post, serving

pytestmark = pytest.mark.usefixtures("http_makes")

HOST = b"Host: h\r\n"
POST = b"POST /v2 HTTP/1.1\r\n" + HOST
GET = b"GET /v2 HTTP/1.1\r\n"
HIDDEN = b"GET /v2/hidden HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    "te_and_cl": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "cl_and_te": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two_lengths": POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
    "same_length_twice": POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "length_list": POST + b"Content-Length: 0, 0\r\n\r\n",
    "length_plus": POST + b"Content-Length: +0\r\n\r\n",
    "length_minus": POST + b"Content-Length: -1\r\n\r\n",
    "length_hex": POST + b"Content-Length: 0x0\r\n\r\n",
    "length_underscore": POST + b"Content-Length: 1_0\r\n\r\n",
    "length_overflow": POST + b"Content-Length: 18446744073709551617\r\n\r\n",
    "space_before_colon": POST + b"Content-Length : 5\r\n\r\n",
    "folded_field": POST + b"X-A: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "folded_te": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "te_unknown": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "te_identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "te_gzip": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "te_twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "te_in_1_0": b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk_not_hex": CHUNKED + b"zz\r\n0\r\n\r\n",
    "chunk_negative": CHUNKED + b"-1\r\n0\r\n\r\n",
    "chunk_0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "chunk_space": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "chunk_bare_lf": CHUNKED + b"3\nabc\n0\n\n",
    "chunk_too_long": CHUNKED + b"3\r\nabcdef\r\n0\r\n\r\n",
    "chunk_overflow": CHUNKED + b"fffffffffffffffff\r\nabc",
    "chunk_extension_lf": CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "no_host": GET + b"\r\n",
    "two_hosts": GET + HOST + HOST + b"\r\n",
    "odd_host": GET + b"Host: a b\r\n\r\n",
    "bare_lf": b"GET /v2 HTTP/1.1\nHost: h\n\n",
    "bare_cr": GET + HOST + b"X: a\rb\r\n\r\n",
    "nul": GET + HOST + b"X: a\0b\r\n\r\n",
    "control": GET + HOST + b"X: a\x01b\r\n\r\n",
    "odd_name": GET + HOST + b"X\x01: a\r\n\r\n",
    "no_colon": GET + HOST + b"Xyz\r\n\r\n",
    "http_0_9": b"GET /v2\r\n\r\n",
    "http_1_2": b"GET /v2 HTTP/1.2\r\n" + HOST + b"\r\n",
    "http_2": b"GET /v2 HTTP/2.0\r\n" + HOST + b"\r\n",
    "nearly_http_2_preface": b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    "garbage": b"\x00\xff\x00" * 40 + b"\r\n\r\n",
    "odd_method": b"FOO /v2 HTTP/1.1\r\n" + HOST + b"\r\n",
    "connect": b"CONNECT a:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "fragment": b"GET /v2#a HTTP/1.1\r\n" + HOST + b"\r\n",
    "raw_utf8": "GET /v2/é HTTP/1.1\r\n".encode() + HOST + b"\r\n",
    "space_in_target": b"GET /v2/a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "expectation": POST + b"Expect: else\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("cut", [None, 1], ids=["whole", "by_byte"])
@pytest.mark.parametrize("name", REFUSED)
async def test_ambiguous_request_is_rejected_and_the_connection_closed(
    name: str, cut: int | None
) -> None:
    """The client gets one 4xx, 501 or 505, and nothing behind the request is run."""
    echo = Echo()
    async with serving(echo, body_idle_timeout_s=1.0) as running:
        data = REFUSED[name] + HIDDEN
        raw = await running.connect()
        try:
            for start in range(0, len(data), cut or len(data)):
                await raw.send(data[start : start + (cut or len(data))])
        except ConnectionError:
            pass  # refused before all of it was sent
        response = await raw.rest()
        await raw.close()
        assert [200] == parse(await running.ask(post(b"", "Connection: close")))
    (status,) = parse(response)
    assert 400 <= status < 500 or status in (501, 505)
    assert b"Traceback" not in response
    assert "/v2/hidden" not in [wire.path for wire in echo.seen]


@pytest.mark.needs("readable_faults")
@pytest.mark.parametrize("name", REFUSED)
async def test_refusal_has_the_form_of_the_gateway(name: str) -> None:
    """It is JSON, and tells that the connection closes."""
    async with serving(Echo()) as running:
        response = await running.ask(REFUSED[name])
    assert b"\r\nConnection: close\r\n" in response
    assert b'{"error": "' in response


async def test_http_2_preface_is_never_followed_by_http_1() -> None:
    """A connection that begins as HTTP/2 is HTTP/2, or it is rejected."""
    echo = Echo()
    async with serving(echo) as running:
        response = await running.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN)
    assert b"HTTP/1.1 2" not in response
    assert [] == echo.seen


async def test_upgrade_is_declined_and_the_connection_closed() -> None:
    """The request is served without an upgrade; nothing behind it is run."""
    echo = Echo()
    async with serving(echo) as running:
        upgrade = GET + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert [200] == parse(await running.ask(upgrade + HIDDEN))
    assert ["/v2"] == [wire.path for wire in echo.seen]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://other/v2/a?b=c", "/v2/a", "b=c"),
        ("/v2?", "/v2", ""),
        ("/v2/a?b?c", "/v2/a", "b?c"),
    ],
)
async def test_request_targets_are_parsed(target: str, path: str, query: str) -> None:
    """The absolute form and unusual queries are parsed correctly."""
    echo = Echo()
    async with serving(echo) as running:
        await running.ask(post(b"", "Connection: close", path=target))
    assert [(path, query)] == [(wire.path, wire.query) for wire in echo.seen]


async def test_invalid_body_after_its_response_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error in a body that is no longer read is no fault of the gateway."""
    async with serving(Echo()) as running:
        raw = await running.connect()
        await raw.send(b"POST /elsewhere HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert 404 == (await raw.answer()).status
        await raw.send(b"zz\r\n")
        assert b"" == await raw.rest()
        await raw.close()
    assert [] == [record.message for record in caplog.records]


def test_long_error_messages_are_clipped() -> None:
    """An error repeats only a part of the client's bytes."""
    fault = HttpError(400, "x" * 100_000)
    assert len(fault.response.view) < 1024
