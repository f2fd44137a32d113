"""Text calls as inferences: recorded, replayed, counted; without keys and the names of users."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import pytest
from aiohttp import web

from gateway.app import Gateway, complete_service, connect
from gateway.migration.captures.capture import Capture
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.rules import OutputRules
from gateway.migration.compare.tensors import Outcome
from gateway.migration.replay.replay import Replay, ReplayOptions, ReplayOutcome
from gateway.settings.units import parse_url
from tests.integration.asking_kit import running, urls
from tests.integration.migration.test_stock import stock
from tests.integration.openai_models import MODELS

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.timeout(120)

KEY, USER = "sk-secret-of-alice", "alice@example.com"
HEADERS = {"Authorization": f"Bearer {KEY}", "api-key": KEY, "x-api-key": KEY}

CONFIG = f"""
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
CAPTURE
models:
{MODELS}
"""
CAPTURE = """\
capture:
  directory: {directory}
  payload: full
  parameters: full
  wire: true
  min_free: 0
"""
CLOSED = asyncio.Event()
"""Set when the model of `endless` is cancelled."""

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"model": "embed_text", "input": ["one", "two"]}),
    ("/v1/embeddings", {"model": "embed_ids", "input": "hello world", "dimensions": 4}),
    ("/v2/rerank", {"model": "rerank_text", "query": "red cat", "documents": ["a", "red cat"]}),
    ("/v1/completions", {"model": "complete_text", "prompt": "a"}),
]


def content_of(folder: Path) -> bytes:
    """Return the bytes of all files below a folder."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def send_all(gateway: Gateway) -> None:
    """Send each request with keys and the name of a user."""
    url = f"http://{gateway.addresses['main.http']}"
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        for path, request in REQUESTS:
            body = {**request, "user": USER}
            async with session.post(url + path, json=body) as reply:
                assert 200 == reply.status, await reply.text()


@pytest.mark.parametrize("protocol", ["oip.grpc", "oip.http"])
async def test_recorded_texts_are_replayed_as_inferences(tmp_path: Path, protocol: str) -> None:
    """The same server gives the same rows again, over another protocol; no file names anybody."""
    text = CONFIG.replace("CAPTURE", CAPTURE.format(directory=tmp_path))
    async with running(text) as gateway:
        await send_all(gateway)
    content = content_of(tmp_path)
    assert b"hello world" in content
    assert KEY.encode() not in content
    assert USER.encode() not in content
    outcomes: list[Outcome] = []

    def done(_record: object, _outcome: ReplayOutcome, found: Comparison | None) -> None:
        assert found is not None
        outcomes.append(found.outcome)

    # A server of tensors has no tokenizer: it cannot be asked with these texts.
    calls = [call for call in Capture(tmp_path).calls() if call.call.model != "embed_ids"]
    async with running(CONFIG.replace("CAPTURE", "")) as gateway:
        address = parse_url(urls(gateway, "embed_text")[protocol])
        connected = connect(address)
        replay = Replay(
            complete_service(connected, address), ReplayOptions(), OutputRules(), on_done=done
        )
        try:
            report = await replay.run(iter(calls))
        finally:
            await connected.close()
    assert (3, 0) == (report.sent, report.failed)
    assert [Outcome.MATCH] * 3 == outcomes


async def test_text_calls_are_in_the_stock(tmp_path: Path) -> None:
    """Each model has a row with the protocol, and the inputs that its client sends."""
    kept = f"state: {{directory: {tmp_path}}}\nstock: {{}}"
    async with running(CONFIG.replace("CAPTURE", kept)) as gateway:
        await send_all(gateway)
    rows = json.loads(stock(str(tmp_path), "--output", "json").stdout)
    assert {"openai.http"} == {row["protocol"] for row in rows}
    assert {
        "embed_text": "BYTES[2]",
        "embed_ids": "BYTES[1]",
        "rerank_text": "BYTES[1], BYTES[2]",
        "complete_text": "BYTES[1]",
    } == {row["model"]: row["inputs"].strip() for row in rows}
    assert KEY not in str(rows)


async def test_keys_reach_no_server_and_no_log(capfd: pytest.CaptureFixture[str]) -> None:
    """Headers of clients are accepted and ignored, `user` passes; the upstream has its own."""
    seen: list[str] = []
    users: list[str] = []

    async def embed(request: web.Request) -> web.Response:
        seen.extend(f"{name}: {value}" for name, value in request.headers.items())
        users.append((await request.json())["user"])
        row = {"object": "embedding", "index": 0, "embedding": [1.0]}
        return web.json_response({"object": "list", "data": [row], "model": "m"})

    server = web.Application()
    server.router.add_post("/v1/embeddings", embed)
    runner = web.AppRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    text = f"""
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams:
  server:
    url: "openai+http://127.0.0.1:{runner.addresses[0][1]}"
    options: {{probe: none}}
    headers: {{Authorization: Bearer of-the-gateway}}
routes: [{{targets: [{{upstream: server}}]}}]
"""
    try:
        async with running(text) as gateway, aiohttp.ClientSession(headers=HEADERS) as session:
            url = f"http://{gateway.addresses['main.http']}/v1/embeddings"
            request = {"model": "m", "input": "a", "user": USER}
            async with session.post(url, json=request) as reply:
                assert 200 == reply.status, await reply.text()
    finally:
        await runner.cleanup()
    assert "authorization: Bearer of-the-gateway" in [each.replace("A", "a", 1) for each in seen]
    assert not [each for each in seen if KEY in each]
    assert [USER] == users
    output = capfd.readouterr()
    assert KEY not in output.out + output.err
    assert USER not in output.out + output.err


async def endless(inputs: dict[str, Any]) -> AsyncIterator[dict[str, npt.NDArray[Any]]]:
    """Yield a piece of text again and again, until the client leaves."""
    try:
        while True:
            yield {"text_output": np.array([b"more "], object)}
            await asyncio.sleep(0)
    finally:
        CLOSED.set()


async def test_a_client_that_leaves_a_stream_cancels_the_model() -> None:
    """The model of an endless text ends when nobody reads it."""
    CLOSED.clear()
    text = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  endless:
    backend: python
    options: {callable: "tests.integration.migration.test_openai_records:endless"}
    signature:
      inputs: [{name: text_input, datatype: BYTES, shape: [-1]}]
      outputs: [{name: text_output, datatype: BYTES, shape: [-1]}]
"""
    async with running(text) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}/v1/completions"
        request = {"model": "endless", "prompt": "a", "stream": True}
        async with session.post(url, json=request) as reply:
            assert (await reply.content.readline()).startswith(b"data: {")
            assert not CLOSED.is_set()
            reply.close()
        async with asyncio.timeout(45):
            await CLOSED.wait()
