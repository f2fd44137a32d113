"""ONNX models: from hand-written files and from the demo's, on the CPU."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gateway.cli.demo
from gateway.api.model_spec import ModelSpec
from gateway.backends import onnx
from gateway.backends.base import Job, LoadError
from gateway.backends.onnx import OnnxBackend, OnnxOptions
from gateway.backends.repository import find_versions, from_spec, onnx_model
from gateway.cli.demo.samples import SIDE, load_scans
from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, NotReady, UpstreamError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from tests.unit.backends import onnx_models

DEMO = Path(gateway.cli.demo.__file__).parent / "models"
M = ModelRef("m", "1")


def write_model(folder: Path, content: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


async def started(path: Path, options: OnnxOptions | None = None) -> OnnxBackend:
    model = OnnxBackend("m", path, "1", options or OnnxOptions(device="cpu"))
    await model.start()
    return model


async def infer(model: OnnxBackend, *inputs: Tensor) -> InferResponse:
    return await model(InferRequest(model=M, inputs=inputs))


def fp32(name: str, *shape: int) -> Tensor:
    return array_tensor(name, np.ones(shape, np.float32))


@pytest.mark.parametrize("datatype", Datatype, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (1, 2, 1, 2, 1)], ids=str)
async def test_every_datatype_round_trip(
    tmp_path: Path, datatype: Datatype, shape: tuple[int, ...]
) -> None:
    """The output of the identity model equals its input bit for bit."""
    dims = [f"d{axis}" for axis in range(len(shape))]
    element_type = onnx_models.ELEMENT_TYPES[datatype.name]
    model = await started(write_model(tmp_path, onnx_models.identity(element_type, dims)))
    count = int(np.prod(shape))
    if datatype is Datatype.BYTES:
        tensor = items_tensor("X", shape, [f"é\0{n}".encode() for n in range(count)])
    else:
        array = np.arange(count).astype(datatype.numpy_dtype).reshape(shape)
        tensor = array_tensor("X", array, datatype)
    assert (tensor.renamed("Y"),) == (await infer(model, tensor)).outputs
    await model.stop()


async def test_metadata_is_read_from_the_file(tmp_path: Path) -> None:
    """Names, datatypes and shapes are those of the file; named dimensions vary."""
    labels = tmp_path / "labels.txt"
    labels.write_text("no\nyes\n", encoding="utf-8")
    path = write_model(tmp_path, onnx_models.sum_of_two(("batch", 2)))
    options = OnnxOptions(max_batch_size=16, labels={"C": labels}, threads=1, warm_up=True)
    model = await started(path, options)
    shape = (-1, 2)
    assert ModelMetadata(
        name="m",
        versions=("1",),
        platform="onnxruntime_onnx",
        inputs=tuple(TensorMetadata(name, Datatype.FP32, shape) for name in "AB"),
        outputs=(TensorMetadata("C", Datatype.FP32, shape),),
        max_batch_size=16,
        labels={"C": ("no", "yes")},
    ) == await model(ModelMetadataRequest(model=M))
    await model.stop()
    with pytest.raises(NotReady, match="is not loaded"):
        _ = model.metadata


async def test_unaligned_and_strided_inputs_are_copied(tmp_path: Path) -> None:
    """Views into received messages and arrays with gaps have the right sums."""
    model = await started(write_model(tmp_path, onnx_models.sum_of_two()))
    body = b"x" + np.arange(6, dtype="<f4").tobytes()
    unaligned = np.frombuffer(body, np.uint8)[1:].view("<f4").reshape(3, 2)
    strided = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    assert (False, False) == (unaligned.flags.aligned, strided.flags.c_contiguous)
    reply = await infer(model, array_tensor("A", unaligned), array_tensor("B", strided))
    assert (unaligned + strided).tolist() == as_numpy(reply.outputs[0]).tolist()
    await model.stop()


async def test_inputs_with_unequal_dimensions_are_rejected(tmp_path: Path) -> None:
    """A dimension that two inputs share by name has one size."""
    model = await started(write_model(tmp_path, onnx_models.sum_of_two(("batch", 2))))
    message = (
        "dimension 0 of input 'B' is 4; expected 3 as in input 'A', "
        "because both are 'batch' of model 'm version 1'"
    )
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        await infer(model, fp32("A", 3, 2), fp32("B", 4, 2))
    await model.stop()


async def test_text_must_be_utf8(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are rejected, not changed."""
    model = await started(write_model(tmp_path, onnx_models.identity(8)))
    with pytest.raises(
        InvalidRequest, match=r"input 'X' has an element at \[1\] that is not UTF-8"
    ):
        await infer(model, items_tensor("X", (2,), [b"good", b"\xff"]))
    await model.stop()


def broadcast(node: str = "Add") -> bytes:
    """Write a model whose inputs' dimensions have different names."""
    return onnx_models.model(
        [(node, ["A", "B"], ["C"])],
        [("A", 1, ["n"]), ("B", 1, ["m"])],
        [("C", 1, ["k"])],
    )


