"""The real clients of OpenAI and of Cohere, with models in process and in the real Triton."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.openai_models import GOLDEN, MODELS, vectors
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import serving
from tests.interop.servers.process import RunningServer, running
from tests.interop.servers.triton.start import prepare_texts

pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

LISTENER = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: "off"}
"""
IN_PROCESS = f"""{LISTENER}
models:
{MODELS}
"""
BEFORE_TRITON = f"""{LISTENER}
upstreams: {{triton: {{url: "{{url}}"}}}}
models:
  embed_ids:
    protocols:
      openai:
        embeddings:
          tokenizer: '{GOLDEN}/tokenizer.json'
          max_tokens: 16
          pooling: mean
          normalize: true
          dimensions: true
routes: [{{targets: [{{upstream: triton}}]}}]
"""
TEXTS = ("one", "two", "three")
BITS = {
    "python": [vectors()[text].hex() for text in TEXTS],
    "triton": [
        (np.arange(24) * 0.1 - sum(text.encode()) / 7).astype(np.float32).tobytes().hex()
        for text in TEXTS
    ],
}


@pytest.fixture(scope="module")
def triton() -> Iterator[RunningServer]:
    """Run Triton with models of texts."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running("triton", prepare_texts, Path(folder)) as server,
    ):
        yield server


@pytest.fixture(scope="module", params=["python", "triton.grpc", "triton.http"])
def way(request: pytest.FixtureRequest) -> str:
    """Return where the models are, and how they are reached."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def seen(
    way: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return what the clients see of a gateway with the models."""
    path = tmp_path_factory.mktemp("openai") / "gateway.yaml"
    path.write_text(IN_PROCESS if way == "python" else _before(way, request))
    with serving(str(path)) as gateway:
        client = Client(environment("openai"))
        url = f"http://{gateway.addresses['main.http']}"
        found: dict[str, Any] = client.run(SCRIPTS / "openai_clients.py", url)
    return found


def _before(way: str, request: pytest.FixtureRequest) -> str:
    server: RunningServer = request.getfixturevalue("triton")
    address = server.grpc_address if way.endswith("grpc") else server.http_address
    return BEFORE_TRITON.replace("{url}", f"oip+{way.partition('.')[2]}://{address}")


@pytest.mark.parametrize("form", ["base64", "float", "async"])
def test_floats_keep_their_bits(way: str, seen: dict[str, Any], form: str) -> None:
    """Both encodings and both clients give the bits of the model's output."""
    assert BITS[way.partition(".")[0]] == seen[form]


def test_tokens_are_counted(seen: dict[str, Any]) -> None:
    """Eight numbers for four tokens; ids of the client count, too."""
    assert [8, 4] == seen["tokens"]
    assert [2, 7] == seen["ids"]


def test_vectors_of_tokens_are_pooled_then_cut_then_normalised(seen: dict[str, Any]) -> None:
    """The first half of the mean of four tokens, of length one."""
    ids, places = np.array([2, 38, 39, 3])[:, None], np.arange(4)[:, None]
    numbers = ids * 7 + places * 3 + np.arange(8) * 5
    mean = ((numbers % 64 - 32) / 8).mean(axis=0)[:4]
    assert (mean / np.sqrt(np.square(mean).sum())).astype(np.float32).tobytes().hex() == seen["cut"]


def test_requests_larger_than_a_batch_keep_their_order(seen: dict[str, Any]) -> None:
    """Five texts, and three prompts, for a model of at most two rows are several calls."""
    assert [[number, 24] for number in range(5)] == seen["order"]
    prompts = [text for _, text in seen["prompts"]]
    assert ["A", "C"] == [prompts[0], prompts[2]]
    assert [0, 1, 2] == [index for index, _ in seen["prompts"]]
    assert "one two" == seen["limited"]


def test_models_are_listed(seen: dict[str, Any]) -> None:
    """The list is sorted, and one model is found by its name."""
    assert sorted(seen["models"]) == seen["models"]
    assert ("embed_text", True) == (seen["model"], "rerank_text" in seen["models"])


def test_completions_and_their_streams(seen: dict[str, Any]) -> None:
    """A text ends before its stop text; a stream has pieces, and raises an error within."""
    assert ["one two", "stop"] == seen["completion"]
    assert ["one", " two", " three", ""] == seen["stream"]
    assert ["one", " two", ""] == seen["async_stream"]
    assert ["one", "APIError"] == [seen["late_error"][0], seen["late_error"][-1]]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_rerank(seen: dict[str, Any], version: str) -> None:
    """The best documents come first."""
    assert [[1, 1.0], [2, 0.5]] == seen[version]


def test_refusals_are_sent_once(seen: dict[str, Any]) -> None:
    """The client raises by status, with code and member, and does not ask again."""
    assert [
        ["BadRequestError", 400, "unsupported_parameter", "dimensions", "0"],
        ["BadRequestError", 400, "unsupported_model", "model", "0"],
        ["NotFoundError", 404, "model_not_found", "model", "0"],
        ["InternalServerError", 500, "model_error", None, "0"],
        ["BadRequestError", 400, "unsupported_input", "input", "0"],
        ["NotFoundError", 404, "unsupported_endpoint", None, "0"],
        ["NotFoundError", 404, "model_not_found"],
        ["NotFoundError", 404, "model_not_found"],
    ] == seen["refused"]
