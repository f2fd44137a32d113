"""A reload reads tokenizers again: calls see the old one or the new one, and none is lost."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from gateway.config.load import load_text
from tests.integration.asking_kit import running
from tests.integration.openai_models import GOLDEN
from tests.integration.test_openai_upstream import post

pytest.importorskip("tokenizers")

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  embed_ids:
    backend: python
    options: {callable: "tests.integration.openai_models:states"}
    signature:
      inputs:
        - {name: input_ids, datatype: INT64, shape: [-1, -1]}
        - {name: attention_mask, datatype: INT64, shape: [-1, -1]}
      outputs: [{name: last_hidden_state, datatype: FP32, shape: [-1, -1, 8]}]
    protocols: {openai: {embeddings: {tokenizer: tokenizer.json, pooling: mean}}}
"""


async def test_a_changed_tokenizer_replaces_the_old_one(tmp_path: Path) -> None:
    """The words of the file have other ids after the reload, while calls go on."""
    file = tmp_path / "tokenizer.json"
    shutil.copy(GOLDEN / "tokenizer.json", file)
    async with running(CONFIG, directory=tmp_path) as gateway:
        url = f"http://{gateway.addresses['main.http']}"
        request = {"model": "embed_ids", "input": "hello"}
        before = (await post(url, "/v1/embeddings", request))[1]["data"]
        document = json.loads(file.read_text("utf-8"))
        words = document["model"]["vocab"]
        words["hello"], words["world"] = words["world"], words["hello"]
        file.write_text(json.dumps(document), "utf-8")
        calls = [asyncio.create_task(post(url, "/v1/embeddings", request)) for _ in range(16)]
        await gateway.reload(load_text(CONFIG, directory=tmp_path))
        after = (await post(url, "/v1/embeddings", request))[1]["data"]
        assert before != after
        world = (await post(url, "/v1/embeddings", {**request, "input": "world"}))[1]["data"]
        assert before == world
        assert {200} == {status for status, _ in await asyncio.gather(*calls)}
