"""Two hundred large requests and responses at once, against a memory budget that is far smaller."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.reload_kit import reloadable_beside
from tests.integration.workers_kit import in_flight

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

COUNT = 200
SIZE = 16 << 20
BUDGET = 256 << 20
ZEROS = bytes(SIZE)

CONFIG = """
version: 1
in_flight_bytes: 256MiB
in_flight_bytes_per_address: 256MiB
listeners:
  - http: "127.0.0.1:0"
    limits: {{cut_through_bytes: 0, requests_per_address: 256, queue_wait: 1s}}
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
upstreams: {{large: {{url: "oip+http://127.0.0.1:{port}"}}}}
"""


def message(tensors: str, name: str, size: int) -> tuple[bytes, int]:
    """Return the JSON part of a message with one binary tensor, and its length."""
    tensor = {
        "name": name,
        "datatype": "UINT8",
        "shape": [size],
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"model_name": "m", tensors: [tensor]}).encode()
    return text, len(text)


async def read_message(reader: asyncio.StreamReader) -> tuple[str, int]:
    """Read a request or response; return its first line and the length of its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    found = re.search(r"\ncontent-length: *(\d+)", head, re.IGNORECASE)
    length = remaining = 0 if found is None else int(found[1])
    while remaining:
        data = await reader.read(remaining)
        if not data:
            raise ConnectionError("the body is cut")
        remaining -= len(data)
    return head.partition("\r\n")[0], length


async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to each inference with as many bytes as it has."""
    try:
        while True:
            line, _ = await read_message(reader)
            if line.startswith("POST"):
                text, length = message("outputs", "OUT", SIZE)
                extra = f"Inference-Header-Content-Length: {length}\r\n"
                body = (text, ZEROS)
            else:
                body, extra = (b"", b"{}"), ""
            head = (
                f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{extra}"
                f"Content-Length: {sum(map(len, body))}\r\n\r\n"
            )
            writer.writelines([head.encode(), *body])
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass  # the gateway has closed the connection
    finally:
        writer.close()


@asynccontextmanager
async def server() -> AsyncIterator[int]:
    """Run a server with one model; yield its port."""
    running = await asyncio.start_server(respond, "127.0.0.1", 0, limit=1 << 20)
    async with running:
        yield running.sockets[0].getsockname()[1]


async def ask(address: str) -> str:
    """Send one large inference; return the status, or why there is none."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    text, length = message("inputs", "IN", SIZE)
    head = (
        "POST /v2/models/m/infer HTTP/1.1\r\nHost: gateway\r\n"
        f"Inference-Header-Content-Length: {length}\r\nContent-Length: {length + SIZE}\r\n\r\n"
    )

    async def send() -> None:
        writer.writelines([head.encode(), text, ZEROS])
        await writer.drain()

    sending = asyncio.ensure_future(send())
    try:
        line, received = await read_message(reader)
    except (OSError, asyncio.IncompleteReadError) as error:
        return type(error).__name__
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()
    status = line.split(" ")[1]
    assert status != "200" or received > SIZE
    return status


def memory_bytes(pid: int, key: str) -> int:
    """Return VmRSS or VmHWM of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) << 10


async def test_large_calls_stay_within_the_memory_budget(tmp_path: Path) -> None:
    """Memory grows by one and a half budgets at most, and no call fails with 500 or 502."""
    async with server() as port:
        text = CONFIG.format(port=port)
        async with reloadable_beside(tmp_path / "gateway.yaml", text) as gateway:
            running = gateway.running
            address = running.addresses["main.http"]
            base = memory_bytes(running.process.pid, "VmRSS")
            assert await ask(address) == "200"
            statuses = Counter(await asyncio.gather(*(ask(address) for _ in range(COUNT))))
            assert statuses["200"] > 0
            assert not {"500", "502"} & set(statuses), statuses
            assert memory_bytes(running.process.pid, "VmHWM") < base + 1.5 * BUDGET
            assert in_flight(running) == 0
            assert await ask(address) == "200"
