"""ONNX Runtime models: from a file, on the CPU or on a GPU.

Here: sessions, what the file says about itself, and how arrays go in and out. In `repository`:
which files there are. ONNX Runtime is imported when the first model is loaded.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from gateway.backends.base import Backend, Inputs, Job, LoadError
from gateway.backends.model_files import one_line, read_labels, zeros
from gateway.backends.validation import Arrays
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import ModelMetadata, TensorMetadata

log = structlog.get_logger(__name__)

DEVICES = ("auto", "cpu", "cuda", "tensorrt")

# Source: ONNX, onnx.proto3, "TypeProto"; the names are ONNX Runtime's.
_DATATYPES = {
    "tensor(bool)": Datatype.BOOL,
    "tensor(uint8)": Datatype.UINT8,
    "tensor(uint16)": Datatype.UINT16,
    "tensor(uint32)": Datatype.UINT32,
    "tensor(uint64)": Datatype.UINT64,
    "tensor(int8)": Datatype.INT8,
    "tensor(int16)": Datatype.INT16,
    "tensor(int32)": Datatype.INT32,
    "tensor(int64)": Datatype.INT64,
    "tensor(float16)": Datatype.FP16,
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(bfloat16)": Datatype.BF16,
    "tensor(string)": Datatype.BYTES,
}

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"
_PROVIDERS = {
    "auto": (_TENSORRT, _CUDA, _CPU),
    "cpu": (_CPU,),
    "cuda": (_CUDA, _CPU),
    "tensorrt": (_TENSORRT, _CUDA, _CPU),
}
_BF16_TYPE = 16  # TensorProto.DataType.BFLOAT16
_NOTHING_LOGGED = 4  # ONNX Runtime's level "fatal": what goes wrong is raised, and said once


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions:
    """How a model is run.

    Attributes:
        device: auto, cpu, cuda or tensorrt; auto takes the best that there is, the others insist.
        threads: Within one inference; None leaves it to ONNX Runtime.
        warm_up: Run the model once with zeros, variable dimensions 1, before it is ready.
        max_batch_size: See `ModelMetadata`; the file does not tell.
        labels: File of class labels, one a line, for an output.
    """

    device: str = "auto"
    threads: int | None = None
    warm_up: bool = False
    max_batch_size: int | None = None
    labels: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device is {self.device!r}, needed is one of {', '.join(DEVICES)}")


class OnnxBackend(Backend):
    """One ONNX file as a model.

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
        options: OnnxOptions = OnnxOptions(),
        **settings: Any,
    ) -> None:
        super().__init__(name, version, **settings)
        self._path = path
        self._options = options
        self._ort: Any = None
        self._sessions: list[Any] = []
        self._on_gpu = False
        self._described: ModelMetadata | None = None
        self._symbols: tuple[tuple[str, int, str], ...] = ()

    @property
    def metadata(self) -> ModelMetadata:
        """The model's signature, as its file has it."""
        if self._described is None:
            raise self._not_ready()
        return self._described

    def load(self) -> None:
        """Open the file.

        Raises:
            LoadError: ONNX Runtime is not installed, the file is missing or broken, the device is
                not there, or the model has inputs or outputs that are no tensors.
        """
        self._ort = _runtime(self)
        if not self._path.is_file():
            raise self.unloadable("there is no such file")
        session = self._open()
        found = session.get_providers()
        wanted = _PROVIDERS[self._options.device][0]
        if self._options.device != "auto" and wanted not in found:
            raise self.unloadable(f"device {self._options.device!r} is not available here")
        self._described = self._describe(session)
        self._symbols = _symbols(session.get_inputs())
        self._on_gpu = found[0] != _CPU
        # On the CPU one session runs any number of calls side by side, with one copy of the
        # weights; on a GPU calls of one session wait for one another.
        more = self._instances - 1 if self._on_gpu else 0
        self._sessions = [session, *(self._open() for _ in range(more))]
        if self._options.warm_up:
            self._warm_up()
        log.info("model loaded", model=str(self.model), file=str(self._path), provider=found[0])

    def unload(self) -> None:
        """Let go of the sessions and their memory."""
        self._sessions = []
        self._described = None

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Run the model; copies inputs that are not contiguous and aligned, and BYTES.

        Raises:
            InvalidRequest: A BYTES element is not UTF-8, inputs disagree about a dimension they
                share by name, or ONNX Runtime calls an input invalid.
        """
        self._check_symbols(inputs)
        session = self._sessions[job.instance % len(self._sessions)]
        feed = {name: self._feedable(name, array) for name, array in inputs.items()}
        try:
            if self._has(Datatype.BF16):
                return self._run_values(session, feed, job.outputs)
            if self._on_gpu and not self._has(Datatype.BYTES):  # text stays on the CPU
                return _run_bound(session, feed, job.outputs)
            return dict(zip(job.outputs, session.run(job.outputs, feed), strict=True))
        except Exception as error:
            if type(error).__name__ != "InvalidArgument":  # ONNX Runtime's own classes are private
                raise
            raise InvalidRequest(
                f"model {str(self.model)!r}: {one_line(error)}", model=self.model
            ) from error

    def unloadable(self, text: str) -> LoadError:
        """Return the error that says why the model cannot be loaded."""
        return LoadError(
            f"model {str(self.model)!r}: {self._path} cannot be loaded: {text}", model=self.model
        )

    def _open(self) -> Any:
        options = self._ort.SessionOptions()
        options.log_severity_level = _NOTHING_LOGGED
        if self._options.threads is not None:
            options.intra_op_num_threads = self._options.threads
        there = self._ort.get_available_providers()
        providers = [name for name in _PROVIDERS[self._options.device] if name in there]
        try:
            # By path and not by bytes: large models keep their weights in files beside it.
            return self._ort.InferenceSession(str(self._path), options, providers=providers)
        except Exception as error:
            raise self.unloadable(one_line(error)) from error

    def _describe(self, session: Any) -> ModelMetadata:
        return ModelMetadata(
            name=self.model.name,
            versions=(self.model.version,),
            platform="onnxruntime_onnx",
            inputs=tuple(self._tensor("input", value) for value in session.get_inputs()),
            outputs=tuple(self._tensor("output", value) for value in session.get_outputs()),
            max_batch_size=self._options.max_batch_size,
            labels=read_labels(self._options.labels, self.unloadable),
        )

    def _tensor(self, kind: str, value: Any) -> TensorMetadata:
        datatype = _DATATYPES.get(value.type)
        if datatype is None:
            raise self.unloadable(f"{kind} {value.name!r} is a {value.type}, which no datatype is")
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in value.shape)
        return TensorMetadata(value.name, datatype, shape)

    def _warm_up(self) -> None:
        inputs = {tensor.name: zeros(tensor) for tensor in self.metadata.inputs}
        outputs = tuple(tensor.name for tensor in self.metadata.outputs)
        try:
            for instance in range(len(self._sessions)):
                self.infer(inputs, Job(self.model, outputs=outputs, instance=instance))
        except Exception as error:
            raise self.unloadable(f"the warm-up failed: {one_line(error)}") from error

    def _check_symbols(self, inputs: Inputs) -> None:
        """Refuse inputs that give one named dimension different sizes."""
        sizes: dict[str, tuple[int, str]] = {}
        for name, axis, symbol in self._symbols:
            size = inputs[name].shape[axis]
            first = sizes.setdefault(symbol, (size, name))
            if first[0] != size:
                raise InvalidRequest(
                    f"input {name!r} has {size} in dimension {axis}, input {first[1]!r} has "
                    f"{first[0]} there: both are {symbol!r} of model {str(self.model)!r}",
                    model=self.model,
                )

    def _feedable(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if array.dtype != object:
            return np.require(array, requirements=("A", "C"))
        texts = np.empty(array.shape, dtype=object)
        for index, item in np.ndenumerate(array):
            try:
                texts[index] = item.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(
                    f"input {name!r} has an element at {list(index)} that is not UTF-8, "
                    "ONNX models take text",
                    model=self.model,
                ) from error
        return texts

    def _has(self, datatype: Datatype) -> bool:
        metadata = self.metadata
        return any(t.datatype is datatype for t in (*metadata.inputs, *metadata.outputs))

    def _run_values(self, session: Any, feed: Inputs, outputs: Sequence[str]) -> Arrays:
        """Run with ONNX Runtime's own values, which alone can hold BF16."""
        values = {}
        for tensor in self.metadata.inputs:
            array = feed[tensor.name]
            values[tensor.name] = (
                self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BF16_TYPE)
                if tensor.datatype is Datatype.BF16
                else self._ort.OrtValue.ortvalue_from_numpy(array)
            )
        found = session.run_with_ort_values(list(outputs), values)
        return {name: _array(value) for name, value in zip(outputs, found, strict=True)}


def _run_bound(session: Any, feed: Inputs, outputs: Sequence[str]) -> Arrays:
    """Run with inputs and outputs bound to the device: one copy each way, none in between."""
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    for name in outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    return dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))


def _runtime(backend: OnnxBackend) -> Any:
    try:
        import onnxruntime  # noqa: PLC0415  # an extra, and slow to import
    except ImportError as error:
        raise backend.unloadable(
            "ONNX Runtime is not installed: pip install 'tensor-gateway[onnx]'"
        ) from error
    return onnxruntime


def _symbols(values: Sequence[Any]) -> tuple[tuple[str, int, str], ...]:
    """Return input, axis and name of each named dimension."""
    return tuple(
        (value.name, axis, dim)
        for value in values
        for axis, dim in enumerate(value.shape)
        if isinstance(dim, str)
    )


def _array(value: Any) -> npt.NDArray[Any]:
    """Return an output as an array of its own; BF16 as bit patterns, which need a copy."""
    if value.data_type() != "tensor(bfloat16)":
        found: npt.NDArray[Any] = value.numpy()
        return found
    shape = tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if math.prod(shape) else b""
    return np.frombuffer(data, Datatype.BF16.numpy_dtype).reshape(shape)
