"""PyTorch models on the CPU: TorchScript and exported programs, written here and served."""

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

from gateway.backends.base import Job, LoadError
from gateway.backends.model_spec import ModelSpec
from gateway.backends.torch.archive_check import ProgramKind
from gateway.backends.torch.backend import TorchBackend, TorchOptions, from_spec
from gateway.backends.torch.programs import open_program
from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest, ModelReadyRequest
from gateway.ir.context import ModelRef
from gateway.ir.data import ArrayData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest, NotReady, Overloaded, UpstreamError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Tensor, array_tensor, as_numpy
from tests.unit.backends.test_instances import Meeting, ask_all

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


async def ask(model: TorchBackend, **inputs: npt.NDArray[Any]) -> InferResponse:
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
async def test_torchscript_takes_its_signature_from_the_configuration(
    tmp_path: Path, module: Any, outputs: str
) -> None:
    """Outputs are told by their names where they have some, else by their places."""
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
    found = arrays(await ask(model, b=B, a=A))
    assert {name: expected[name].tolist() for name in outputs.split()} == found
    await model.stop()


async def test_inputs_of_other_names_go_by_their_places(tmp_path: Path) -> None:
    """A signature with none of the program's names is in the order of its arguments."""
    model = await started(scripted(tmp_path, models.Sums()), signature=signature("p q", "s d"))
    assert (A - B).tolist() == arrays(await ask(model, q=B, p=A))["d"]
    await model.stop()


async def test_exported_program_tells_its_own_signature(tmp_path: Path) -> None:
    """Names, datatypes and shapes are the program's; what it was exported with varying varies."""
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
    assert expected == arrays(await ask(model, a=A, b=B))
    await model.stop()
    with pytest.raises(NotReady, match="is not loaded"):
        _ = model.metadata


async def test_outputs_without_names_are_numbered(tmp_path: Path) -> None:
    """As model servers call them; a signature gives them names of its own."""
    path = exported(tmp_path, models.Sums(), Z, Z + 1, dynamic=BATCH)
    model = await started(path)
    assert ["OUTPUT__0", "OUTPUT__1"] == list(arrays(await ask(model, a=A, b=B)))
    await model.stop()
    model = await started(path, signature=signature("p q", "s d"))
    assert (A - B).tolist() == arrays(await ask(model, p=A, q=B))["d"]
    await model.stop()


async def test_arguments_in_structures_are_inputs(tmp_path: Path) -> None:
    """A dict's tensors are inputs of their own; numbers stay as they were exported, None is gone."""
    path = exported(tmp_path, models.Nested(), {"left": Z, "right": Z + 1}, 4)
    model = await started(path)
    assert ("pair_left", "pair_right") == tuple(one.name for one in model.metadata.inputs)
    ones = np.ones((2, 3), np.float32)
    assert {"OUTPUT__0": (ones * 5).tolist()} == arrays(
        await ask(model, pair_left=ones, pair_right=ones)
    )
    await model.stop()


@pytest.mark.parametrize("names", ["x", "x y"])
async def test_optional_inputs_may_be_left_out(tmp_path: Path, names: str) -> None:
    """What has a default is an input when the signature says so."""
    model = await started(scripted(tmp_path, models.Optional()), signature=signature(names, "z"))
    found = arrays(await ask(model, **dict.fromkeys(names.split(), A)))
    assert {"z": (A * (1 + len(names.split()))).tolist()} == found
    await model.stop()


async def test_frozen_torchscript_is_served(tmp_path: Path) -> None:
    """A program without modules has no training mode to leave."""
    path = models.freeze(models.Weight(), tmp_path / "model.pt")
    metadata = ModelMetadata(name="m", inputs=(fp32("x"),), outputs=(fp32("y", 3),))
    model = await started(path, signature=metadata)
    assert {"y": [0.0, 1.0, 2.0]} == arrays(await ask(model, x=A))
    await model.stop()
    with pytest.raises(NotReady):
        model.infer({"x": A}, Job(M, outputs=("y",)))


