"""The whole gateway as a proxy before a lenient server: its requests are unambiguous.

Paths that no protocol claims are passed through, listed headers are forwarded, and names of models
become paths: each of them puts a client's bytes into a request of ours.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from tests.conformance.test_http1_client import FIELD, LENIENT, LINE, Recorder, read_as
from tests.hostile.smuggling import CORPUS
from tests.hostile.wire import GOOD_BODY, head, post
from tests.integration.cli_kit import serving

# Hundreds of requests without a response, with a short timeout each.
pytestmark = pytest.mark.timeout(90)

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: hidden\r\n\r\n"
MARK = "/mark/"

PATHS = (
    "/x%0d%0aHost:%20a",
    "/x%0aContent-Length:%205",
    "/x%20HTTP/1.1%0d%0a%0d%0aGET%20/hidden%20HTTP/1.1",
    "/x?a=b%0d%0ac",
    "/x?a b",
    "/x;y=z",
    "/x%00y",
    "//x",
    "/%2e%2e/x",
    "http://elsewhere/x?y",
    "/x\\y",
    '/x"<>^`{|}',
    "/v2/models/a%0d%0aX:%20y/infer",
    "/v2/models/a%20HTTP%2f1.1%0d%0a%0d%0aGET%20%2fhidden/infer",
    "/v2/models/%2e%2e%2fhidden/infer",
    "/v2/models/a%3fb%23c/infer",
)
FIELDS = (
    "X-One: a%0d%0ab",
    "X-One: é",
    "X-One:\ta\t",
    "X-One: " + "a" * 3000,
    "Connection: X-One, close-not\r\nX-One: a",
    "Transfer-Encoding: chunked\r\nX-One: a",
    "Expect: 100-continue",
    "TE: trailers",
    "Trailer: X-One",
    "Content-Encoding: identity",
    "Upgrade: h2c\r\nConnection: Upgrade",
    "X-Forwarded-Host: a\r\nX-Forwarded-Host: b",
    "Keep-Alive: timeout=5",
    "Proxy-Connection: keep-alive",
)


def requests() -> list[bytes]:
    """Return the requests of clients, each for a connection of its own."""
    found = [post(GOOD_BODY, path=path) for path in PATHS]
    found += [head("GET", path) for path in PATHS]
    found += [post(b"GET /hidden HTTP/1.1\r\n\r\n", field, path="/x") for field in FIELDS]
    found += [post(GOOD_BODY, field) for field in FIELDS]
    for kind in CORPUS.values():
        for smuggles in kind.values():
            found.append(smuggles(HIDDEN).replace(b"/v2/models/simple/infer", b"/elsewhere"))
    return found


async def send(address: str, data: bytes, number: int) -> None:
    """Send *data*, and then a marked request on another connection, which is forwarded."""
    host, port = address.rsplit(":", 1)
    for each, timeout_s in (
        (data, 0.15),
        (head("GET", f"{MARK}{number}", "Connection: close"), 15),
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(timeout_s):
                writer.write(each)
                await reader.read()
        except (TimeoutError, ConnectionError):
            assert each is data, number
        finally:
            writer.close()


@pytest.mark.parametrize("make", ["native", "reference"])
async def test_forwarded_requests_are_unambiguous(make: str, tmp_path: Path) -> None:
    """Lenient and strict parsers read the same upstream requests, and each mark once."""
    recorder = Recorder()
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    upstream = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = {
        "version": 1,
        "listeners": [{"http": "127.0.0.1:0", "transport": make, "passthrough": "behind"}],
        "upstreams": {
            "behind": {
                "url": f"oip+http://{upstream}",
                "transport": make,
                "forward_headers": ["x-*"],
                "limits": {"connections": 1},
            }
        },
        "admin": {"address": None, "metrics": None},
        "lifecycle": {"pre_stop": "0s"},
    }
    file = tmp_path / "front.yaml"
    file.write_text(yaml.safe_dump(config))
    async with server:
        with serving(str(file)) as running:
            address = running.addresses["main.http"]
            sent = requests()
            for number in range(0, len(sent), 16):
                some = range(number, min(number + 16, len(sent)))
                await asyncio.gather(*(send(address, sent[each], each) for each in some))
        await recorder.closed()
    readings = {name: read_as(recorder.received, *how) for name, how in LENIENT.items()}
    strict = readings["first_length"]
    assert dict.fromkeys(LENIENT, strict) == readings
    assert [] == [line for line, _ in strict if not LINE.match(line)]
    heads = [part.split(b"\r\n")[1:] for part in _heads(recorder.received)]
    assert [] == [line for lines in heads for line in lines if not FIELD.match(line)]
    assert {f"Host: {upstream}".encode()} == {
        line for lines in heads for line in lines if line.lower().startswith(b"host:")
    }
    marks = [line for line, _ in strict if MARK.encode() in line]
    assert sorted(f"GET {MARK}{each} HTTP/1.1".encode() for each in range(len(sent))) == sorted(
        marks
    )


def _heads(data: bytes) -> list[bytes]:
    """Return the heads of requests that `Recorder` has read one by one."""
    found = []
    for _, body in read_as(data, *LENIENT["first_length"]):
        part, _, data = data.partition(b"\r\n\r\n")
        found.append(part)
        data = data[len(body) :]
    return found


def test_the_requests_include_the_whole_corpus() -> None:
    """The requests have every path, field and smuggling attempt."""
    assert len(requests()) == 2 * len(PATHS) + 2 * len(FIELDS) + sum(map(len, CORPUS.values()))
    assert json.loads(GOOD_BODY)["id"] == "good"
