"""PyTorch models: TorchScript and exported programs, on the CPU or on a GPU.

Here: what is checked when a model is loaded, and how it is run. In `torch_files`: what a file is.
In `torch_programs`: what it says of itself. In `torch_tensors`: arrays and tensors. In
`torch_devices`: threads, streams and pinned memory. PyTorch is imported when the first model is
loaded.

A file is a program of its author's: who loads one runs it, with all that this process may do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from gateway.backends.base import Backend, Inputs, Job, LoadError
from gateway.backends.model_files import one_line, read_labels, zeros
from gateway.backends.model_spec import ModelSpec
from gateway.backends.repository import repository
from gateway.backends.torch.archive_check import FILE_NAMES, NotServableError, kind_of
from gateway.backends.torch.devices import CpuRunner, Runner, device_of, stream_runner
from gateway.backends.torch.programs import Program, open_program
from gateway.backends.torch.signature import declared_by, matched_inputs, wanted_outputs
from gateway.backends.torch.tensors import datatype_of, dtype_of
from gateway.backends.validation import Arrays, Signature
from gateway.backends.versions import Versions
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest, Overloaded
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensor import Shape

log = structlog.get_logger(__name__)

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
# What PyTorch says of sizes that a program was not exported for.
_OTHER_SIZES = ("Guard failed", "Expected input at")
_NO_MEMORY = re.compile("can't allocate memory|CUDA error: out of memory")
_TEXT_LIMIT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    """How a model is run.

    Attributes:
        device: auto, cpu, cuda or cuda:N; auto takes the first GPU, or else the CPU.
        threads: Within one operation on the CPU. PyTorch has one number for a whole process, which
            the model loaded last decides; None leaves it.
        warm_up: How often each instance runs with zeros before the model is ready.
        shapes: Of the inputs to warm up with; else those the program was exported with, or 1 for
            every dimension that varies.
        signature: Inputs and outputs; TorchScript needs it, for an exported program it gives other
            names.
        max_batch_size: See `ModelMetadata`; the file does not tell.
        labels: File of class labels, one a line, for an output.
    """

    device: str = "auto"
    threads: int | None = None
    warm_up: int = 1
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    signature: ModelMetadata | None = None
    max_batch_size: int | None = None
    labels: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise ValueError(f"device is {self.device!r}, needed is auto, cpu, cuda or cuda:N")


class TorchBackend(Backend):
    """One file of PyTorch as a model.

    The instances share the weights. On a GPU each has a stream and pinned memory of its own.

    Args:
        name: Of the model.
        path: Of the file.
        version: Of the model; a number.
        options: How it is run.
        settings: `instances` and `queue` of `Backend`.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        version: str = "1",
        options: TorchOptions = TorchOptions(),
        **settings: Any,
    ) -> None:
        super().__init__(name, version, **settings)
        self._path = path
        self._options = options
        self._torch: Any = None
        self._device: Any = None
        self._program: Program | None = None
        self._own_names: tuple[str, ...] = ()
        self._runners: list[Runner] = []
        self._described: ModelMetadata | None = None
        self._lost = False

    @property
    def loaded(self) -> bool:
        """Whether the model can take inferences; no longer once its GPU has failed."""
        return super().loaded and not self._lost

    @property
    def metadata(self) -> ModelMetadata:
        """The model's signature, from the configuration or from an exported program."""
        if self._described is None:
            raise self._not_ready()
        return self._described

    def load(self) -> None:
        """Open the file, and run it once on each instance.

        Raises:
            LoadError: PyTorch is not installed, the file is missing, broken or a pickle, the device
                is not there, or the program and its signature do not agree.
        """
        torch = self._torch = self._imported()
        try:
            self._device = device_of(torch, self._options.device)
            program = open_program(torch, self._path, kind_of(self._path), self._device)
            self._check_state(program)
            self._described = self._describe(program)
            self._own_names = matched_inputs(program, self._described.inputs)
            self._program = program
            self._runners = [self._runner(program) for _ in range(self._instances)]
            if self._options.threads is not None:
                torch.set_num_threads(self._options.threads)
            self._warm_up(program)
        except Exception as error:
            self.unload()
            raise self._load_error(error) from error
        log.info(
            "model loaded",
            model=str(self.model),
            file=str(self._path),
            kind=program.kind.value,
            device=str(self._device),
        )

    def unload(self) -> None:
        """Let go of the program, its memory, and what is kept for the next inference."""
        self._program = None
        self._runners = []
        self._described = None
        self._give_memory_back()

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Run the model; copies inputs, but for exported programs that leave them alone.

        Raises:
            InvalidRequest: An exported program was not made for inputs of these sizes.
            Overloaded: There is not enough memory, of the GPU or of this machine.
        """
        program = self._program
        if program is None:
            raise self._not_ready()
        declared = self.metadata.inputs
        given = [(tensor.datatype or Datatype.FP32, inputs[tensor.name]) for tensor in declared]

        def call(tensors: Sequence[Any]) -> Sequence[Any]:
            result = program.call(dict(zip(self._own_names, tensors, strict=True)))
            return self._outputs(result, job.outputs)

        try:
            found = self._runners[job.instance](call, given)
        except Exception as error:
            failure = self._failure(error)
            if failure is error:
                raise
            raise failure from error
        return dict(zip(job.outputs, found, strict=True))

    def unloadable(self, text: str) -> LoadError:
        """Return the error that says why the model cannot be loaded."""
        return LoadError(
            f"model {str(self.model)!r}: {self._path} cannot be loaded: {text}", model=self.model
        )

    def _imported(self) -> Any:
        try:
            import torch  # noqa: PLC0415  # an extra, and slow to import
        except ImportError as error:
            raise self.unloadable(
                "PyTorch is not installed: pip install 'tensor-gateway[torch]'"
            ) from error
        return torch

    def _load_error(self, error: Exception) -> LoadError:
        if isinstance(error, LoadError):
            return error
        if isinstance(error, FileNotFoundError):
            return self.unloadable("there is no such file")
        return self.unloadable(one_line(_cause(error)))

    def _check_state(self, program: Program) -> None:
        if program.state and self._instances > 1:
            raise NotServableError(
                f"each call changes its buffer {program.state!r}, which {self._instances} "
                "instances would share: set 'instances' to 1"
            )

    def _runner(self, program: Program) -> Runner:
        if self._device.type == "cpu":
            return CpuRunner(self._torch, copies=program.writes_inputs)
        return stream_runner(self._torch, self._device)

    def _describe(self, program: Program) -> ModelMetadata:
        options = self._options
        signature = declared_by(program, options.signature, self.model.name)
        for tensor in (*signature.inputs, *signature.outputs):
            if tensor.datatype is not None and dtype_of(self._torch, tensor.datatype) is None:
                raise NotServableError(
                    f"{tensor.name!r} is {tensor.datatype.name}, which this PyTorch "
                    f"({self._torch.__version__}) has no tensors of"
                )
        batch = options.max_batch_size
        return ModelMetadata(
            name=self.model.name,
            versions=(self.model.version,),
            platform=f"pytorch_{program.kind.name.lower()}",
            inputs=signature.inputs,
            outputs=signature.outputs,
            max_batch_size=signature.max_batch_size if batch is None else batch,
            labels={**signature.labels, **read_labels(options.labels, self.unloadable)},
        )

    def _warm_up(self, program: Program) -> None:
        """Run each instance: what the signature says wrong shows now, and the first call is fast.

        Raises:
            NotServableError: The program fails, or gives something else than is declared.
        """
        metadata = self.metadata
        wanted = tuple(tensor.name for tensor in metadata.outputs)
        signature = Signature(metadata, self.model.version)
        own = dict(zip((tensor.name for tensor in metadata.inputs), self._own_names, strict=True))
        inputs = {
            tensor.name: zeros(
                tensor,
                self._options.shapes.get(tensor.name) or program.examples.get(own[tensor.name]),
            )
            for tensor in metadata.inputs
        }
        try:
            for instance in range(self._instances):
                for _ in range(self._options.warm_up):
                    job = Job(self.model, outputs=wanted, instance=instance)
                    signature.outputs(self.infer(inputs, job), wanted)
        except Exception as error:
            raise NotServableError(f"the warm-up failed: {one_line(error)}") from error

    def _outputs(self, result: Any, wanted: Sequence[str]) -> list[Any]:
        """Return the tensors of *wanted* outputs."""
        torch = self._torch
        tensors = wanted_outputs(result, self.metadata.outputs, wanted)
        for name, tensor in zip(wanted, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"it returned a {type(tensor).__name__} as {name!r}, not a tensor")
            if tensor.layout is not torch.strided or datatype_of(torch, tensor.dtype) is None:
                raise TypeError(
                    f"it returned {name!r} as {tensor.dtype}, {tensor.layout}, which no datatype is"
                )
        return tensors

    def _failure(self, error: Exception) -> Exception:
        """Return the error that *error* is answered with."""
        cause = _cause(error)
        text = one_line(cause)
        if isinstance(error, self._torch.OutOfMemoryError) or _NO_MEMORY.search(text):
            self._give_memory_back()
            return Overloaded(
                f"model {str(self.model)!r} has not enough memory on {self._device} for this "
                f"request: {text[:_TEXT_LIMIT]}",
                model=self.model,
            )
        if text.startswith(_OTHER_SIZES):
            return InvalidRequest(
                f"model {str(self.model)!r} was not made for inputs of these sizes: {text}",
                model=self.model,
            )
        if isinstance(error, getattr(self._torch, "AcceleratorError", ())):
            # What CUDA does after such an error is not defined: nothing on this GPU runs any more.
            log.error("device lost", model=str(self.model), device=str(self._device), reason=text)
            self._lost = True
        return cause

    def _give_memory_back(self) -> None:
        if self._device is not None and self._device.type == "cuda":
            self._torch.cuda.empty_cache()


def _cause(error: Exception) -> Exception:
    """Return what went wrong in the words of its last line, after the trace of TorchScript."""
    text = str(error)
    if "TorchScript interpreter" not in text:
        return error
    return RuntimeError(text.strip().splitlines()[-1].removeprefix("RuntimeError: "))


def from_plan(plan: ModelSpec) -> Versions:
    """Return the PyTorch model of *plan*.

    Options: `device` (auto, cpu, cuda, cuda:N), `threads`, `warm_up` (times), `warm_up_shapes`
    (input name to shape), `max_batch_size`, `labels` (output name to file, one label a line, beside
    the model), `versions`, `instances`, `queue`.

    Raises:
        LoadError: There is nothing at the plan's path, or a version is not there.
        ValueError: An option is wrong, or there is no path.
    """
    plan.only(
        "device", "threads", "warm_up", "warm_up_shapes", "max_batch_size", "labels", "versions",
        "instances", "queue",
    )  # fmt: skip
    if plan.path is None:
        raise ValueError(f"model {plan.name!r} needs 'path': a model file, or a folder of versions")
    given = plan.options
    folder = plan.path if plan.path.is_dir() else plan.path.parent
    options = TorchOptions(
        device=str(given.get("device", "auto")),
        threads=plan.integer("threads", 1) if "threads" in given else None,
        warm_up=plan.integer("warm_up", 1, least=0),
        shapes={
            name: _shape(plan.name, shape) for name, shape in plan.mapping("warm_up_shapes").items()
        },
        signature=plan.signature,
        max_batch_size=plan.integer("max_batch_size", 0, 0) if "max_batch_size" in given else None,
        labels={name: folder / str(file) for name, file in plan.mapping("labels").items()},
    )
    settings = {
        "instances": plan.integer("instances", 1),
        "queue": plan.integer("queue", 256, least=0),
    }
    return repository(
        plan.name,
        plan.path,
        lambda file, version: TorchBackend(plan.name, file, version, options, **settings),
        file_names=FILE_NAMES,
        versions=plan.texts("versions"),
    )


def _shape(model: str, dims: Any) -> Shape:
    texts = [] if isinstance(dims, str) else [str(dim) for dim in dims]
    if isinstance(dims, str) or not all(text.isascii() and text.isdecimal() for text in texts):
        raise ValueError(
            f"model {model!r}: option 'warm_up_shapes' has {dims!r}, needed is a list of dimensions"
        )
    return tuple(map(int, texts))