async def test_exported_program_without_examples_warms_up_with_ones(tmp_path: Path) -> None:
    """Where the file keeps no example, every dimension that varies is 1."""
    path = exported(tmp_path, models.Sums(), Z, Z + 1, dynamic=BATCH, bare=True)
    model = await started(path)
    assert {} == getattr(model._program, "examples", None)
    assert (A + B).tolist() == arrays(await ask(model, a=A, b=B))["OUTPUT__0"]
    await model.stop()


def test_a_program_is_moved_to_its_device(tmp_path: Path) -> None:
    """Weights, and tensors that the program makes itself, are where its inputs will be."""
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
async def test_exported_programs_of_more_than_tensors(
    tmp_path: Path, module: Any, arguments: Any, how: Any, message: str
) -> None:
    """What no protocol carries is named when the model is loaded."""
    with pytest.raises(LoadError, match=message):
        await started(exported(tmp_path, module, *arguments, **how))


async def test_outputs_that_a_signature_does_not_count(tmp_path: Path) -> None:
    """Outputs without names go by their places, so all of them have a name in the signature."""
    path = exported(tmp_path, models.Sums(), Z, Z + 1, dynamic=BATCH)
    message = "the signature has outputs 's'; the program has 'OUTPUT__0', 'OUTPUT__1'"
    with pytest.raises(LoadError, match=message):
        await started(path, signature=signature("a b", "s"))


FIXED = [one for one in Datatype if one is not Datatype.BYTES]


@pytest.mark.parametrize("datatype", FIXED, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1, 2)], ids=str)
async def test_every_datatype_goes_in_and_out(
    tmp_path: Path, datatype: Datatype, shape: tuple[int, ...]
) -> None:
    """What the model gives back is bit for bit what it was given."""
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


async def test_exported_program_tells_bf16(tmp_path: Path) -> None:
    """BF16 is declared as such and goes through as bit patterns."""
    path = exported(tmp_path, models.Identity(), torch.zeros(3, dtype=torch.bfloat16))
    model = await started(path)
    sent = array_tensor("x", np.array([1, 0x3F80, 0x8000], np.uint16), Datatype.BF16)
    reply = await model(InferRequest(model=M, inputs=(sent,)))
    assert (sent.renamed("OUTPUT__0"),) == reply.outputs
    await model.stop()


def laid(tensor: Tensor) -> npt.NDArray[Any]:
    assert isinstance(tensor.data, ArrayData)
    return tensor.data.array


@pytest.mark.parametrize("kind", ["torchscript", "exported"])
async def test_a_program_that_writes_into_its_input_changes_no_request(
    tmp_path: Path, kind: str
) -> None:
    """What came in stays as it was: others may be given it too."""
    if kind == "exported":
        model = await started(exported(tmp_path, models.Overwrites(), torch.zeros(4, 3)))
    else:
        path = scripted(tmp_path, models.Overwrites())
        model = await started(path, signature=signature("x", "y"))
    mine = A.copy()
    reply = await ask(model, x=mine)
    assert (A.tolist(), (A + 1).tolist()) == (mine.tolist(), laid(reply.outputs[0]).tolist())
    await model.stop()


@pytest.mark.parametrize("writeable", [True, False])
async def test_an_exported_program_that_only_reads_is_given_the_very_memory(
    tmp_path: Path, writeable: bool
) -> None:
    """No copy on the way in, none on the way out; not of a view of a received message either."""
    model = await started(exported(tmp_path, models.Same(), torch.zeros(4, 3)))
    mine = A.copy()
    mine.flags.writeable = writeable
    reply = await ask(model, x=mine)
    assert np.shares_memory(mine, laid(reply.outputs[0]))
    await model.stop()


async def test_unaligned_read_only_and_strided_inputs_are_laid_out(tmp_path: Path) -> None:
    """Views into a received message, and arrays with gaps, give the right sums."""
    model = await started(exported(tmp_path))
    body = b"x" + A.tobytes()
    unaligned = np.frombuffer(body, np.uint8)[1:].view("<f4").reshape(4, 3)
    strided = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    assert (False, False) == (unaligned.flags.aligned, unaligned.flags.writeable)
    found = arrays(await ask(model, a=unaligned, b=strided))
    assert (A + strided).tolist() == found["sum"]
    await model.stop()


