"""A migration of an embedding model, compared by the cosine of its vectors, from text calls alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import yaml

from gateway.app import Gateway
from tests.integration.asking_kit import running, urls
from tests.integration.migration import mirror_kit as kit
from tests.integration.openai_models import GOLDEN
from tests.integration.test_openai_upstream import post, text_input

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.timeout(120)

Array = npt.NDArray[Any]

HERE = "tests.integration.migration.test_openai_migration"
TURNED = "turned"
"""The text whose vector the new model turns."""

SERVER = f"""
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
  encoder_v1:
    backend: python
    options: {{callable: "{HERE}:encoder"}}
    signature: &texts
      inputs: [{{name: text, datatype: BYTES, shape: [-1]}}]
      outputs: [{{name: embedding, datatype: FP32, shape: [-1, 4]}}]
  encoder_v2:
    backend: python
    options: {{callable: "{HERE}:new_encoder"}}
    signature: *texts
  states_v1: &ids
    backend: python
    options: {{callable: "tests.integration.openai_models:states"}}
    signature:
      inputs:
        - {{name: input_ids, datatype: INT64, shape: [-1, -1]}}
        - {{name: attention_mask, datatype: INT64, shape: [-1, -1]}}
      outputs: [{{name: last_hidden_state, datatype: FP32, shape: [-1, -1, 8]}}]
  states_v2: *ids
"""


def encoder(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return four numbers for each text."""
    sizes = np.array([len(bytes(each)) for each in inputs["text"]], np.float32)
    return {"embedding": sizes[:, None] + np.arange(4, dtype=np.float32)}


def new_encoder(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return vectors of another length in the same directions, but for one text."""
    rows = encoder(inputs)["embedding"] * np.float32(1.5)
    is_turned = [bytes(each).decode() == TURNED for each in inputs["text"]]
    return {"embedding": np.where(np.array(is_turned)[:, None], -rows, rows)}


def config(url: str, model: str, output: str) -> str:
    """Return a configuration that moves the alias `search` from one version of *model* to the next."""
    document = yaml.safe_load(
        kit.migration_config(
            url, url, versions=(None, None), compare={"outputs": {output: {"cosine": 0.999}}}
        )
    )
    (route,) = document["routes"]
    route["match"] = {"model": "search"}
    for target, version in zip(route["targets"], ("v1", "v2"), strict=True):
        target["model"] = f"{model}_{version}"
    if model == "states":
        embeddings = {
            "tokenizer": str(GOLDEN / "tokenizer.json"),
            "pooling": "mean",
            "normalize": True,
        }
        declared = {"protocols": {"openai": {"embeddings": embeddings}}}
        document["models"] = {f"states_{version}": declared for version in ("v1", "v2")}
    (migration,) = document["migrations"].values()
    migration["old"], migration["new"] = f"legacy/{model}_v1", f"fresh/{model}_v2"
    return yaml.safe_dump(document)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Gateway]:
    """Run a server with both versions of both models."""
    async with running(SERVER) as gateway:
        yield gateway


async def embed(gateway: Gateway, *texts: str) -> None:
    url = f"http://{gateway.addresses['main.http']}"
    request = {"model": "search", "input": list(texts), "encoding_format": "base64"}
    status, reply = await post(url, "/v1/embeddings", request)
    assert (200, "search") == (status, reply["model"]), reply


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", ["oip.grpc", "oip.http"])
async def test_vectors_of_two_models_are_compared_by_their_cosine(
    server: Gateway, way: str
) -> None:
    """Lengths of vectors are no difference, and the turned vector of one text is found."""
    text = config(urls(server, "encoder_v1")[way], "encoder", "embedding")
    async with running(text) as gateway:
        await embed(gateway, "a", "bb", "ccc")
        await embed(gateway, "a", TURNED)
        await embed(gateway, "dddd")
        found = await kit.evidence(gateway, kit.has_compared(3))
    assert (2, 1) == (found["outcomes"]["match"], found["outcomes"]["mismatch"])


@pytest.mark.asyncio(loop_scope="module")
async def test_clients_of_both_protocols_are_compared_by_one_rule(server: Gateway) -> None:
    """The output of a text call has the name of the model's output, as other clients see it."""
    text = config(urls(server, "encoder_v1")["oip.grpc"], "encoder", "embedding")
    async with running(text) as gateway:
        await embed(gateway, TURNED)
        inputs = {"inputs": [text_input("text", [TURNED])]}
        url = f"http://{gateway.addresses['main.http']}"
        status, reply = await post(url, "/v2/models/search/infer", inputs)
        assert 200 == status, reply
        found = await kit.evidence(gateway, kit.has_compared(2))
    assert 2 == found["outcomes"]["mismatch"]


@pytest.mark.asyncio(loop_scope="module")
async def test_models_of_token_ids_are_compared_by_their_vectors(server: Gateway) -> None:
    """Both models are asked with the tokens of the text, and pooled before they are compared."""
    text = config(urls(server, "states_v1")["oip.grpc"], "states", "last_hidden_state")
    async with running(text) as gateway:
        await embed(gateway, "hello world", "one two three")
        found = await kit.evidence(gateway, kit.has_compared(1))
    assert 1 == found["outcomes"]["match"]
