"""Text calls of OpenAI's clients before servers of every other protocol: the bits of the model."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.app import Gateway
from tests.integration.asking_kit import running, urls
from tests.integration.openai_models import vectors
from tests.integration.test_openai_upstream import post

SERVER = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  embed_text:
    backend: python
    options: {callable: "tests.integration.openai_models:embed_text"}
    signature:
      max_batch_size: 2
      inputs: [{name: text, datatype: BYTES, shape: [-1, 1]}]
      outputs: [{name: embedding, datatype: FP32, shape: [-1, 24]}]
"""
FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams: {{server: {{url: "{url}"}}}}
models:
  embed_text:
    signature:
      max_batch_size: 2
      inputs: [{{name: text, datatype: BYTES, shape: [-1, 1]}}]
      outputs: [{{name: embedding, datatype: FP32, shape: [-1, 24]}}]
routes: [{{match: {{model: alias}}, targets: [{{upstream: server, model: embed_text}}]}}]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Gateway]:
    """Run a server of every protocol with a model of texts."""
    async with running(SERVER) as gateway:
        yield gateway


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "way", ["graphpipe.http", "grps.grpc", "grps.http", "oip.grpc", "oip.http", "trtis.http"]
)
async def test_texts_reach_a_server_of_any_protocol(server: Gateway, way: str) -> None:
    """Texts are divided by the batch size, named by a route, and their rows keep their bits."""
    async with running(FRONT.format(url=urls(server, "embed_text")[way])) as front:
        texts = ["one", "two", "three"]
        request = {"model": "alias", "input": texts, "encoding_format": "base64"}
        url = f"http://{front.addresses['main.http']}"
        status, reply = await post(url, "/v1/embeddings", request)
        assert 200 == status, reply
        assert "alias" == reply["model"]
        rows = [base64.b64decode(row["embedding"]) for row in reply["data"]]
        assert [vectors()[text] for text in texts] == rows
