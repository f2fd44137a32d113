"""Calls a gateway with the real clients of OpenAI and Cohere, and prints what they see as JSON."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cohere
import numpy as np
import openai

URL = sys.argv[1]
SEEN: dict[str, Any] = {}


def bits(values: Sequence[float]) -> str:
    """Return the bits of FP32 numbers."""
    return np.array(values, np.float32).tobytes().hex()


def refused(call: Callable[[], object]) -> list[Any] | None:
    """Return what the client raises, and how many times it asked."""
    try:
        call()
    except openai.APIStatusError as error:
        retries = error.response.request.headers.get("x-stainless-retry-count")
        return [type(error).__name__, error.status_code, error.code, error.param, retries]
    except cohere.core.api_error.ApiError as error:
        return [type(error).__name__, error.status_code, error.body["error"]["code"]]
    return None


client = openai.OpenAI(base_url=f"{URL}/v1", api_key="sk-key")
texts = ["one", "two", "three"]
SEEN["base64"] = [
    bits(row.embedding) for row in client.embeddings.create(model="embed_text", input=texts).data
]
found = client.embeddings.create(model="embed_text", input=texts, encoding_format="float")
SEEN["float"] = [bits(row.embedding) for row in found.data]
found = client.embeddings.create(model="embed_ids", input="hello world")
SEEN["tokens"] = [len(found.data[0].embedding), found.usage.prompt_tokens]
found = client.embeddings.create(model="embed_ids", input=[[2, 38, 3], [2, 39, 40, 3]])
SEEN["ids"] = [len(found.data), found.usage.total_tokens]
found = client.embeddings.create(model="embed_ids", input="hello world", dimensions=4)
SEEN["cut"] = bits(found.data[0].embedding)
rows = client.embeddings.create(model="embed_text", input=[f"{number}" for number in range(5)])
SEEN["order"] = [[row.index, len(row.embedding)] for row in rows.data]
found = client.completions.create(model="complete_text", prompt=["a", "\u00e9", "c"])
SEEN["prompts"] = [[choice.index, choice.text] for choice in found.choices]
found = client.completions.create(model="generate_text", prompt="one two three", max_tokens=2)
SEEN["limited"] = found.choices[0].text
SEEN["models"] = [model.id for model in client.models.list()]
SEEN["model"] = client.models.retrieve("embed_text").id
found = client.completions.create(model="generate_text", prompt="one two three", stop=[" three"])
SEEN["completion"] = [found.choices[0].text, found.choices[0].finish_reason]
stream = client.completions.create(model="generate_text", prompt="one two three", stream=True)
SEEN["stream"] = [piece.choices[0].text for piece in stream]
stream = client.completions.create(model="generate_text", prompt="one boom! three", stream=True)
pieces: list[str] = []
try:
    pieces.extend(piece.choices[0].text for piece in stream)
except openai.APIError as error:
    pieces.append(type(error).__name__)
SEEN["late_error"] = pieces
SEEN["refused"] = [
    refused(lambda: client.embeddings.create(model="embed_text", input="a", dimensions=3)),
    refused(lambda: client.embeddings.create(model="rerank_text", input="a")),
    refused(lambda: client.embeddings.create(model="nope", input="a")),
    refused(lambda: client.embeddings.create(model="embed_text", input="boom!")),
    refused(lambda: client.embeddings.create(model="embed_text", input=[1, 2])),
    refused(lambda: client.chat.completions.create(model="x", messages=[])),
]


async def call_async() -> None:
    """Call with the client of asyncio."""
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="sk-key") as own:
        rows = await own.embeddings.create(model="embed_text", input=texts)
        SEEN["async"] = [bits(row.embedding) for row in rows.data]
        items = await own.completions.create(model="generate_text", prompt="one two", stream=True)
        SEEN["async_stream"] = [piece.choices[0].text async for piece in items]


asyncio.run(call_async())
documents = ["a dog", "a red cat", "cat"]
for name, cohere_client in (
    ("v1", cohere.Client(api_key="key", base_url=URL)),
    ("v2", cohere.ClientV2(api_key="key", base_url=URL)),
):
    found = cohere_client.rerank(model="rerank_text", query="red cat", documents=documents, top_n=2)
    SEEN[name] = [[each.index, each.relevance_score] for each in found.results]
    SEEN["refused"].append(
        refused(partial(cohere_client.rerank, model="nope", query="q", documents=["a"]))
    )
print(json.dumps(SEEN))
