"""The real all-MiniLM-L6-v2 in ONNX, in the gateway, as a model of OpenAI's clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.cli_kit import get
from tests.interop.gateways import serving
from tests.interop.minilm.make_onnx import minilm

pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

EXPECTED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "minilm" / "expected.json").read_text("utf-8")
)
SENTENCES = EXPECTED["sentences"]
TEXTS = [each["text"] for each in SENTENCES]
COSINES = [0.6660, 0.1046, 0.1411]
"""Those of the first three sentences in the documentation of the model."""

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "off"}}
models:
  minilm:
    backend: onnx
    path: {folder}
    batching: {{}}
    protocols:
      openai:
        embeddings:
          tokenizer: {folder}/tokenizer.json
          max_tokens: {most}
          pooling: mean
          normalize: true
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a gateway with the model."""
    path = tmp_path_factory.mktemp("minilm") / "gateway.yaml"
    path.write_text(CONFIG.format(folder=minilm(), most=EXPECTED["max_tokens"]))
    with serving(str(path)) as gateway:
        yield f"http://{gateway.addresses['main.http']}"


def embed(url: str, *texts: str) -> tuple[np.ndarray[Any, Any], int]:
    """Return the rows of some texts, and the number of tokens."""
    status, reply = get(f"{url}/v1/embeddings", {"model": "minilm", "input": list(texts)})
    assert 200 == status, reply
    rows = np.array([each["embedding"] for each in reply["data"]])
    return rows, reply["usage"]["prompt_tokens"]


def test_vectors_and_tokens_are_those_of_the_model(url: str) -> None:
    """All texts in one request, with padding, have the vectors to 1e-5; tokens are counted."""
    rows, tokens = embed(url, *TEXTS)
    expected = np.array([each["embedding"] for each in SENTENCES])
    assert float(np.abs(rows - expected).max()) < 1e-5
    assert sum(each["tokens"] for each in SENTENCES) == tokens
    pairs = ((0, 1), (0, 2), (1, 2))
    cosines = [float(rows[first] @ rows[second]) for first, second in pairs]
    assert COSINES == [round(each, 4) for each in cosines]


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_a_text_alone_has_the_same_vector(url: str, number: int) -> None:
    """Padding changes nothing beyond the rounding of the model, and the counts are exact."""
    rows, tokens = embed(url, TEXTS[number])
    assert float(np.abs(rows[0] - np.array(SENTENCES[number]["embedding"])).max()) < 1e-5
    assert SENTENCES[number]["tokens"] == tokens
