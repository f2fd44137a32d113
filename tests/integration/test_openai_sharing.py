"""Text calls share batches and cached rows with calls of other clients and protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

from tests.integration.asking_kit import running
from tests.integration.openai_models import GOLDEN, states
from tests.integration.test_openai_upstream import post, text_input

pytest.importorskip("tokenizers")

Array = npt.NDArray[Any]

CALLS: Final[list[list[str] | tuple[int, ...]]] = []
"""The texts, or the shape of the ids, of each call of a model."""

HERE: Final = "tests.integration.test_openai_sharing"
BATCHING: Final = "batching: {max_delay: 5s, preferred_sizes: [4]}"
CONFIG: Final = f"""
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
  texts:
    backend: python
    options: {{callable: "{HERE}:lengths"}}
    {BATCHING}
    signature: &texts
      inputs: [{{name: text, datatype: BYTES, shape: [-1]}}]
      outputs: [{{name: length, datatype: FP32, shape: [-1, 1]}}]
  cached:
    backend: python
    options: {{callable: "{HERE}:lengths"}}
    cache: {{}}
    signature: *texts
  ids:
    backend: python
    options: {{callable: "{HERE}:shown_states"}}
    {BATCHING}
    signature: &ids
      inputs:
        - {{name: input_ids, datatype: INT64, shape: [-1, -1]}}
        - {{name: attention_mask, datatype: INT64, shape: [-1, -1]}}
      outputs: [{{name: last_hidden_state, datatype: FP32, shape: [-1, -1, 8]}}]
    protocols: &tokens
      openai: {{embeddings: {{tokenizer: '{GOLDEN}/tokenizer.json', pooling: mean}}}}
  cached_ids:
    backend: python
    options: {{callable: "{HERE}:shown_states"}}
    cache: {{}}
    signature: *ids
    protocols: *tokens
  alone:
    backend: python
    options: {{callable: "{HERE}:shown_states"}}
    signature: *ids
    protocols: *tokens
"""
TEXTS: Final = ["hello", "hello world", "one two three four", "two"]


def lengths(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return the length of each text."""
    found = [bytes(each).decode() for each in inputs["text"]]
    CALLS.append(found)
    return {"length": np.array([[len(text)] for text in found], np.float32)}


def shown_states(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return the states of the recorded model, and note the shape."""
    CALLS.append(inputs["input_ids"].shape)
    return states(inputs)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    """Run a gateway with the models."""
    async with running(CONFIG) as gateway:
        yield f"http://{gateway.addresses['main.http']}"


@pytest.fixture(autouse=True)
def _afresh() -> None:
    CALLS.clear()


async def embed(url: str, model: str, *texts: str) -> list[list[float]]:
    """Return the rows of some texts."""
    status, reply = await post(url, "/v1/embeddings", {"model": model, "input": list(texts)})
    assert 200 == status, reply
    return [row["embedding"] for row in reply["data"]]


async def infer(url: str, model: str, *texts: str) -> list[float]:
    """Return the rows of some texts, as a client of Open Inference."""
    inputs = [text_input("text", list(texts))]
    status, reply = await post(url, f"/v2/models/{model}/infer", {"inputs": inputs})
    assert 200 == status, reply
    found: list[float] = reply["outputs"][0]["data"]
    return found


@pytest.mark.asyncio(loop_scope="module")
async def test_clients_of_two_protocols_form_one_batch(url: str) -> None:
    """Texts of clients of OpenAI and of Open Inference are rows of one call."""
    first, second, third, fourth = await asyncio.gather(
        embed(url, "texts", "a"),
        infer(url, "texts", "bb"),
        embed(url, "texts", "ccc"),
        infer(url, "texts", "dddd"),
    )
    assert ([[1.0]], [[3.0]]) == (first, third)
    assert ([2.0], [4.0]) == (second, fourth)
    assert [["a", "bb", "ccc", "dddd"]] == [sorted(call) for call in CALLS]


@pytest.mark.asyncio(loop_scope="module")
async def test_token_ids_of_different_lengths_form_one_batch(url: str) -> None:
    """Each client gets the bits that its text has alone, whatever the padding is."""
    alone = [await embed(url, "alone", text) for text in TEXTS]
    CALLS.clear()
    together = await asyncio.gather(*[embed(url, "ids", text) for text in TEXTS])
    assert alone == together
    assert [4] == [shape[0] for shape in CALLS]


@pytest.mark.asyncio(loop_scope="module")
async def test_texts_are_cached_one_by_one(url: str) -> None:
    """A text that any client has asked for is no row of a later call."""
    assert [[1.0], [2.0]] == await embed(url, "cached", "a", "bb")
    assert [2.0] == await infer(url, "cached", "bb")
    assert [[3.0], [1.0], [2.0]] == await embed(url, "cached", "ccc", "a", "bb")
    assert [["a", "bb"], ["ccc"]] == CALLS


@pytest.mark.asyncio(loop_scope="module")
async def test_tokens_are_cached_one_by_one(url: str) -> None:
    """A text is found whatever the padding of its request was, and has the same bits."""
    alone = [await embed(url, "alone", text) for text in TEXTS]
    CALLS.clear()
    assert alone[:2] == [[row] for row in await embed(url, "cached_ids", *TEXTS[:2])]
    assert alone == [[row] for row in await embed(url, "cached_ids", *TEXTS)]
    assert [2, 2] == [shape[0] for shape in CALLS]