async def test_weights_are_given_as_a_copy(tmp_path: Path) -> None:
    """An answer that is being written does not change with the model's own tensors."""
    model = await started(exported(tmp_path, models.Counts()), warm_up=0)
    x = np.zeros((2, 3), np.float32)
    first, second = await ask(model, x=x), await ask(model, x=x)
    assert ([1.0], [2.0]) == (laid(first.outputs[0]).tolist(), laid(second.outputs[0]).tolist())
    await model.stop()


@pytest.mark.parametrize("module", [models.Counts(), models.Keeps()], ids=["buffer", "view"])
@pytest.mark.parametrize("lowered", [False, True])
async def test_instances_do_not_race_for_state(tmp_path: Path, module: Any, lowered: bool) -> None:
    """A program that changes its own buffers has one instance, and is told why."""
    path = exported(tmp_path, module, lowered=lowered)
    name = next(name for name, _ in module.named_buffers())
    message = f"each call changes its buffer '{name}', which 2 instances would share"
    with pytest.raises(LoadError, match=message):
        await started(path, instances=2)
    await (await started(path)).stop()


async def test_instances_run_at_once(tmp_path: Path) -> None:
    """As many inferences are in the program at a time as there are instances."""
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
    await ask_all(model, 6)
    assert 6 == meeting.come


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((65, 65), "<= 64"), ((2, 3), r"Guard failed|Expected input")],
    ids=["too large", "unlike"],
)
async def test_sizes_that_were_not_exported_are_the_callers_mistake(
    tmp_path: Path, sizes: tuple[int, int], message: str
) -> None:
    """The program's own guards say which size it takes."""
    model = await started(exported(tmp_path))
    a, b = (np.zeros((size, 3), np.float32) for size in sizes)
    with pytest.raises(
        InvalidRequest, match=f"does not support inputs of these shapes: .*({message})"
    ):
        await ask(model, a=a, b=b)
    await model.stop()


async def test_failure_inside_torchscript_is_told_without_its_trace(tmp_path: Path) -> None:
    """The last line says what went wrong; lines of the program's source do not help a caller."""
    metadata = ModelMetadata(
        name="m", inputs=(fp32("a", -1), fp32("b", -1)), outputs=(fp32("s", -1), fp32("d", -1))
    )
    model = await started(scripted(tmp_path, models.Sums()), signature=metadata)
    one, other = np.zeros(2, np.float32), np.zeros(3, np.float32)
    with pytest.raises(UpstreamError, match="failed: RuntimeError: The size of tensor a") as caught:
        await ask(model, a=one, b=other)
    assert "TorchScript" not in caught.value.message
    await model.stop()


async def test_too_little_memory_refuses_and_serves_on(tmp_path: Path) -> None:
    """What cannot be allocated is the gateway's limit, not its end."""
    metadata = ModelMetadata(name="m", inputs=(fp32("x", 1),), outputs=(fp32("y", 1),))
    model = await started(scripted(tmp_path, models.Huge()), signature=metadata)
    with pytest.raises(Overloaded, match=r"has not enough memory on cpu for this request: .*alloc"):
        await ask(model, x=np.ones(1, np.float32))
    assert {"y": [0.0]} == arrays(await ask(model, x=np.zeros(1, np.float32)))
    await model.stop()


async def failing(path: Path, error: Exception) -> TorchBackend:
    """Return a model that fails as a GPU does."""
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
async def test_out_of_memory_of_a_gpu_refuses(tmp_path: Path, error: Exception) -> None:
    """PyTorch's own errors for it mean the same, and the model stays ready."""
    model = await failing(exported(tmp_path), error)
    with pytest.raises(Overloaded, match="not enough memory on cpu for this request: CUDA"):
        await ask(model, a=A, b=B)
    assert await model(ModelReadyRequest(model=M)) is True
    await model.stop()


