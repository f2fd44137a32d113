"""The weights of ONNX models in other files: they stay in the model's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from gateway.backends.base import LoadError
from gateway.backends.onnx import OnnxBackend, OnnxOptions
from gateway.backends.onnx_files import check_external_files, external_locations
from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from tests.unit.backends import onnx_models

M = ModelRef("m", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a model, with weights in it, links to them, and weights beside the folder."""
    found = tmp_path / "m" / "1"
    found.mkdir(parents=True)
    (found / "in.bin").write_bytes(np.array([1, 2], "<f4").tobytes())
    (found / "inner").symlink_to("in.bin")
    (tmp_path / "m" / "out.bin").write_bytes(np.array([5, 6], "<f4").tobytes())
    (found / "outer").symlink_to("../out.bin")
    (found / "parent").symlink_to("..")
    return found


def written(folder: Path, location: str, *, of_node: bool = False) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(onnx_models.external_sum(location, of_node=of_node))
    return path


@pytest.mark.parametrize("location", ["in.bin", "./in.bin", "inner", "../1/in.bin"])
async def test_weights_in_the_folder_are_loaded(folder: Path, location: str) -> None:
    """A link counts as the file that it leads to."""
    model = OnnxBackend("m", written(folder, location), "1", OnnxOptions(device="cpu"))
    await model.start()
    reply = await model(InferRequest(model=M, inputs=(array_tensor("X", np.zeros(2, np.float32)),)))
    assert [1, 2] == as_numpy(reply.outputs[0]).tolist()
    await model.stop()


@pytest.mark.parametrize("of_node", [False, True])
@pytest.mark.parametrize(
    "location",
    ["../out.bin", "outer", "parent/out.bin", "ABSOLUTE", "missing", "*/_ORT_MEM_ADDR_/*"],
)
async def test_weights_outside_of_the_folder_are_refused(
    folder: Path, location: str, *, of_node: bool
) -> None:
    """The model is not loaded, whatever ONNX Runtime would do."""
    location = location.replace("ABSOLUTE", str(folder.parent / "out.bin"))
    path = written(folder, location, of_node=of_node)
    assert [location] == list(external_locations(path))
    with pytest.raises(ValueError, match="its weights are in"):
        check_external_files(path)
    with pytest.raises(LoadError, match="cannot be loaded: its weights are in"):
        await OnnxBackend("m", path, "1", OnnxOptions(device="cpu")).start()


@pytest.mark.parametrize(
    "content", [b"\x3a\xff", b"\x0b", b"\xff" * 12, b"\x09\x00", b"\x3a\x02\x0a\x05"]
)
def test_a_malformed_model_is_an_error(tmp_path: Path, content: bytes) -> None:
    """A length beyond its message, an unknown wire type, or a number without an end."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no ONNX model"):
        list(external_locations(path))


async def test_telemetry_is_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is switched off before a model is opened."""
    calls: list[str] = []
    open_session = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "disable_telemetry_events", lambda: calls.append("off"))

    def session(*arguments: object, **options: object) -> object:
        calls.append("session")
        return open_session(*arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    model = OnnxBackend("m", written(folder, "in.bin"), "1", OnnxOptions(device="cpu"))
    await model.start()
    assert ["off", "session"] == calls[:2]
    await model.stop()
