"""The models of the recordings in tests/golden/openai, as callables, and their configuration."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.backends.base import Job

GOLDEN = Path(__file__).parents[1] / "golden" / "openai"
_HERE = "tests.integration.openai_models"
_TOKENIZER = GOLDEN / "tokenizer.json"

Array = npt.NDArray[Any]


@cache
def recorded() -> list[dict[str, Any]]:
    """Return the entries of the recordings."""
    found: list[dict[str, Any]] = json.loads((GOLDEN / "index.json").read_text("utf-8"))["entries"]
    return found


@cache
def vectors() -> Mapping[str, bytes]:
    """Return the FP32 bits that the recorded server gave for each text of `embed_text`."""
    found: dict[str, bytes] = {}
    for entry in recorded():
        if entry["status"] != 200 or "/embeddings" not in entry["request_line"]:
            continue
        request, response = json.loads(entry["request_body"]), json.loads(entry["response_body"])
        texts = request["input"] if isinstance(request["input"], list) else [request["input"]]
        if request["model"] != "embed_text":
            continue
        for text, row in zip(texts, response["data"], strict=True):
            value = row["embedding"]
            found[text] = (
                base64.b64decode(value)
                if isinstance(value, str)
                else struct.pack(f"<{len(value)}f", *value)
            )
    return found


def embed_text(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return the recorded rows; 24 numbers made of the text where there are none."""
    texts = [bytes(each).decode() for each in inputs["text"].reshape(-1)]
    if "boom!" in texts:
        raise RuntimeError("the model fails on purpose")
    rows = [
        np.frombuffer(vectors()[text], "<f4")
        if text in vectors()
        else np.arange(24, dtype=np.float32) + len(text)
        for text in texts
    ]
    return {"embedding": np.stack(rows)}


def states(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return eight numbers for each token, made of its id and its place."""
    ids = inputs["input_ids"]
    places = np.arange(ids.shape[1])
    numbers = ids[:, :, None] * 7 + places[None, :, None] * 3 + np.arange(8) * 5
    return {"last_hidden_state": ((numbers % 64 - 32) / 8).astype(np.float32)}


def rerank_text(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return the share of the query's words that each document has."""
    rows = []
    for query, document in zip(
        inputs["query"].reshape(-1), inputs["document"].reshape(-1), strict=True
    ):
        if b"boom!" in query:
            raise RuntimeError("the model fails on purpose")
        words = set(query.split())
        rows.append(len(words & set(document.split())) / len(words))
    return {"score": np.array(rows, np.float32)}


def generate_text(inputs: dict[str, Array], job: Job) -> Iterator[dict[str, Array]]:
    """Yield the words of the prompt, each with the space before it."""
    (prompt,) = inputs["text_input"].reshape(-1)
    words = bytes(prompt).split(b" ")
    most = job.parameters.get("max_tokens", len(words))
    for number, word in enumerate(words[: int(most)]):
        if word == b"boom!":
            raise RuntimeError("the model fails on purpose")
        yield {"text_output": np.array([b" " + word if number else word], object)}


def complete_text(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return the prompts in capitals."""
    texts = [bytes(each).upper() for each in inputs["text_input"].reshape(-1)]
    return {"text_output": np.array(texts, object)}


_IDS = """
    signature:
      inputs:
        - {name: input_ids, datatype: INT64, shape: [-1, -1]}
        - {name: attention_mask, datatype: INT64, shape: [-1, -1]}
      outputs: [{name: last_hidden_state, datatype: FP32, shape: [-1, -1, 8]}]
"""


def _ids(name: str, embeddings: str) -> str:
    return (
        f'  {name}:\n    backend: python\n    options: {{callable: "{_HERE}:states"}}{_IDS}'
        f"    protocols: {{openai: {{{embeddings}}}}}\n"
    )


def _texts(name: str, inputs: str, output: str, more: str = "") -> str:
    named = ", ".join(f"{{name: {each}, datatype: BYTES, shape: [-1]}}" for each in inputs.split())
    return (
        f'  {name}:\n    backend: python\n    options: {{callable: "{_HERE}:{name}"}}\n'
        f"    signature:\n      inputs: [{named}]\n      outputs: [{output}]\n{more}"
    )


_FILE = f"tokenizer: '{_TOKENIZER}', max_tokens: 16"
_PREFIXES = "prefixes: {query: 'query: ', passage: 'passage: '}"

MODELS = "".join(
    [
        _texts("embed_text", "text", "{name: embedding, datatype: FP32, shape: [-1, 24]}"),
        _ids(
            "embed_ids",
            f"embeddings: {{{_FILE}, pooling: mean, normalize: true, dimensions: true, "
            f"{_PREFIXES}}}",
        ),
        _ids("embed_ids_cls", f"embeddings: {{{_FILE}, pooling: cls}}"),
        _ids("embed_ids_last", f"embeddings: {{{_FILE}, pooling: last}}"),
        _ids("embed_ids_plain", f"embeddings: {{{_FILE}, pooling: mean, truncate: false}}"),
        _texts("rerank_text", "query document", "{name: score, datatype: FP32, shape: [-1]}"),
        _ids("rerank_ids", f"rerank: {{{_FILE}, pooling: cls, column: 0, score: sigmoid}}"),
        _texts(
            "generate_text",
            "text_input",
            "{name: text_output, datatype: BYTES, shape: [-1]}",
            "    protocols: {openai: {completions: {parameters: [max_tokens]}}}\n",
        ),
        _texts("complete_text", "text_input", "{name: text_output, datatype: BYTES, shape: [-1]}"),
    ]
)
"""The `models` of a configuration."""
