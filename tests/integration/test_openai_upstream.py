"""Servers of OpenAI's form as upstreams, with another gateway as the server."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio

from gateway.app import Gateway
from gateway.config.load import load_text
from tests.integration.asking_kit import running
from tests.integration.openai_models import MODELS, vectors

pytest.importorskip("tokenizers")

SERVER = f"""
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
{MODELS}
"""
FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams:
  vectors: {{url: "openai+http://{server}", options: {{max_inputs: 2}}}}
  scores: {{url: "openai+http://{server}/v1", options: {{task: rerank}}}}
  writer: {{url: "openai+http://{server}/v1", options: {{task: completions}}}}
routes:
  - {{match: {{model: [embed_text, embed_ids]}}, targets: [{{upstream: vectors}}]}}
  - {{match: {{model: rerank_text}}, targets: [{{upstream: scores}}]}}
  - {{match: {{model: [generate_text, complete_text]}}, targets: [{{upstream: writer}}]}}
  - {{match: {{model: absent}}, targets: [{{upstream: vectors}}]}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    """Run a server with the recorded models, and a gateway before it."""
    server = Gateway(load_text(SERVER))
    await server.start()
    async with running(FRONT.format(server=server.addresses["main.http"])) as front:
        yield f"http://{front.addresses['main.http']}"
        await server.stop()


async def post(url: str, path: str, document: Any) -> tuple[int, Any]:
    """Return status and JSON of the response to a POST."""
    async with aiohttp.ClientSession() as session, session.post(url + path, json=document) as found:
        return found.status, json.loads(await found.read())


def text_input(name: str, texts: list[str]) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts}


@pytest.mark.asyncio(loop_scope="module")
async def test_open_inference_reaches_embeddings(url: str) -> None:
    """More texts than `max_inputs` are divided, and their rows have the bits of the server."""
    texts = ["one", "two", "three"]
    status, reply = await post(
        url, "/v2/models/embed_text/infer", {"inputs": [text_input("text", texts)]}
    )
    assert 200 == status, reply
    (output,) = reply["outputs"]
    assert ("embedding", [3, 24]) == (output["name"], output["shape"])
    assert (
        b"".join(vectors()[text] for text in texts)
        == np.array(output["data"], np.float32).tobytes()
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_open_inference_reaches_rerank_and_completions(url: str) -> None:
    """Scores have the order of the documents, and completions that of the prompts."""
    query, documents = text_input("query", ["red cat"]), ["a dog", "a red cat", "cat"]
    status, reply = await post(
        url,
        "/v2/models/rerank_text/infer",
        {"inputs": [query, text_input("document", documents)]},
    )
    assert (200, [0.0, 1.0, 0.5]) == (status, reply["outputs"][0]["data"])
    status, reply = await post(
        url, "/v2/models/complete_text/infer", {"inputs": [text_input("prompt", ["a", "b"])]}
    )
    assert (200, ["A", "B"]) == (status, reply["outputs"][0]["data"])


@pytest.mark.asyncio(loop_scope="module")
async def test_members_and_token_ids_pass_between_servers_of_the_form(url: str) -> None:
    """Dimensions, prefixes, token ids and usage of a client reach the server and come back."""
    request = {"model": "embed_ids", "input": "hello world", "dimensions": 4}
    status, reply = await post(url, "/v1/embeddings", {**request, "encoding_format": "base64"})
    assert (200, 4) == (status, reply["usage"]["prompt_tokens"])
    assert 16 == len(base64.b64decode(reply["data"][0]["embedding"]))
    ids = {"model": "embed_ids", "input": [[2, 38, 3], [2, 39, 40, 3]]}
    status, reply = await post(url, "/v1/embeddings", ids)
    assert (200, 7, 2) == (status, reply["usage"]["prompt_tokens"], len(reply["data"]))
    status, reply = await post(url, "/v1/embeddings", {"model": "embed_ids", "input": [999]})
    assert (400, "input") == (status, reply["error"]["param"])


@pytest.mark.asyncio(loop_scope="module")
async def test_streams_pass_between_servers_of_the_form(url: str) -> None:
    """The pieces of a stream come one by one, with the reason and the end."""
    request = {"model": "generate_text", "prompt": "one two three", "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/completions", json=request) as found,
    ):
        lines = [line for line in (await found.text()).split("\n\n") if line]
    assert "data: [DONE]" == lines[-1]
    choices = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
    assert ["one", " two", " three", ""] == [choice["text"] for choice in choices]
    assert "stop" == choices[-1]["finish_reason"]
    request = {"model": "generate_text", "prompt": "one two three", "max_tokens": 2, "stop": "wo"}
    status, reply = await post(url, "/v1/completions", request)
    assert (200, "one t") == (status, reply["choices"][0]["text"])


@pytest.mark.asyncio(loop_scope="module")
async def test_events_of_the_generate_extension_always_have_the_output(url: str) -> None:
    """The event with the reason has an empty text, and the end of the stream is no event."""
    request = {"prompt": "one two three"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v2/models/generate_text/generate_stream", json=request) as found,
    ):
        lines = [line for line in (await found.text()).split("\n\n") if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert ["one", " two", " three", ""] == [each["completion"] for each in events]
    assert ["stop"] == [each["finish_reason"] for each in events if "finish_reason" in each]


@pytest.mark.asyncio(loop_scope="module")
async def test_errors_of_the_server_keep_their_form(url: str) -> None:
    """A model that its server does not list is unknown; its error bodies come back."""
    status, reply = await post(url, "/v1/embeddings", {"model": "absent", "input": "a"})
    assert (404, "model_not_found") == (status, reply["error"]["code"])
    status, reply = await post(url, "/v1/embeddings", {"model": "embed_text", "input": "boom!"})
    assert (500, "model_error") == (status, reply["error"]["code"])
    status, reply = await post(url, "/v1/embeddings", {"model": "rerank_text", "input": "a"})
    assert (400, "unsupported_model") == (status, reply["error"]["code"])
    refused = {"model": "embed_text", "input": "a", "dimensions": 8}
    status, reply = await post(url, "/v1/embeddings", refused)
    assert (400, "dimensions", "unsupported_parameter") == (
        status,
        reply["error"]["param"],
        reply["error"]["code"],
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_parameters_that_are_no_members_are_refused(url: str) -> None:
    """A parameter of an Open Inference client is a member of the request, or refused by name."""
    request = {"inputs": [text_input("text", ["a"])], "parameters": {"flavour": "sweet"}}
    status, reply = await post(url, "/v2/models/embed_text/infer", request)
    assert 400 == status
    assert "'flavour'" in reply["error"]
