"""PyTorch models on a GPU: streams, pinned memory, too little memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.backends.base import LoadError
from gateway.backends.torch.backend import TorchBackend, TorchOptions
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import Overloaded
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from tests.unit.backends.test_instances import Meeting

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
models = pytest.importorskip("tests.unit.backends.torch_models")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
    pytest.mark.timeout(120),  # the first use of CUDA takes its time
]

M = ModelRef("m", "1")
A = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.full((4, 3), 2, np.float32)


def signature(inputs: str, outputs: str, *shape: int) -> ModelMetadata:
    """Return FP32 tensors by the names in two texts."""

    def tensors(names: str) -> tuple[TensorMetadata, ...]:
        return tuple(
            TensorMetadata(name, Datatype.FP32, shape or (-1, 3)) for name in names.split()
        )

    return ModelMetadata(name="m", inputs=tensors(inputs), outputs=tensors(outputs))


async def started(path: Path, *, instances: int = 1, **options: Any) -> TorchBackend:
    how = TorchOptions(**{"device": "cuda:0", **options})
    model = TorchBackend("m", path, "1", how, instances=instances)
    await model.start()
    return model


async def infer(model: TorchBackend, **inputs: npt.NDArray[Any]) -> InferResponse:
    tensors = tuple(array_tensor(name, array) for name, array in inputs.items())
    return await model(InferRequest(model=M, inputs=tensors))


def values(reply: InferResponse) -> dict[str, Any]:
    return {tensor.name: as_numpy(tensor).tolist() for tensor in reply.outputs}


@pytest.mark.parametrize("kind", ["torchscript", "exported"])
async def test_gpu_results_equal_numpys(tmp_path: Path, kind: str) -> None:
    """Sum and difference are exact, with concurrent calls to three instances of one model."""
    metadata = signature("a b", "sum difference")
    if kind == "exported":
        batch = {"a": {0: models.BATCH}, "b": {0: models.BATCH}}
        zeros = torch.zeros(2, 3), torch.ones(2, 3)
        path = models.export(models.Named(), tmp_path / "m.pt2", *zeros, dynamic=batch)
    else:
        path = models.script(models.Named(), tmp_path / "m.pt")
    model = await started(path, instances=3, signature=metadata)
    replies = await asyncio.gather(*(infer(model, a=A + n, b=B) for n in range(32)))
    for n, reply in enumerate(replies):
        expected = {"sum": (A + n + B).tolist(), "difference": (A + n - B).tolist()}
        assert expected == values(reply)
    await model.stop()


async def test_device_auto_selects_the_gpu(tmp_path: Path) -> None:
    """Device `auto` selects an available GPU; a GPU that is not available is an error."""
    path = models.script(models.Identity(), tmp_path / "m.pt")
    metadata = signature("x", "y")
    model = await started(path, device="auto", signature=metadata)
    assert "cuda:0" == str(model._device)
    await model.stop()
    with pytest.raises(LoadError, match="device 'cuda:99' is not available: PyTorch finds"):
        await started(path, device="cuda:99", signature=metadata)


async def test_each_instance_has_its_own_cuda_stream(tmp_path: Path) -> None:
    """Instances run the program at the same time, each on its own CUDA stream."""
    path = models.script(models.Identity(), tmp_path / "m.pt")
    model = await started(path, instances=3, signature=signature("x", "y"))
    assert model._program is not None
    meeting, streams, call = Meeting(3), set(), model._program.call

    def met(tensors: Any) -> Any:
        streams.add(torch.cuda.current_stream().cuda_stream)
        meeting()
        return call(tensors)

    object.__setattr__(model._program, "call", met)
    await asyncio.gather(*(infer(model, x=A) for _ in range(6)))
    default = torch.cuda.default_stream().cuda_stream
    assert (6, 3, False) == (meeting.come, len(streams), default in streams)
    await model.stop()


async def test_staging_and_output_buffers_are_pinned(tmp_path: Path) -> None:
    """Inputs are copied from page-locked memory, and outputs into it."""
    path = models.script(models.Identity(), tmp_path / "m.pt")
    model = await started(path, signature=signature("x", "y"))
    runner: Any = model._runners[0]
    outputs: list[Any] = []
    landing = runner._landing

    def noted(tensor: Any) -> Any:
        outputs.append(landing(tensor))
        return outputs[-1]

    runner._landing = noted
    first, second = await infer(model, x=A), await infer(model, x=B)
    assert ([True], [True, True]) == (
        [one.is_pinned() for one in runner._staging],
        [one.is_pinned() for one in outputs],
    )
    assert ({"y": A.tolist()}, {"y": B.tolist()}) == (values(first), values(second))
    await model.stop()


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16, Datatype.BOOL, Datatype.INT64])
async def test_datatypes_survive_the_round_trip(tmp_path: Path, datatype: Datatype) -> None:
    """A tensor returns from the GPU bit for bit, also if it is empty."""
    tensor = TensorMetadata("x", datatype, (-1,))
    metadata = ModelMetadata(
        name="m", inputs=(tensor,), outputs=(TensorMetadata("y", datatype, (-1,)),)
    )
    path = models.script(models.Identity(), tmp_path / "m.pt")
    model = await started(path, signature=metadata)
    for count in (0, 1, 1000):
        bits = (np.arange(count) % 2).astype(datatype.numpy_dtype)
        sent = array_tensor("x", bits, datatype)
        reply = await model(InferRequest(model=M, inputs=(sent,)))
        assert (sent.renamed("y"),) == reply.outputs
    await model.stop()


async def test_too_little_gpu_memory_rejects_one_request(tmp_path: Path) -> None:
    """A request that exceeds the GPU's memory is rejected; the next request succeeds."""
    path = models.script(models.HugeThere(), tmp_path / "m.pt")
    model = await started(path, signature=signature("x", "y", 1))
    with pytest.raises(Overloaded, match="has not enough memory on cuda:0 for this request: CUDA"):
        await infer(model, x=np.ones(1, np.float32))
    assert {"y": [0.0]} == values(await infer(model, x=np.zeros(1, np.float32)))
    await model.stop()


async def test_stopping_a_model_releases_its_gpu_memory(tmp_path: Path) -> None:
    """A stopped model holds no memory of the GPU."""
    path = models.script(models.Weight(), tmp_path / "m.pt")
    before = torch.cuda.memory_allocated(0)
    model = await started(path, signature=ModelMetadata(
        name="m",
        inputs=(TensorMetadata("x", Datatype.FP32, (-1, 3)),),
        outputs=(TensorMetadata("y", Datatype.FP32, (3,)),),
    ))  # fmt: skip
    assert {"y": [0.0, 1.0, 2.0]} == values(await infer(model, x=A))
    assert torch.cuda.memory_allocated(0) > before
    await model.stop()
    assert before == torch.cuda.memory_allocated(0)
