"""PyTorch models: TorchScript and exported programs, on the CPU or on a GPU.

`archive_check` checks a file before it is opened, `programs` opens it, `signature` compares it with
the configuration, `devices` runs it, and `tensors` converts arrays. PyTorch is imported when the
first model is loaded.

Loading a file runs its author's code with the permissions of this process.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from gateway.api.backend import Arrays
from gateway.api.model_spec import ModelSpec
from gateway.backends.base import Inputs, Job, LoadError
from gateway.backends.model_files import FileBackend, one_line, zeros
from gateway.backends.repository import repository
from gateway.backends.torch.archive_check import FILE_NAMES, NotServableError, kind_of
from gateway.backends.torch.devices import CpuRunner, Runner, device_of, stream_runner
from gateway.backends.torch.programs import Program, open_program
from gateway.backends.torch.signature import match_inputs, resolve_signature, select_outputs
from gateway.backends.torch.tensors import datatype_of, dtype_of
from gateway.backends.validation import Signature
from gateway.backends.versions import Versions
from gateway.ir.errors import InvalidRequest, Overloaded
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape

log = structlog.get_logger(__name__)

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
# PyTorch's errors for shapes that an exported program does not support.
_SHAPE_ERRORS = ("Guard failed", "Expected input at")
_NO_MEMORY = re.compile("can't allocate memory|CUDA error: out of memory")
_TEXT_LIMIT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    """Options of a PyTorch model.

    Attributes:
        device: auto, cpu, cuda or cuda:N; auto uses the first GPU, or else the CPU.
        threads: Threads of one operation on the CPU. PyTorch has one setting per process: the last
            loaded model decides. None does not change it.
        warm_up: Number of runs with zeros on each instance before the model is ready.
        shapes: Shapes of the warm-up inputs; by default those of the export, or 1 for each
            variable dimension.
        signature: Inputs and outputs. TorchScript needs them; exported programs get other names.
        max_batch_size: See `ModelMetadata`; the file does not contain it.
        labels: Files of class labels, one per line, by output name.
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
            raise ValueError(
                f"option 'device' is {self.device!r}; expected auto, cpu, cuda or cuda:N"
            )