async def test_a_failure_in_the_model_is_an_upstream_error(tmp_path: Path) -> None:
    """The error of ONNX Runtime is reported in one line."""
    model = await started(write_model(tmp_path, broadcast()))
    with pytest.raises(UpstreamError, match="model 'm version 1' failed: Fail: ") as caught:
        await infer(model, fp32("A", 3), fp32("B", 2))
    assert "\n" not in caught.value.message
    await model.stop()


async def test_an_invalid_argument_of_the_runtime_is_the_callers(tmp_path: Path) -> None:
    """An index out of bounds is an invalid request."""
    gather = onnx_models.model(
        [("Gather", ["A", "I"], ["C"])],
        [("A", 1, ["n"]), ("I", 7, ["m"])],
        [("C", 1, ["m"])],
    )
    model = await started(write_model(tmp_path, gather))
    index = array_tensor("I", np.array([9], np.int64))
    with pytest.raises(InvalidRequest, match=r"model 'm version 1': .*out of data bounds"):
        await infer(model, fp32("A", 3), index)
    await model.stop()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {}, "the file does not exist"),
        (b"junk", {}, "INVALID_PROTOBUF"),
        (b"", {}, ""),
        (onnx_models.identity(1)[:-9], {}, ""),
        (onnx_models.identity(onnx_models.COMPLEX64), {}, "complex64"),
        (onnx_models.identity(1), {"device": "cuda"}, "device 'cuda' is not available"),
        (onnx_models.identity(1), {"device": "tensorrt"}, "device 'tensorrt' is not available"),
        (
            onnx_models.identity(1),
            {"labels": {"Y": Path("/nowhere/labels.txt")}},
            "labels in /nowhere/labels.txt cannot be read: [Errno 2]",
        ),
        (broadcast("Bogus"), {}, "Bogus"),
        (
            onnx_models.model(
                [("MatMul", ["A", "B"], ["C"])],
                [("A", 1, ["n"]), ("B", 1, [5])],
                [("C", 1, [])],
            ),
            {"warm_up": True},
            "the warm-up failed: ",
        ),
    ],
    ids=[
        "missing", "junk", "empty", "cut", "complex", "cuda", "tensorrt", "labels", "operator",
        "warm_up",
    ],
)  # fmt: skip
async def test_load_errors_name_the_file_in_one_line(
    tmp_path: Path, content: bytes | None, options: dict[str, Any], message: str
) -> None:
    """The text has model, file and cause."""
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LoadError) as caught:
        await started(path, OnnxOptions(**{"device": "cpu", **options}))
    text = caught.value.message
    assert text.startswith(f"model 'm version 1': {path} cannot be loaded: ")
    assert (True, False) == (message in text, "\n" in text)


async def test_unknown_types_name_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor type without a datatype cannot be served."""
    table = {name: datatype for name, datatype in onnx._DATATYPES.items() if "float" not in name}
    monkeypatch.setattr(onnx, "_DATATYPES", table)
    path = write_model(tmp_path, onnx_models.identity(1))
    with pytest.raises(
        LoadError, match=r"input 'X' is a tensor\(float\), which is not a supported datatype"
    ):
        await started(path)


async def test_a_missing_runtime_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the command that installs ONNX Runtime."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    path = write_model(tmp_path, onnx_models.identity(1))
    with pytest.raises(LoadError, match=r"ONNX Runtime is not installed: pip install .*\[onnx\]"):
        await started(path)


def test_an_unknown_device_is_rejected() -> None:
    """Only known devices are valid."""
    with pytest.raises(
        ValueError, match="option 'device' is 'tpu'; expected one of auto, cpu, cuda"
    ):
        OnnxOptions(device="tpu")


async def test_a_bound_run_returns_the_same(tmp_path: Path) -> None:
    """IO binding, which GPUs use, computes the same outputs as a plain run."""
    model = await started(write_model(tmp_path, onnx_models.sum_of_two()))
    inputs: dict[str, npt.NDArray[Any]] = {
        "A": np.ones((2, 2), np.float32),
        "B": np.full((2, 2), 2, np.float32),
    }
    job = Job(M, outputs=("C",))
    plain = model.infer(inputs, job)["C"]
    model._is_on_gpu = True
    assert plain.tolist() == model.infer(inputs, job)["C"].tolist()
    await model.stop()


async def test_text_is_never_bound(tmp_path: Path) -> None:
    """A model with text runs without IO binding on any device."""
    model = await started(write_model(tmp_path, onnx_models.identity(8)))
    model._is_on_gpu = True
    reply = await infer(model, items_tensor("X", (1,), [b"a"]))
    assert [b"a"] == list(as_items(reply.outputs[0]))
    await model.stop()


@pytest.mark.parametrize("element_type", [8, 16], ids=["text", "bf16"])
async def test_warm_up_runs_any_datatype(tmp_path: Path, element_type: int) -> None:
    """Text and BF16 have zeros, too."""
    path = write_model(tmp_path, onnx_models.identity(element_type))
    model = await started(path, OnnxOptions(device="cpu", warm_up=True))
    assert model.is_loaded
    await model.stop()


async def test_bf16_beside_other_datatypes(tmp_path: Path) -> None:
    """Other datatypes of a model with BF16 pass unchanged."""
    content = onnx_models.model(
        [("Identity", ["X"], ["Y"]), ("Identity", ["A"], ["C"])],
        [("X", 16, ["n"]), ("A", 1, ["n"])],
        [("Y", 16, ["n"]), ("C", 1, ["n"])],
    )
    model = await started(write_model(tmp_path, content))
    bits = array_tensor("X", np.array([1, 0x3F80], np.uint16), Datatype.BF16)
    reply = await infer(model, bits, fp32("A", 2))
    assert (bits.renamed("Y"), fp32("C", 2)) == reply.outputs
    await model.stop()


async def test_demo_digits_in_both_versions() -> None:
    """Both versions read the demo's scans, and the newest is the default."""
    model = onnx_model("digits", DEMO / "digits", OnnxOptions(device="cpu"))
    await model.start()
    scans = load_scans()
    pixels = np.array([scan.pixels for scan in scans], np.float32)
    assert (len(scans), SIDE * SIDE) == pixels.shape
    for version, found in (("", "2"), ("1", "1")):
        reply = await model(
            InferRequest(model=ModelRef("digits", version), inputs=(array_tensor("X", pixels),))
        )
        labels, probabilities = (as_numpy(output) for output in reply.outputs)
        right = (labels == [scan.digit for scan in scans]).mean()
        assert ModelRef("digits", found) == reply.model
        assert right > 0.9
        assert labels.tolist() == probabilities.argmax(axis=1).tolist()
    await model.stop()


