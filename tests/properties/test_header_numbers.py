"""Numbers in headers: of any length and script, none is a foreign error of a decoder."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.heads.metadata import retry_after_s
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.integration import http_kit
from tests.properties.amplified import Seed, answered, small_messages
from tests.properties.registered import REGISTERED, body_of

NUMBERS = (
    "9" * 19,
    "9" * 21,
    "9" * 309,
    "9" * 5000,
    "-1",
    "+5",
    "1_0",
    "1e5",
    "0x10",
    "\u0661\u0662",
    "\u00b2",
    "nan",
    "inf",
    "1" + "0" * 400 + ".5",
    "",
    " ",
)
OF_TRANSPORTS = (
    "content-length",
    "grpc-timeout",
    "x-request-timeout",
    "retry-after",
    "grpc-retry-pushback-ms",
)


class Recording(Headers):
    """Notes which fields are read by their names."""

    names: set[str]

    def get(self, name: str) -> str | None:
        self.names.add(name)
        return super().get(name)


async def names_read(seed: Seed) -> set[str]:
    """Return the names of the headers that the reader of a message asks for."""
    headers = Recording(seed.wire.headers.pairs)
    headers.names = set()
    await answered(with_headers(seed, headers))
    return headers.names


def with_headers(seed: Seed, headers: Headers) -> Seed:
    wire = seed.wire
    if isinstance(wire, HttpRequest):
        new: Any = HttpRequest(wire.method, wire.path, wire.query, headers, wire.body)
    else:
        new = HttpResponse(wire.status, headers, wire.body)
    return Seed(seed.codec, seed.name, new, seed.call, seed.options, seed.texts)


@pytest.mark.parametrize(
    "codec", [each.name for each in REGISTERED.values() if each.carrier == "http"]
)
async def test_no_number_of_a_header_is_a_foreign_error(codec: str) -> None:
    """Each header that a codec reads is, in its turn, each odd number."""
    wrong = []
    for seed in small_messages()[codec]:
        names = {name for name, _ in seed.wire.headers.lowered} | await names_read(seed)
        for name in sorted(names | set(OF_TRANSPORTS)):
            kept = [pair for pair in seed.wire.headers.pairs if pair[0].lower() != name]
            for number in NUMBERS:
                headers = Headers((*kept, (name, number)))
                outcome = await answered(with_headers(seed, headers))
                if outcome.startswith("500 ") and "internal" in outcome:
                    wrong.append(f"{seed.name}: {name}: {number[:30]!r}: {outcome}")
    assert not wrong


@pytest.mark.parametrize(
    "codec", [each.name for each in REGISTERED.values() if each.carrier == "grpc"]
)
async def test_no_number_of_metadata_is_a_foreign_error(codec: str) -> None:
    """As headers, over gRPC; a codec that is added is tried without a line here."""
    for seed in small_messages()[codec]:
        body = tuple(body_of(seed.wire))
        for name in OF_TRANSPORTS:
            for number in NUMBERS:
                metadata = ((name, number),)
                wire: Any = (
                    GrpcRequest(seed.wire.method, body, metadata)
                    if isinstance(seed.wire, GrpcRequest)
                    else GrpcResponse(body, metadata=metadata)
                )
                new = Seed(seed.codec, seed.name, wire, seed.call, seed.options, seed.texts)
                outcome = await answered(new)
                assert "internal error of the gateway" not in outcome, (name, number, outcome)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", OF_TRANSPORTS)
async def test_no_number_in_a_head_ends_a_transport(name: str, number: str) -> None:
    """The request is answered, or refused by its status; the next connection is served."""
    http_kit.HTTP_MAKES.server = "native"
    try:
        async with http_kit.serving(http_kit.Echo()) as running:
            head = f"POST /v2/x HTTP/1.1\r\nHost: x\r\n{name}: {number}\r\n"
            head += "" if name == "content-length" else "Content-Length: 0\r\n"
            async with asyncio.timeout(30):
                connection = await running.connect()
                try:
                    await connection.send(head.encode() + b"Connection: close\r\n\r\n")
                    connection.writer.write_eof()
                    statuses = http_kit.parse(await connection.rest())
                finally:
                    await connection.close()
                # A body that ends before its length has no response.
                assert set(statuses) <= {200, 400, 408, 413, 431}
                assert statuses or name == "content-length"
                found = await running.ask(http_kit.post(b"x", "Connection: close"))
                assert [200] == http_kit.parse(found)
    finally:
        http_kit.HTTP_MAKES.server = "reference"


@pytest.mark.parametrize("number", NUMBERS)
def test_no_retry_after_of_a_server_is_a_foreign_error(number: str) -> None:
    """A server may write any number there."""
    found = retry_after_s(HttpResponse(503, Headers((("Retry-After", number),))))
    assert found is None or found >= 0
    pushback = GrpcResponse((), metadata=(("grpc-retry-pushback-ms", number),))
    found = retry_after_s(pushback)
    assert found is None or found >= 0