class TorchBackend(FileBackend):
    """One PyTorch file as a model; see `FileBackend` for the other arguments.

    The instances share the weights. On a GPU each instance has its own stream and pinned memory.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        version: str = "1",
        options: TorchOptions = TorchOptions(),
        **settings: Any,
    ) -> None:
        super().__init__(name, path, version, **settings)
        self._options = options
        self._torch: Any = None
        self._device: Any = None
        self._program: Program | None = None
        self._program_names: tuple[str, ...] = ()
        self._runners: list[Runner] = []
        self._resolved_metadata: ModelMetadata | None = None
        self._is_device_lost = False

    @property
    def is_loaded(self) -> bool:
        """Whether the model accepts inferences; False after its GPU failed."""
        return super().is_loaded and not self._is_device_lost

    @property
    def metadata(self) -> ModelMetadata:
        """The model's signature, from the configuration or from an exported program."""
        if self._resolved_metadata is None:
            raise self._not_ready()
        return self._resolved_metadata

    def check_here(self) -> None:
        """Check that the file, PyTorch and the labels are there. Raises LoadError."""
        super().check_here()
        self._import_torch()
        self.read_labels(self._options.labels)

    def load(self) -> None:
        """Open the file, and warm up each instance.

        Raises:
            LoadError: PyTorch is not installed, the file is missing, invalid or a pickle, the
                device is not available, or the program does not match its signature.
        """
        torch = self._torch = self._import_torch()
        try:
            self._device = device_of(torch, self._options.device)
            program = open_program(torch, self.path, kind_of(self.path), self._device)
            self._check_state(program)
            self._resolved_metadata = self._describe(program)
            self._program_names = match_inputs(program, self._resolved_metadata.inputs)
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
            file=str(self.path),
            kind=program.kind.value,
            device=str(self._device),
        )

    def unload(self) -> None:
        """Free the program and its memory."""
        self._program = None
        self._runners = []
        self._resolved_metadata = None
        self._release_gpu_memory()

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Run the model; inputs are copied, except for exported programs that do not change them.

        Raises:
            InvalidRequest: An exported program does not support the shapes of the inputs.
            Overloaded: The GPU or this machine has not enough memory.
        """
        program = self._program
        if program is None:
            raise self._not_ready()
        declared = self.metadata.inputs
        arrays = [(tensor.datatype or Datatype.FP32, inputs[tensor.name]) for tensor in declared]

        def call(tensors: Sequence[Any]) -> Sequence[Any]:
            result = program.call(dict(zip(self._program_names, tensors, strict=True)))
            return self._outputs(result, job.outputs)

        try:
            outputs = self._runners[job.instance](call, arrays)
        except Exception as error:
            translated = self._translate(error)
            if translated is error:
                raise
            raise translated from error
        return dict(zip(job.outputs, outputs, strict=True))

    def _import_torch(self) -> Any:
        try:
            import torch  # noqa: PLC0415  # optional, and slow to import
        except ImportError as error:
            raise self.unloadable(
                "PyTorch is not installed: pip install 'tensor-gateway[torch]'"
            ) from error
        return torch

    def _load_error(self, error: Exception) -> LoadError:
        if isinstance(error, LoadError):
            return error
        if isinstance(error, FileNotFoundError):
            return self.unloadable("the file does not exist")
        return self.unloadable(one_line(_cause(error)))

    def _check_state(self, program: Program) -> None:
        if program.state and self._instances > 1:
            raise NotServableError(
                f"each call changes its buffer {program.state!r}, which {self._instances} "
                "instances would share; expected option 'instances' to be 1"
            )

    def _runner(self, program: Program) -> Runner:
        if self._device.type == "cpu":
            return CpuRunner(self._torch, copies=program.writes_inputs)
        return stream_runner(self._torch, self._device)

    def _describe(self, program: Program) -> ModelMetadata:
        options = self._options
        signature = resolve_signature(program, options.signature, self.model.name)
        for tensor in (*signature.inputs, *signature.outputs):
            if tensor.datatype is not None and dtype_of(self._torch, tensor.datatype) is None:
                raise NotServableError(
                    f"{tensor.name!r} is {tensor.datatype.name}, which PyTorch "
                    f"{self._torch.__version__} does not support"
                )
        batch = options.max_batch_size
        return ModelMetadata(
            name=self.model.name,
            versions=(self.model.version,),
            platform=f"pytorch_{program.kind.name.lower()}",
            inputs=signature.inputs,
            outputs=signature.outputs,
            max_batch_size=signature.max_batch_size if batch is None else batch,
            labels={**signature.labels, **self.read_labels(options.labels)},
        )

    def _warm_up(self, program: Program) -> None:
        """Run each instance, to find errors in the signature and to make the first call fast.

        Raises:
            NotServableError: The program fails, or its outputs do not match the signature.
        """
        metadata = self.metadata
        outputs = tuple(tensor.name for tensor in metadata.outputs)
        signature = Signature(metadata, self.model.version)
        inputs = {
            tensor.name: zeros(
                tensor, self._options.shapes.get(tensor.name) or program.examples.get(program_name)
            )
            for tensor, program_name in zip(metadata.inputs, self._program_names, strict=True)
        }
        try:
            for instance in range(self._instances):
                for _ in range(self._options.warm_up):
                    job = Job(self.model, outputs=outputs, instance=instance)
                    signature.outputs(self.infer(inputs, job), outputs)
        except Exception as error:
            raise NotServableError(f"the warm-up failed: {one_line(error)}") from error

    def _outputs(self, result: Any, names: Sequence[str]) -> list[Any]:
        """Return the tensors of the outputs *names*."""
        torch = self._torch
        tensors = select_outputs(result, self.metadata.outputs, names)
        for name, tensor in zip(names, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                kind = type(tensor).__name__
                raise TypeError(f"the program returned a {kind} as {name!r}; expected a tensor")
            if tensor.layout is not torch.strided or datatype_of(torch, tensor.dtype) is None:
                raise TypeError(
                    f"the program returned {name!r} as {tensor.dtype}, {tensor.layout}, "
                    "which is not a supported datatype"
                )
        return tensors

    def _translate(self, error: Exception) -> Exception:
        """Return the error to raise instead of *error*."""
        cause = _cause(error)
        text = one_line(cause)
        if isinstance(error, self._torch.OutOfMemoryError) or _NO_MEMORY.search(text):
            self._release_gpu_memory()
            return Overloaded(
                f"model {str(self.model)!r} has not enough memory on {self._device} for this "
                f"request: {text[:_TEXT_LIMIT]}",
                model=self.model,
            )
        if text.startswith(_SHAPE_ERRORS):
            return InvalidRequest(
                f"model {str(self.model)!r} does not support inputs of these shapes: {text}",
                model=self.model,
            )
        if isinstance(error, getattr(self._torch, "AcceleratorError", ())):
            # After such an error the behaviour of CUDA is undefined, so the model is not ready.
            log.error("device lost", model=str(self.model), device=str(self._device), reason=text)
            self._is_device_lost = True
        return cause

    def _release_gpu_memory(self) -> None:
        if self._device is not None and self._device.type == "cuda":
            self._torch.cuda.empty_cache()


def _cause(error: Exception) -> Exception:
    """Return *error* without TorchScript's stack trace, whose last line is the reason."""
    text = str(error)
    if "TorchScript interpreter" not in text:
        return error
    return RuntimeError(text.strip().splitlines()[-1].removeprefix("RuntimeError: "))


def from_spec(spec: ModelSpec) -> Versions:
    """Return the PyTorch model of *spec* without loading it.

    Options: `device` (auto, cpu, cuda, cuda:N), `threads`, `warm_up` (number of runs),
    `warm_up_shapes` (input name to shape), `max_batch_size`, `labels` (output name to file, one
    label per line, relative to the model), `versions`, `instances`, `queue`.

    Raises:
        LoadError: The path does not exist, or has no such version.
        ValueError: An option is invalid, or the path is missing.
    """
    spec.only(
        "device", "threads", "warm_up", "warm_up_shapes", "max_batch_size", "labels", "versions",
        "instances", "queue",
    )  # fmt: skip
    options = TorchOptions(
        device=str(spec.options.get("device", "auto")),
        threads=spec.integer("threads", 1) if "threads" in spec.options else None,
        warm_up=spec.integer("warm_up", 1, least=0),
        shapes={
            name: _shape(spec.name, shape) for name, shape in spec.mapping("warm_up_shapes").items()
        },
        signature=spec.signature,
        max_batch_size=spec.max_batch_size,
        labels=spec.files("labels"),
    )
    settings = spec.pool_settings
    return repository(
        spec.name,
        spec.required_path,
        lambda file, version: TorchBackend(spec.name, file, version, options, **settings),
        file_names=FILE_NAMES,
        versions=spec.texts("versions"),
    )


def _shape(model: str, dims: Any) -> Shape:
    texts = [] if isinstance(dims, str) else [str(dim) for dim in dims]
    if isinstance(dims, str) or not all(text.isascii() and text.isdecimal() for text in texts):
        raise ValueError(
            f"model {model!r}: option 'warm_up_shapes' has {dims!r}; expected a list of dimensions"
        )
    return tuple(map(int, texts))
