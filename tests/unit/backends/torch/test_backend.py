"""PyTorch models on the CPU: TorchScript and exported programs, created by the tests."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from structlog.testing import capture_logs

from gateway.api.model_spec import ModelSpec
from gateway.backends.base import Job, LoadError
from gateway.backends.torch.archive_check import ProgramKind
from gateway.backends.torch.backend import TorchBackend, TorchOptions, from_spec
from gateway.backends.torch.programs import open_program
from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest, ModelReadyRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, NotReady, Overloaded, UpstreamError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import ArrayData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy
from tests.unit.backends.test_instances import Meeting, infer_all

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make torch")
models = pytest.importorskip("tests.unit.backends.torch_models")

pytestmark = pytest.mark.torch

M = ModelRef("m", "1")
Z = torch.zeros(2, 3)
BATCH = {"a": {0: models.BATCH}, "b": {0: models.BATCH}}
A = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.full((4, 3), 2, np.float32)


def fp32(name: str, *shape: int) -> TensorMetadata:
    return TensorMetadata(name, Datatype.FP32, shape or (-1, 3))


def signature(inputs: str, outputs: str) -> ModelMetadata:
    """Return FP32 tensors of [-1, 3] by the names in two texts."""
    return ModelMetadata(
        name="m",
        inputs=tuple(map(fp32, inputs.split())),
        outputs=tuple(map(fp32, outputs.split())),
    )


async def started(path: Path, **options: Any) -> TorchBackend:
    instances = options.pop("instances", 1)
    model = TorchBackend("m", path, "1", TorchOptions(device="cpu", **options), instances=instances)
    await model.start()
    return model


async def infer(model: TorchBackend, **inputs: npt.NDArray[Any]) -> InferResponse:
    tensors = tuple(array_tensor(name, array) for name, array in inputs.items())
    return await model(InferRequest(model=M, inputs=tensors))


def arrays(reply: InferResponse) -> dict[str, Any]:
    return {tensor.name: as_numpy(tensor).tolist() for tensor in reply.outputs}


def exported(folder: Path, module: Any = None, *arguments: Any, **how: Any) -> Path:
    if module is None:
        return models.export(models.Named(), folder / "model.pt2", Z, dynamic=BATCH, b=Z + 1)  # type: ignore[no-any-return]
    return models.export(module, folder / "model.pt2", *(arguments or (Z,)), **how)  # type: ignore[no-any-return]


def scripted(folder: Path, module: Any) -> Path:
    return models.script(module, folder / "model.pt")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("module", "outputs"),
    [
        (models.Sums(), "s d"),
        (models.Named(), "difference sum"),
        (models.Fields(), "sum difference"),
    ],
    ids=["tuple", "dict", "fields"],
)
async def test_torchscript_uses_the_configured_signature(
    tmp_path: Path, module: Any, outputs: str
) -> None:
    """Outputs match by name where the program names them, otherwise by position."""
    metadata = signature("a b", outputs)
    model = await started(scripted(tmp_path, module), signature=metadata)
    assert ModelMetadata(
        name="m",
        versions=("1",),
        platform="pytorch_torchscript",
        inputs=metadata.inputs,
        outputs=metadata.outputs,
    ) == await model(ModelMetadataRequest(model=M))
    expected = {"s": A + B, "sum": A + B, "d": A - B, "difference": A - B}
    found = arrays(await infer(model, b=B, a=A))
    assert {name: expected[name].tolist() for name in outputs.split()} == found
    await model.stop()


async def test_inputs_with_other_names_match_by_position(tmp_path: Path) -> None:
    """A signature with none of the program's names is in the order of its arguments."""
    model = await started(scripted(tmp_path, models.Sums()), signature=signature("p q", "s d"))
    assert (A - B).tolist() == arrays(await infer(model, q=B, p=A))["d"]
    await model.stop()


async def test_an_exported_program_has_its_own_signature(tmp_path: Path) -> None:
    """Names, datatypes and shapes are the program's; dynamic dimensions vary."""
    labels = tmp_path / "labels.txt"
    labels.write_text("no\nyes\n", encoding="utf-8")
    model = await started(exported(tmp_path), max_batch_size=64, labels={"sum": labels})
    assert ModelMetadata(
        name="m",
        versions=("1",),
        platform="pytorch_exported",
        inputs=(fp32("a"), fp32("b")),
        outputs=(fp32("sum"), fp32("difference")),
        max_batch_size=64,
        labels={"sum": ("no", "yes")},
    ) == await model(ModelMetadataRequest(model=M))
    expected = {"sum": (A + B).tolist(), "difference": (A - B).tolist()}
    assert expected == arrays(await infer(model, a=A, b=B))
    await model.stop()
    with pytest.raises(NotReady, match="is not loaded"):
        _ = model.metadata


