"""Letters in the names of models, through a whole gateway to a server that decodes no path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.integration.asking_kit import running

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", protocols: [oip], transport: IMPLEMENTATION}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
upstreams:
  server: {url: "oip+http://127.0.0.1:PORT", transport: IMPLEMENTATION, options: {dialect: ovms}}
routes: [{name: all, targets: [{upstream: server}]}]
"""
LETTERS = "+@:,=~!$&'()*;"
TENSOR = {"datatype": "FP32", "shape": [1], "data": [1.0]}


@asynccontextmanager
async def triton(seen: list[str]) -> AsyncIterator[int]:
    """Run a server that notes the path of each inference; yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path, body = head.split(b" ")[1].decode(), b""
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        body = await reader.readexactly(int(line.split(b":")[1]))
                found: dict[str, object] = {"name": "m", "versions": ["1"], "platform": "p"}
                found |= {"inputs": [TENSOR | {"name": "x"}], "outputs": [TENSOR | {"name": "y"}]}
                if path.endswith("/infer"):
                    seen.append(path)
                    document, _ = json.JSONDecoder().raw_decode(body.decode("latin-1"))
                    found = {"model_name": "m", "id": document["id"]}
                    found["outputs"] = [TENSOR | {"name": "y"}]
                text = json.dumps(found).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def post(address: str, path: str, body: bytes) -> bytes:
    """Return the status line of the response to a request whose path is sent as it is."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b"
        % (path.encode(), len(body), body)
    )
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize("implementation", ["native", "reference"])
async def test_letters_of_a_path_are_encoded_for_no_server(implementation: str) -> None:
    """Triton compares paths as they are, so a model whose name has one of these letters was 404."""
    seen: list[str] = []
    body = json.dumps({"inputs": [TENSOR | {"name": "x"}]}).encode()
    async with triton(seen) as port:
        text = CONFIG.replace("IMPLEMENTATION", implementation).replace("PORT", str(port))
        async with running(text) as gateway:
            address = gateway.addresses["main.http"]
            for letter in LETTERS:
                for written in (letter, f"%{ord(letter):02X}"):
                    line = await post(address, f"/v2/models/a{written}b/infer", body)
                    assert b" 200 " in line, (letter, line)
    assert [f"/v2/models/a{letter}b/infer" for letter in LETTERS for _ in range(2)] == seen