async def test_a_gpu_that_failed_is_not_ready(tmp_path: Path) -> None:
    """After an error that leaves it undefined nobody is sent there; it stops as any other."""
    error = torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with ...")
    model = await failing(exported(tmp_path), error)
    with capture_logs() as logs, pytest.raises(UpstreamError, match="failed: AcceleratorError: "):
        await ask(model, a=A, b=B)
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
async def test_a_signature_that_is_wrong_shows_at_load(
    tmp_path: Path, module: Any, metadata: ModelMetadata | None, message: str
) -> None:
    """TorchScript is run once with zeros, and what it gives is held to the signature."""
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
async def test_a_signature_that_contradicts_the_program(
    tmp_path: Path, metadata: ModelMetadata, message: str
) -> None:
    """An exported program knows better, and both are named."""
    with pytest.raises(LoadError, match=message):
        await started(exported(tmp_path), signature=metadata)


async def test_unsigned_numbers_that_this_pytorch_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older releases have no unsigned integers above 8 bits: the error names datatype and release."""
    path = scripted(tmp_path, models.Identity())
    monkeypatch.delattr(torch, "uint16")
    tensor = TensorMetadata("x", Datatype.UINT16, (1,))
    metadata = ModelMetadata(name="m", inputs=(tensor,), outputs=(fp32("y"),))
    with pytest.raises(LoadError, match=r"'x' is UINT16, which PyTorch \d.* does not support"):
        await started(path, signature=metadata)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
async def test_devices_that_are_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """A GPU that is asked for by name is there, or the model is not loaded."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = exported(tmp_path)
    model = TorchBackend("m", path, "1", TorchOptions(device=device))
    message = f"{path} cannot be loaded: device '{device}' is not available: .*no CUDA device"
    with pytest.raises(LoadError, match=message):
        await model.start()


async def test_auto_falls_back_to_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the CPU will do."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = TorchBackend("m", exported(tmp_path))
    await model.start()
    assert "cpu" == str(model._device)
    await model.stop()


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:"])
def test_unknown_device_is_a_mistake(device: str) -> None:
    """Only known devices can be asked for."""
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
    """What cannot be loaded names model, file and cause; pickles are never read."""
    path = tmp_path / "model.pt"
    if write is not None:
        write(path)
    with pytest.raises(LoadError, match=message) as caught:
        await started(path, signature=signature("x", "y"))
    text = caught.value.message
    assert text.startswith(f"model 'm version 1': {path} cannot be loaded: ")
    assert "\n" not in text


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


async def test_sample_inputs_are_not_unpickled(tmp_path: Path) -> None:
    """PyTorch falls back to reading them as any pickle: such a file is refused before."""
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


async def test_missing_pytorch_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without PyTorch the error names the extra."""
    path = exported(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LoadError, match=r"PyTorch is not installed: pip install .*\[torch\]"):
        await started(path)


async def test_shapes_to_warm_up_with(tmp_path: Path) -> None:
    """Where ones do not fit, the configuration says what does; none at all can be asked for."""
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


async def test_each_instance_warms_up_so_often(tmp_path: Path) -> None:
    """The first calls of every instance are fast: what is made on first use is there."""
    module = models.Counts()
    model = await started(exported(tmp_path, module), warm_up=3)
    assert [4.0] == laid((await ask(model, x=np.zeros((2, 3), np.float32))).outputs[0]).tolist()
    await model.stop()


async def test_plan_makes_a_model(tmp_path: Path) -> None:
    """A configuration gives path, versions, device, warm-up, labels and limits."""
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
    plan = ModelSpec(
        name="m", path=tmp_path, options=options, signature=signature("a b", "sum difference")
    )
    model = from_spec(plan)
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
def test_plan_refuses_what_it_does_not_know(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    """Options that are wrong are named with what is needed."""
    (tmp_path / "1").mkdir()
    with pytest.raises(ValueError, match=re.escape(message)):
        from_spec(ModelSpec(name="m", path=tmp_path, options=options))


def test_plan_needs_a_path() -> None:
    """There is no model without a file."""
    with pytest.raises(ValueError, match="model 'm' has no 'path'"):
        from_spec(ModelSpec(name="m"))