async def test_demo_language_reads_text() -> None:
    """A model has BYTES as input and output."""
    model = onnx_model("language", DEMO / "language", OnnxOptions(device="cpu"))
    await model.start()
    tensor = items_tensor(
        "text", (2,), [b"Where is the station?", "Wo finde ich Brötchen?".encode()]
    )
    reply = await model(InferRequest(model=ModelRef("language"), inputs=(tensor,)))
    assert [b"en", b"de"] == list(as_items(reply.outputs[0]))
    await model.stop()


def repository(folder: Path, *versions: str) -> Path:
    for version in versions:
        (folder / version).mkdir()
        (folder / version / "model.onnx").write_bytes(onnx_models.identity(1))
    return folder


def test_versions_are_found_by_number(tmp_path: Path) -> None:
    """Numeric folder names are versions; other entries are skipped."""
    repository(tmp_path, "10", "9", "notes")
    (tmp_path / "labels.txt").write_text("x")
    assert {"9": tmp_path / "9/model.onnx", "10": tmp_path / "10/model.onnx"} == find_versions(
        "m", tmp_path
    )


def test_a_single_file_is_version_one(tmp_path: Path) -> None:
    """A file needs no folder per version."""
    path = write_model(tmp_path, b"")
    assert {"1": path} == find_versions("m", path)


def test_only_the_configured_versions_are_served(tmp_path: Path) -> None:
    """A configured version that does not exist is named."""
    repository(tmp_path, "1", "2")
    entries = onnx_model("m", tmp_path, versions=["2"]).entries()
    assert ["2"] == [entry.version for entry in entries]
    with pytest.raises(LoadError, match="has no version '3'; it has 1, 2"):
        onnx_model("m", tmp_path, versions=["1", "3"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "it does not exist"),
        ("", r"has no versions; expected .*/<number>"),
    ],
)
def test_a_path_without_a_model_is_named(tmp_path: Path, name: str, message: str) -> None:
    """The path does not exist or has no versions."""
    with pytest.raises(LoadError, match=f"model 'm': {re.escape(str(tmp_path / name))}.*{message}"):
        find_versions("m", tmp_path / name)


async def test_from_spec_creates_a_model(tmp_path: Path) -> None:
    """The specification has path, device, versions, labels and limits."""
    repository(tmp_path, "1", "2")
    (tmp_path / "labels.txt").write_text("a\nb\n")
    options = {
        "device": "cpu",
        "threads": "1",
        "warm_up": "true",
        "max_batch_size": "4",
        "labels": {"Y": "labels.txt"},
        "versions": ["2"],
        "instances": "2",
        "queue": "1",
    }
    model = from_spec(ModelSpec(name="m", path=tmp_path, options=options))
    await model.start()
    metadata = await model(ModelMetadataRequest(model=ModelRef("m")))
    assert (("2",), 4, {"Y": ("a", "b")}) == (
        metadata.versions,
        metadata.max_batch_size,
        metadata.labels,
    )
    await model.stop()


def test_from_spec_needs_only_a_path(tmp_path: Path) -> None:
    """Without a path the specification is invalid."""
    with pytest.raises(ValueError, match="model 'm' has no 'path'"):
        from_spec(ModelSpec(name="m"))
    path = write_model(tmp_path, onnx_models.identity(1))
    assert ["1"] == [entry.version for entry in from_spec(ModelSpec(name="m", path=path)).entries()]