async def test_outputs_without_names_are_numbered(tmp_path: Path) -> None:
    """They are called OUTPUT__0 and so on; a signature may rename them."""
    path = exported(tmp_path, models.Sums(), Z, Z + 1, dynamic=BATCH)
    model = await started(path)
    assert ["OUTPUT__0", "OUTPUT__1"] == list(arrays(await infer(model, a=A, b=B)))
    await model.stop()
    model = await started(path, signature=signature("p q", "s d"))
    assert (A - B).tolist() == arrays(await infer(model, p=A, q=B))["d"]
    await model.stop()


async def test_tensors_in_structures_are_inputs(tmp_path: Path) -> None:
    """Each tensor of a dict is an input; numbers stay as exported."""
    path = exported(tmp_path, models.Nested(), {"left": Z, "right": Z + 1}, 4)
    model = await started(path)
    assert ("pair_left", "pair_right") == tuple(one.name for one in model.metadata.inputs)
    ones = np.ones((2, 3), np.float32)
    assert {"OUTPUT__0": (ones * 5).tolist()} == arrays(
        await infer(model, pair_left=ones, pair_right=ones)
    )
    await model.stop()


@pytest.mark.parametrize("names", ["x", "x y"])
async def test_optional_arguments_may_be_left_out(tmp_path: Path, names: str) -> None:
    """An argument with a default is an input only if the signature has it."""
    model = await started(scripted(tmp_path, models.Optional()), signature=signature(names, "z"))
    found = arrays(await infer(model, **dict.fromkeys(names.split(), A)))
    assert {"z": (A * (1 + len(names.split()))).tolist()} == found
    await model.stop()


async def test_frozen_torchscript_is_served(tmp_path: Path) -> None:
    """A frozen program has no training mode to leave."""
    path = models.freeze(models.Weight(), tmp_path / "model.pt")
    metadata = ModelMetadata(name="m", inputs=(fp32("x"),), outputs=(fp32("y", 3),))
    model = await started(path, signature=metadata)
    assert {"y": [0.0, 1.0, 2.0]} == arrays(await infer(model, x=A))
    await model.stop()
    with pytest.raises(NotReady):
        model.infer({"x": A}, Job(M, outputs=("y",)))


async def test_a_program_without_examples_warms_up_with_ones(tmp_path: Path) -> None:
    """Without an example in the file, every dynamic dimension is 1."""
    path = exported(tmp_path, models.Sums(), Z, Z + 1, dynamic=BATCH, bare=True)
    model = await started(path)
    assert {} == getattr(model._program, "examples", None)
    assert (A + B).tolist() == arrays(await infer(model, a=A, b=B))["OUTPUT__0"]
    await model.stop()


def test_a_program_is_moved_to_its_device(tmp_path: Path) -> None:
    """Its weights and the tensors that it creates are on the device of its inputs."""
    path = exported(tmp_path, models.Weight())
    for device in ("cpu", "meta"):
        program = open_program(torch, path, ProgramKind.EXPORTED, torch.device(device))
        tensor = torch.zeros(2, 3, device=device)
        assert device == program.call({"x": tensor}).device.type


@pytest.mark.parametrize(
    ("module", "arguments", "how", "message"),
    [
        (
            models.Complex(),
            (Z,),
            {},
            "'complex_1' is a tensor of torch.complex64, which is not a su",
        ),
        (models.Lists(), (Z,), {}, "it returns a list as 'OUTPUT__0'; expected a tensor"),
        (
            models.Scaled(),
            (Z, 3),
            {"dynamic": {"x": None, "factor": torch.export.Dim.DYNAMIC}},
            "its input or output 'factor' is a SymIntArgument, not a tensor",
        ),
    ],
    ids=["complex", "list", "number"],
)
async def test_unsupported_exported_programs_are_named(
    tmp_path: Path, module: Any, arguments: Any, how: Any, message: str
) -> None:
    """Complex tensors, lists and dynamic numbers are load errors."""
    with pytest.raises(LoadError, match=message):
        await started(exported(tmp_path, module, *arguments, **how))


