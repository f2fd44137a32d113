"""The real clients of OpenAI, sync and async, and of Cohere through the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.openai_models import MODELS, vectors
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import serving

pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CONFIG = f"""
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "off"}}
models:
{MODELS}
"""
BITS = [vectors()[text].hex() for text in ("one", "two", "three")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the clients see of a gateway with the recorded models."""
    path = tmp_path_factory.mktemp("openai") / "gateway.yaml"
    path.write_text(CONFIG)
    with serving(str(path)) as gateway:
        client = Client(environment("openai"))
        url = f"http://{gateway.addresses['main.http']}"
        found: dict[str, Any] = client.run(SCRIPTS / "openai_clients.py", url)
    return found


@pytest.mark.parametrize("form", ["base64", "float", "async"])
def test_floats_keep_their_bits(seen: dict[str, Any], form: str) -> None:
    """Both encodings and both clients give the bits of the model's output."""
    assert BITS == seen[form]


def test_tokens_are_counted(seen: dict[str, Any]) -> None:
    """Eight numbers for four tokens."""
    assert [8, 4] == seen["tokens"]


def test_models_are_listed(seen: dict[str, Any]) -> None:
    """The list is sorted, and one model is found by its name."""
    assert sorted(seen["models"]) == seen["models"]
    assert ("embed_text", True) == (seen["model"], "rerank_ids" in seen["models"])


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
        ["NotFoundError", 404, "model_not_found", "model", "0"],
        ["InternalServerError", 500, "model_error", None, "0"],
        ["BadRequestError", 400, "unsupported_input", "input", "0"],
        ["NotFoundError", 404, "unsupported_endpoint", None, "0"],
        ["NotFoundError", 404, "model_not_found"],
        ["NotFoundError", 404, "model_not_found"],
    ] == seen["refused"]
