"""Batches through real sockets when clients disconnect and the gateway stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.app.run.gateway import Gateway
from gateway.config.load import load_text
from tests.fakes import settle
from tests.integration.http_kit import eventually
from tests.integration.sharing_model import GIVEN_UP, GO_ON, RUNS

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
models:
  patient:
    backend: python
    options: {callable: "tests.integration.sharing_model:patient"}
    batching: {max_delay: 3s, preferred_sizes: [2]}
lifecycle: {pre_stop: 0s, drain: 5s}
"""


@pytest.fixture(autouse=True)
def _afresh() -> None:
    RUNS.clear()
    GO_ON.clear()
    GIVEN_UP.clear()


@asynccontextmanager
async def serving() -> AsyncIterator[Gateway]:
    gateway = Gateway(load_text(CONFIG))
    await gateway.start()
    try:
        yield gateway
    finally:
        GO_ON.set()
        await gateway.stop()


class Caller:
    """One connection with one request on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def ask(cls, gateway: Gateway, value: int) -> Caller:
        host, _, port = gateway.addresses["main.http"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        tensor = {"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [value]}
        body = json.dumps({"inputs": [tensor]})
        head = f"POST /v2/models/patient/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n{body}".encode())
        return cls(reader, writer)

    async def answer(self) -> Any:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
        body = await self._reader.readexactly(int(length.partition(b":")[2]))
        await self.leave()
        return json.loads(body)["outputs"][0]["data"]

    async def leave(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def _running() -> None:
    """Wait for the model to be called."""
    await eventually(lambda: bool(RUNS))  # it runs on a thread and knows no loop


async def test_batch_continues_for_the_remaining_client() -> None:
    """One of two clients disconnects: the model runs on, and the other gets its reply."""
    async with serving() as gateway:
        leaver, stayer = await Caller.ask(gateway, 1), await Caller.ask(gateway, 2)
        await _running()
        await leaver.leave()
        assert not await asyncio.to_thread(GIVEN_UP.wait, 0.05)
        GO_ON.set()
        assert [2] == await stayer.answer()
    assert [2] == RUNS


async def test_batch_is_cancelled_when_all_clients_disconnect() -> None:
    """The model is cancelled, although its batch never ends by itself."""
    async with serving() as gateway:
        callers = [await Caller.ask(gateway, value) for value in (1, 2)]
        await _running()
        for caller in callers:
            await caller.leave()
        assert await asyncio.to_thread(GIVEN_UP.wait, 20)


async def test_stop_finishes_queued_requests() -> None:
    """A request that waits in the batch queue at a stop gets its reply."""
    async with serving() as gateway:
        callers = [await Caller.ask(gateway, value) for value in (1, 2, 3)]
        await _running()
        stopping = asyncio.ensure_future(gateway.stop())
        await settle()
        GO_ON.set()
        assert [[1], [2], [3]] == [await caller.answer() for caller in callers]
        await stopping
    assert [2, 1] == RUNS