async def test_a_signature_with_fewer_outputs_is_rejected(tmp_path: Path) -> None:
    """Outputs without names match by position, so the signature needs all of them."""
    path = exported(tmp_path, models.Sums(), Z, Z + 1, dynamic=BATCH)
    message = "the signature has outputs 's'; the program has 'OUTPUT__0', 'OUTPUT__1'"
    with pytest.raises(LoadError, match=message):
        await started(path, signature=signature("a b", "s"))


FIXED = [one for one in Datatype if one is not Datatype.BYTES]


@pytest.mark.parametrize("datatype", FIXED, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1, 2)], ids=str)
async def test_every_datatype_round_trip(
    tmp_path: Path, datatype: Datatype, shape: tuple[int, ...]
) -> None:
    """The output of the identity model equals its input bit for bit."""
    tensor = TensorMetadata("x", datatype, shape)
    metadata = ModelMetadata(
        name="m", inputs=(tensor,), outputs=(TensorMetadata("y", datatype, shape),)
    )
    model = await started(scripted(tmp_path, models.Identity()), signature=metadata)
    bits = np.arange(int(np.prod(shape))).astype(datatype.numpy_dtype).reshape(shape)
    sent = array_tensor("x", bits, datatype)
    reply = await model(InferRequest(model=M, inputs=(sent,)))
    assert (sent.renamed("y"),) == reply.outputs
    await model.stop()


async def test_an_exported_program_supports_bf16(tmp_path: Path) -> None:
    """BF16 tensors pass as bit patterns."""
    path = exported(tmp_path, models.Identity(), torch.zeros(3, dtype=torch.bfloat16))
    model = await started(path)
    sent = array_tensor("x", np.array([1, 0x3F80, 0x8000], np.uint16), Datatype.BF16)
    reply = await model(InferRequest(model=M, inputs=(sent,)))
    assert (sent.renamed("OUTPUT__0"),) == reply.outputs
    await model.stop()


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    assert isinstance(tensor.data, ArrayData)
    return tensor.data.array


@pytest.mark.parametrize("kind", ["torchscript", "exported"])
async def test_a_program_cannot_change_the_request(tmp_path: Path, kind: str) -> None:
    """A program that writes into its input gets a copy."""
    if kind == "exported":
        model = await started(exported(tmp_path, models.Overwrites(), torch.zeros(4, 3)))
    else:
        path = scripted(tmp_path, models.Overwrites())
        model = await started(path, signature=signature("x", "y"))
    mine = A.copy()
    reply = await infer(model, x=mine)
    assert (A.tolist(), (A + 1).tolist()) == (mine.tolist(), array_of(reply.outputs[0]).tolist())
    await model.stop()


@pytest.mark.parametrize("writeable", [True, False])
async def test_a_read_only_program_shares_the_memory(tmp_path: Path, writeable: bool) -> None:
    """Neither input nor output is copied, read-only inputs included."""
    model = await started(exported(tmp_path, models.Same(), torch.zeros(4, 3)))
    mine = A.copy()
    mine.flags.writeable = writeable
    reply = await infer(model, x=mine)
    assert np.shares_memory(mine, array_of(reply.outputs[0]))
    await model.stop()


async def test_unaligned_and_strided_inputs_are_copied(tmp_path: Path) -> None:
    """Views into received messages and arrays with gaps have the right sums."""
    model = await started(exported(tmp_path))
    body = b"x" + A.tobytes()
    unaligned = np.frombuffer(body, np.uint8)[1:].view("<f4").reshape(4, 3)
    strided = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    assert (False, False) == (unaligned.flags.aligned, unaligned.flags.writeable)
    found = arrays(await infer(model, a=unaligned, b=strided))
    assert (A + strided).tolist() == found["sum"]
    await model.stop()


async def test_outputs_do_not_share_the_models_state(tmp_path: Path) -> None:
    """A reply does not change when the model changes its own tensors."""
    model = await started(exported(tmp_path, models.Counts()), warm_up=0)
    x = np.zeros((2, 3), np.float32)
    first, second = await infer(model, x=x), await infer(model, x=x)
    assert ([1.0], [2.0]) == (
        array_of(first.outputs[0]).tolist(),
        array_of(second.outputs[0]).tolist(),
    )
    await model.stop()


@pytest.mark.parametrize("module", [models.Counts(), models.Keeps()], ids=["buffer", "view"])
@pytest.mark.parametrize("lowered", [False, True])
async def test_a_stateful_program_has_only_one_instance(
    tmp_path: Path, module: Any, lowered: bool
) -> None:
    """The load error names the buffer that several instances would share."""
    path = exported(tmp_path, module, lowered=lowered)
    name = next(name for name, _ in module.named_buffers())
    message = f"each call changes its buffer '{name}', which 2 instances would share"
    with pytest.raises(LoadError, match=message):
        await started(path, instances=2)
    await (await started(path)).stop()


