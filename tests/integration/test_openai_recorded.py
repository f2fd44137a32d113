"""The recorded exchanges of OpenAI's and Cohere's clients, against the gateway with their models."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.integration.asking_kit import running
from tests.integration.openai_models import GOLDEN, MODELS, recorded

pytest.importorskip("tokenizers")

CONFIG = f"""
version: 1
listeners:
  - {{http: "127.0.0.1:0", options: {{openai: {{prefixes: ["", /openai]}}}}}}
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
{MODELS}
"""
ENTRIES = [entry for entry in recorded() if entry["server"] == "stand-in"]
_FORWARDED = {"content-type", "authorization", "x-request-id", "user-agent"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    """Run a gateway with the recorded models."""
    async with running(CONFIG) as gateway:
        yield f"http://{gateway.addresses['main.http']}"


def request_of(entry: dict[str, Any]) -> tuple[str, str, dict[str, str], bytes]:
    """Return method, path, headers and body of a recorded request."""
    head, _, body = (GOLDEN / entry["request"]["file"]).read_bytes().partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name: value for name, value in pairs if name.lower() in _FORWARDED}
    return method, path, headers, body


def comparable(document: Any) -> Any:
    """Return a document without what differs between servers: ids, times and texts of errors."""
    if isinstance(document, dict):
        return {
            key: (
                bool(value)
                if key in ("message", "id")
                and ("error" in document or "type" in document or key == "id")
                else 0
                if key == "created"
                else comparable(value)
            )
            for key, value in document.items()
        }
    return [comparable(each) for each in document] if isinstance(document, list) else document


def events(text: str) -> list[Any]:
    """Return the events of a stream."""
    found = re.findall(r"data: (.*)\n\n", text)
    return [each if each == "[DONE]" else comparable(json.loads(each)) for each in found]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
async def test_replies_as_recorded(url: str, entry: dict[str, Any]) -> None:
    """Status, type and every member of a recorded response come back, floats bit by bit."""
    method, path, headers, body = request_of(entry)
    async with (
        aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session,
        session.request(method, url + path, headers=headers, data=body or None) as response,
    ):
        text = await response.text()
        kind = response.headers["content-type"]
    assert entry["status"] == response.status, text
    assert entry["response_content_type"].split(";")[0] == kind.split(";")[0]
    if kind.startswith("text/event-stream"):
        assert events(entry["response_body"]) == events(text)
        assert entry["response_body"].endswith("[DONE]\n\n") is text.endswith("[DONE]\n\n")
        return
    found = json.loads(text)
    found.pop("model_version_status", None)  # for clients of TensorFlow Serving
    expected = json.loads(entry["response_body"])
    if "choices" in expected:  # the stand-in of the recordings lacks what OpenAI always sends
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        expected.setdefault("usage", dict.fromkeys(counts, 0))
    assert comparable(expected) == comparable(found)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", ["absent", "org/name"])
async def test_errors_about_models_have_the_form_of_their_client(url: str, path: str) -> None:
    """A request with a key gets OpenAI's form; one without gets that of the owner of the path."""
    async with aiohttp.ClientSession() as session:
        key = {"Authorization": "Bearer sk-key"}
        async with session.get(f"{url}/v1/models/{path}", headers=key) as reply:
            error = (await reply.json())["error"]
            assert (404, "model_not_found", "model") == (
                reply.status,
                error["code"],
                error["param"],
            )
        async with session.get(f"{url}/v1/models/{path}") as reply:
            assert 400 <= reply.status < 500
            assert isinstance((await reply.json())["error"], str)
