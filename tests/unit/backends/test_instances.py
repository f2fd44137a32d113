"""Instances: inferences run concurrently up to their number; one more waits."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.backends.base import Backend, LoadError
from gateway.backends.onnx import OnnxBackend, OnnxOptions
from gateway.backends.python import PythonBackend
from gateway.ir.calls import InferRequest
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor
from tests.fakes import settle
from tests.integration.http_kit import eventually
from tests.unit.backends import onnx_models

Arrays = dict[str, npt.NDArray[Any]]

X = (TensorMetadata("X", Datatype.FP32, (-1,)),)
Y = (TensorMetadata("Y", Datatype.FP32, (-1,)),)
ONE = array_tensor("X", np.ones(1, np.float32))
CALL = InferRequest(model=ModelRef("m"), inputs=(ONE,))
SEQUENCE = InferRequest(model=ModelRef("m"), inputs=(ONE,), sequence=CallSequence(7))


class Meeting:
    """Blocks callers until *size* of them wait; counts the calls."""

    def __init__(self, size: int) -> None:
        self.come = 0
        self._barrier = threading.Barrier(size)

    def __call__(self) -> None:
        self.come += 1
        self._barrier.wait(5)


async def infer_all(model: Backend, calls: int) -> None:
    """Make *calls* inferences at once, and stop the model."""
    try:
        await asyncio.gather(*(model(CALL) for _ in range(calls)))
    finally:
        await model.stop()


@pytest.mark.parametrize("instances", [2, 4])
async def test_a_function_runs_on_all_instances_at_once(instances: int) -> None:
    """Inferences that wait for each other inside the model finish."""
    meeting = Meeting(instances)

    def meet(inputs: Arrays) -> Arrays:
        meeting()
        return {"Y": inputs["X"]}

    model = PythonBackend("m", meet, inputs=X, outputs=Y, instances=instances)
    await model.start()
    await infer_all(model, 2 * instances)
    assert 2 * instances == meeting.come


class CountingModel:
    """Fails when two inferences use one object; counts its inferences."""

    objects: list[CountingModel]
    inputs, outputs = X, Y

    def __init__(self, meeting: Meeting) -> None:
        self.objects.append(self)
        self.ran = self.closed = 0
        self._meeting = meeting
        self._lock = threading.Lock()

    def __call__(self, inputs: Arrays) -> Arrays:
        assert self._lock.acquire(blocking=False)
        self._meeting()
        self.ran += 1
        self._lock.release()
        return {"Y": inputs["X"]}

    def close(self) -> None:
        self.closed += 1


async def test_a_class_has_an_object_for_each_instance() -> None:
    """The objects run concurrently, each one inference at a time; all are closed."""
    CountingModel.objects = []
    model = PythonBackend("m", CountingModel, options={"meeting": Meeting(3)}, instances=3)
    await model.start()
    await infer_all(model, 6)
    assert ([2, 2, 2], [1, 1, 1]) == (
        [one.ran for one in CountingModel.objects],
        [one.closed for one in CountingModel.objects],
    )


async def test_a_sequence_keeps_its_object() -> None:
    """All requests of a sequence reach the object that has its state."""
    CountingModel.objects = []
    model = PythonBackend("m", CountingModel, options={"meeting": Meeting(1)}, instances=3)
    await model.start()
    for _ in range(3):
        await model(SEQUENCE)
    await model.stop()
    assert [0, 0, 3] == sorted(one.ran for one in CountingModel.objects)


class SecondFails(CountingModel):
    """Its second object cannot be created."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        if len(self.objects) > 1:
            raise RuntimeError("no second one")


async def test_a_failed_object_closes_those_created_before() -> None:
    """A class that cannot be created for each instance leaves no open object."""
    CountingModel.objects = []
    model = PythonBackend("m", SecondFails, options={"meeting": Meeting(1)}, instances=2)
    with pytest.raises(LoadError, match="cannot be created: RuntimeError: no second one"):
        await model.start()
    assert [1, 0] == [one.closed for one in CountingModel.objects]


class Session:
    """A session that blocks its calls until *meeting* is complete."""

    def __init__(self, inner: Any, meeting: Meeting) -> None:
        self._inner = inner
        self._meeting = meeting

    def run(self, *arguments: Any) -> Any:
        self._meeting()
        return self._inner.run(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def onnx(folder: Path, instances: int, device: str = "cpu") -> Any:
    path = folder / "model.onnx"
    path.write_bytes(onnx_models.identity(1, ["n"]))
    return OnnxBackend("m", path, "1", OnnxOptions(device=device), instances=instances)


async def test_one_onnx_session_runs_on_all_instances_at_once(tmp_path: Path) -> None:
    """On the CPU the instances share one session and one copy of the weights."""
    model = onnx(tmp_path, 3)
    await model.start()
    assert 1 == len(model._sessions)
    meeting = Meeting(3)
    model._sessions = [Session(model._sessions[0], meeting)]
    await infer_all(model, 3)
    assert 3 == meeting.come


async def test_on_a_gpu_each_instance_has_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session on a GPU runs one call at a time."""
    model = onnx(tmp_path, 3, "auto")
    opened = model._open
    meeting = Meeting(3)
    used: set[int] = set()

    def on_gpu() -> Any:
        session = Session(opened(), meeting)
        session.get_providers = lambda: ["CUDAExecutionProvider"]  # type: ignore[attr-defined]
        return session

    def run_bound(session: Session, feed: Arrays, _outputs: Any) -> Arrays:
        used.add(id(session))
        meeting()
        return {"Y": feed["X"]}

    monkeypatch.setattr(model, "_open", on_gpu)
    monkeypatch.setattr("gateway.backends.onnx._run_bound", run_bound)
    await model.start()
    assert 3 == len(model._sessions)
    await infer_all(model, 3)
    assert (3, 3) == (meeting.come, len(used))


@pytest.mark.parametrize("instances", [1, 2])
async def test_an_inference_beyond_the_instances_waits(instances: int) -> None:
    """It starts when one of the others has ended."""
    starts: list[int] = []
    gate = threading.Event()

    def hold(inputs: Arrays) -> Arrays:
        starts.append(1)
        gate.wait(5)
        return {"Y": inputs["X"]}

    model = PythonBackend("m", hold, inputs=X, outputs=Y, instances=instances)
    await model.start()
    calls = [asyncio.ensure_future(model(CALL)) for _ in range(instances + 1)]
    await eventually(lambda: len(starts) == instances)
    await settle()
    assert (instances, 1) == (len(starts), model._pool.waiting)
    gate.set()
    await asyncio.gather(*calls)
    assert instances + 1 == len(starts)
    await model.stop()