async def test_instances_run_at_once(tmp_path: Path) -> None:
    """As many inferences run concurrently as there are instances."""
    path = exported(tmp_path, models.Identity(), torch.zeros(2), dynamic={"x": {0: models.BATCH}})
    metadata = ModelMetadata(name="m", inputs=(fp32("X", -1),), outputs=(fp32("Y", -1),))
    model = await started(path, signature=metadata, instances=3)
    meeting = Meeting(3)
    program = model._program
    assert program is not None
    call = program.call

    def met(tensors: Any) -> Any:
        meeting()
        return call(tensors)

    object.__setattr__(program, "call", met)
    await infer_all(model, 6)
    assert 6 == meeting.come


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((65, 65), "<= 64"), ((2, 3), r"Guard failed|Expected input")],
    ids=["too large", "unlike"],
)
async def test_sizes_beyond_the_export_are_an_invalid_request(
    tmp_path: Path, sizes: tuple[int, int], message: str
) -> None:
    """The guards of the program name the supported sizes."""
    model = await started(exported(tmp_path))
    a, b = (np.zeros((size, 3), np.float32) for size in sizes)
    with pytest.raises(
        InvalidRequest, match=f"does not support inputs of these shapes: .*({message})"
    ):
        await infer(model, a=a, b=b)
    await model.stop()


async def test_a_torchscript_failure_is_reported_without_trace(tmp_path: Path) -> None:
    """The error has only the last line, which names the cause."""
    metadata = ModelMetadata(
        name="m", inputs=(fp32("a", -1), fp32("b", -1)), outputs=(fp32("s", -1), fp32("d", -1))
    )
    model = await started(scripted(tmp_path, models.Sums()), signature=metadata)
    one, other = np.zeros(2, np.float32), np.zeros(3, np.float32)
    with pytest.raises(UpstreamError, match="failed: RuntimeError: The size of tensor a") as caught:
        await infer(model, a=one, b=other)
    assert "TorchScript" not in caught.value.message
    await model.stop()


async def test_too_little_memory_is_overloaded(tmp_path: Path) -> None:
    """Later requests that need less memory succeed."""
    metadata = ModelMetadata(name="m", inputs=(fp32("x", 1),), outputs=(fp32("y", 1),))
    model = await started(scripted(tmp_path, models.Huge()), signature=metadata)
    with pytest.raises(Overloaded, match=r"has not enough memory on cpu for this request: .*alloc"):
        await infer(model, x=np.ones(1, np.float32))
    assert {"y": [0.0]} == arrays(await infer(model, x=np.zeros(1, np.float32)))
    await model.stop()


async def failing(path: Path, error: Exception) -> TorchBackend:
    """Return a model whose calls raise *error*."""
    model = await started(path)
    assert model._program is not None

    def fail(_tensors: Any) -> Any:
        raise error

    object.__setattr__(model._program, "call", fail)
    return model


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        torch.AcceleratorError("CUDA error: out of memory, of pages to lock"),
    ],
)
async def test_out_of_memory_on_a_gpu_is_overloaded(tmp_path: Path, error: Exception) -> None:
    """The model stays ready."""
    model = await failing(exported(tmp_path), error)
    with pytest.raises(Overloaded, match="not enough memory on cpu for this request: CUDA"):
        await infer(model, a=A, b=B)
    assert await model(ModelReadyRequest(model=M)) is True
    await model.stop()


async def test_a_model_on_a_failed_gpu_is_not_ready(tmp_path: Path) -> None:
    """It can still be stopped."""
    error = torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with ...")
    model = await failing(exported(tmp_path), error)
    with capture_logs() as logs, pytest.raises(UpstreamError, match="failed: AcceleratorError: "):
        await infer(model, a=A, b=B)
    assert "device lost" in [line["event"] for line in logs]
    assert await model(ModelReadyRequest(model=M)) is False
    await model.stop()
    assert not model._runners


