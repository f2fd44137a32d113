"""ONNX models on a GPU: a session for each instance, inputs and outputs bound to the device."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from gateway.backends.onnx import OnnxBackend, OnnxOptions
from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from tests.unit.backends import onnx_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
        reason="this ONNX Runtime has no CUDA: pip install onnxruntime-gpu",
    ),
    pytest.mark.timeout(120),
]

M = ModelRef("m", "1")


async def test_concurrent_results_equal_numpys(tmp_path: Path) -> None:
    """Sums are exact, with concurrent calls to three sessions."""
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.sum_of_two())
    model = OnnxBackend("m", path, "1", OnnxOptions(device="cuda", warm_up=True), instances=3)
    await model.start()
    assert 3 == len(model._sessions)
    one = np.arange(6, dtype=np.float32).reshape(3, 2)
    calls = [
        InferRequest(model=M, inputs=(array_tensor("A", one + n), array_tensor("B", one)))
        for n in range(32)
    ]
    replies = await asyncio.gather(*(model(call) for call in calls))
    for n, reply in enumerate(replies):
        assert (one + n + one).tolist() == as_numpy(reply.outputs[0]).tolist()
    await model.stop()
