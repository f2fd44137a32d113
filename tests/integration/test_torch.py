"""PyTorch models in a whole gateway: every protocol, and a new version while the old one serves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, ModelLoadRequest, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from tests.integration.asking_kit import ask, running, urls

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make torch")
models = pytest.importorskip("tests.unit.backends.torch_models")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]  # reading PyTorch takes its time

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  sums:
    backend: torch
    path: sums
    options: {device: cpu, instances: 2, max_batch_size: 64}
    batching: {max_delay: 1ms}
pipelines:
  chain:
    steps:
      one: {model: sums, inputs: {a: request.a, b: request.b}}
      two: {model: sums, inputs: {a: one.sum, b: one.difference}}
    outputs: {twice_a: two.sum, twice_b: two.difference}
"""
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.full((2, 3), 2, np.float32)


def exported(folder: Path, version: str, *, dims: int = 3) -> None:
    (folder / "sums" / version).mkdir(parents=True)
    zeros, ones = torch.zeros(2, dims), torch.ones(2, dims)
    batch = {"a": {0: models.BATCH}, "b": {0: models.BATCH}}
    path = folder / "sums" / version / "model.pt2"
    models.export(models.Named(), path, zeros, ones, dynamic=batch)


async def test_every_protocol_gets_the_result_of_numpy(tmp_path: Path) -> None:
    """A batched PyTorch program and a pipeline of it are called like any model."""
    exported(tmp_path, "1")
    expected = {"sums": ("sum", A + B), "chain": ("twice_a", 2 * A)}
    async with running(CONFIG, tmp_path) as gateway:
        for model, (output, array) in expected.items():
            for codec, url in urls(gateway, model).items():
                found = await ask(url, model, {"a": A, "b": B})
                assert (codec, array.tolist()) == (codec, found[output].tolist())


async def test_new_version_loads_while_the_old_one_serves(tmp_path: Path) -> None:
    """No call fails meanwhile, and afterwards metadata has the new version's shapes."""
    exported(tmp_path, "1")
    async with running(CONFIG, directory=tmp_path) as gateway:
        ref = ModelRef("sums")
        inputs = (array_tensor("a", A), array_tensor("b", B))
        call = InferRequest(model=ModelRef("sums", "1"), inputs=inputs)
        exported(tmp_path, "2", dims=4)
        loading = asyncio.ensure_future(gateway.service(ModelLoadRequest(model=ref)))
        answered = 0
        while not loading.done():
            assert (A + B).tolist() == as_numpy((await gateway.service(call)).outputs[0]).tolist()
            answered += 1
            await asyncio.sleep(0)
        await loading
        assert answered
        metadata = await gateway.service(ModelMetadataRequest(model=ref))
        assert (("1", "2"), (-1, 4)) == (metadata.versions, metadata.inputs[0].shape)
        assert (A + B).tolist() == as_numpy((await gateway.service(call)).outputs[0]).tolist()