@pytest.mark.parametrize(
    ("module", "metadata", "message"),
    [
        (models.Sums(), None, "no datatypes and shapes; expected a 'signature'.*has inputs 'a', 'b'"),
        (models.Sums(), signature("a", "s"), "has inputs 'a'; the program has inputs 'a', 'b'"),
        (models.Sums(), signature("a c", "s d"), "names 'a' as the program does, but not 'c'"),
        (models.Sums(), signature("a b", "s"), "returned 2 tensors; the signature has 1"),
        (models.Named(), signature("a b", "s"), "the program returned no 's'; it returned sum, difference"),
        (models.Text(), signature("x", "y"), "argument 'name' of forward is a str; expected a Tensor"),
        (models.Lists(), signature("x", "y"), "returned a list as 'y'; expected a tensor"),
        (models.Complex(), signature("x", "y"), "'y' as torch.complex64, .*which is not a supported datatype"),
        (models.Weight(), signature("x", "y"), r"output 'y' of shape \[3\]; its metadata has \[-1, 3\]"),
        (
            models.Identity(),
            ModelMetadata(
                name="m",
                inputs=(TensorMetadata("x", Datatype.BYTES, (-1,)),),
                outputs=(fp32("y"),),
            ),
            "'x' is BYTES, which PyTorch .* does not support",
        ),
    ],
    ids=[
        "none", "input missing", "mixed names", "output missing", "names", "argument", "lists",
        "complex", "shape", "bytes",
    ],
)  # fmt: skip
async def test_a_wrong_signature_is_a_load_error(
    tmp_path: Path, module: Any, metadata: ModelMetadata | None, message: str
) -> None:
    """TorchScript runs once with zeros, and its outputs are compared with the signature."""
    with pytest.raises(LoadError, match=message) as caught:
        await started(scripted(tmp_path, module), signature=metadata)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            signature("a b", "sum other"),
            "has output 'other'; the program has 'sum', 'difference'",
        ),
        (
            ModelMetadata(name="m", inputs=(fp32("a"), fp32("b", -1, 4)), outputs=(fp32("sum"),)),
            r"input 'b' has shape \[-1, 4\]; the program's has \[-1, 3\]",
        ),
        (
            ModelMetadata(
                name="m",
                inputs=(fp32("a"), TensorMetadata("b", Datatype.FP64, (-1, 3))),
                outputs=(fp32("sum"),),
            ),
            "input 'b' is FP64; the program's is FP32",
        ),
    ],
    ids=["output", "shape", "datatype"],
)
async def test_a_signature_unlike_the_program_is_rejected(
    tmp_path: Path, metadata: ModelMetadata, message: str
) -> None:
    """The error names the difference between the signature and the exported program."""
    with pytest.raises(LoadError, match=message):
        await started(exported(tmp_path), signature=metadata)


async def test_unsigned_integers_missing_in_pytorch_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the datatype and the release of PyTorch."""
    path = scripted(tmp_path, models.Identity())
    monkeypatch.delattr(torch, "uint16")
    tensor = TensorMetadata("x", Datatype.UINT16, (1,))
    metadata = ModelMetadata(name="m", inputs=(tensor,), outputs=(fp32("y"),))
    with pytest.raises(LoadError, match=r"'x' is UINT16, which PyTorch \d.* does not support"):
        await started(path, signature=metadata)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
async def test_an_absent_gpu_is_a_load_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """The error names the device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = exported(tmp_path)
    model = TorchBackend("m", path, "1", TorchOptions(device=device))
    message = f"{path} cannot be loaded: device '{device}' is not available: .*no CUDA device"
    with pytest.raises(LoadError, match=message):
        await model.start()


async def test_auto_falls_back_to_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the device `auto` is the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = TorchBackend("m", exported(tmp_path))
    await model.start()
    assert "cpu" == str(model._device)
    await model.stop()


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:"])
def test_an_unknown_device_is_rejected(device: str) -> None:
    """Only auto, cpu and cuda devices are valid."""
    with pytest.raises(
        ValueError, match=f"option 'device' is '{device}'; expected auto, cpu, cuda or"
    ):
        TorchOptions(device=device)


def state_dict(path: Path) -> None:
    torch.save(models.Weight().state_dict(), path)


def whole_module(path: Path) -> None:
    torch.save({"model": [1]}, path, _use_new_zipfile_serialization=False)


def junk(path: Path) -> None:
    path.write_bytes(b"junk")


def cut(path: Path) -> None:
    scripted(path.parent, models.Same())
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (None, "the file does not exist"),
        (state_dict, "it is a pickle of weights or of a module"),
        (whole_module, "it is a pickle, which can run any code; expected TorchScript"),
        (junk, "it is no zip archive"),
        (cut, "it is no zip archive"),
    ],
    ids=["missing", "state dict", "old pickle", "junk", "cut"],
)
async def test_load_errors_name_the_file_in_one_line(
    tmp_path: Path, write: Any, message: str
) -> None:
    """The text has model, file and cause; pickles are never loaded."""
    path = tmp_path / "model.pt"
    if write is not None:
        write(path)
    with pytest.raises(LoadError, match=message) as caught:
        await started(path, signature=signature("x", "y"))
    text = caught.value.message
    assert text.startswith(f"model 'm version 1': {path} cannot be loaded: ")
    assert "\n" not in text


class Trap:
    """Fails the test when it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


async def test_sample_inputs_are_not_unpickled(tmp_path: Path) -> None:
    """A file whose sample inputs are an arbitrary pickle is rejected."""
    path = exported(tmp_path)
    trapped = io.BytesIO()
    torch.save(Trap(), trapped)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            sample = name.endswith("sample_inputs/model.pt")
            archive.writestr(name, trapped.getvalue() if sample else content)
    with pytest.raises(
        LoadError, match="sample inputs are a pickle with other objects than tensors"
    ):
        await started(path)


async def test_missing_pytorch_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the command that installs it."""
    path = exported(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LoadError, match=r"PyTorch is not installed: pip install .*\[torch\]"):
        await started(path)


async def test_warm_up_shapes(tmp_path: Path) -> None:
    """Where ones do not fit, the configuration has shapes, or disables the warm-up."""
    metadata = ModelMetadata(
        name="m",
        inputs=(fp32("a", -1, -1), fp32("b", -1, 3)),
        outputs=(fp32("s", -1, 2), fp32("d", -1, 2)),
    )
    path = scripted(tmp_path, models.Sums())
    with pytest.raises(LoadError, match=r"the warm-up failed: .*its metadata has"):
        await started(path, signature=metadata)
    with pytest.raises(LoadError, match="the warm-up failed: The size of tensor a"):
        await started(path, signature=metadata, shapes={"a": (2, 2)})
    await (await started(path, signature=metadata, warm_up=0)).stop()


async def test_the_warm_up_runs_the_configured_times(tmp_path: Path) -> None:
    """One inference after three warm-up runs is the fourth call."""
    module = models.Counts()
    model = await started(exported(tmp_path, module), warm_up=3)
    assert [4.0] == array_of(
        (await infer(model, x=np.zeros((2, 3), np.float32))).outputs[0]
    ).tolist()
    await model.stop()


async def test_from_spec_creates_a_model(tmp_path: Path) -> None:
    """The specification has path, versions, device, warm-up, labels and limits."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
    exported(tmp_path / "1")
    scripted(tmp_path / "2", models.Named())
    (tmp_path / "labels.txt").write_text("a\nb\n")
    before = torch.get_num_threads()
    options = {
        "device": "cpu",
        "threads": str(before),
        "warm_up": "2",
        "warm_up_shapes": {"a": ["3", "3"], "b": ["3", "3"]},
        "max_batch_size": "4",
        "labels": {"sum": "labels.txt"},
        "versions": ["1", "2"],
        "instances": "2",
        "queue": "1",
    }
    spec = ModelSpec(
        name="m", path=tmp_path, options=options, signature=signature("a b", "sum difference")
    )
    model = from_spec(spec)
    await model.start()
    for version in ("1", "2"):
        metadata = await model(ModelMetadataRequest(model=ModelRef("m", version)))
        assert (("1", "2"), 4, {"sum": ("a", "b")}) == (
            metadata.versions,
            metadata.max_batch_size,
            metadata.labels,
        )
    await model.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"warmup": "1"},
            "has an unknown option 'warmup'; expected one of device, threads, warm_up",
        ),
        ({"device": "tpu"}, "option 'device' is 'tpu'"),
        ({"warm_up": "yes"}, "option 'warm_up' is 'yes'; expected a whole number of at least 0"),
        ({"warm_up_shapes": {"a": "3"}}, "'warm_up_shapes' has '3'; expected a list of dim"),
        ({"warm_up_shapes": {"a": ["-1"]}}, "expected a list of dimensions"),
    ],
)
def test_from_spec_rejects_invalid_options(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    """The error names the option and the expected value."""
    (tmp_path / "1").mkdir()
    with pytest.raises(ValueError, match=re.escape(message)):
        from_spec(ModelSpec(name="m", path=tmp_path, options=options))


def test_from_spec_needs_a_path() -> None:
    """A model has no default path."""
    with pytest.raises(ValueError, match="model 'm' has no 'path'"):
        from_spec(ModelSpec(name="m"))
