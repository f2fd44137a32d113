"""ONNX Runtime models, loaded from a file, on the CPU or on a GPU.

`repository` finds the files. ONNX Runtime is imported when the first model is loaded.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from gateway.api.backend import Arrays
from gateway.backends.base import Inputs, Job
from gateway.backends.model_files import FileBackend, one_line, zeros
from gateway.backends.onnx_files import MalformedModel, check_external_files
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype

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
_OWN_FORMAT = ".ort"  # no protobuf, and converted by the operator: it has its weights inside
_LOG_FATAL = 4  # errors are raised, so ONNX Runtime does not need to log them


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions:
    """Options of an ONNX model.

    Attributes:
        device: auto, cpu, cuda or tensorrt; auto uses the best available, the others are required.
        threads: Threads of one inference; None for ONNX Runtime's default.
        warm_up: Run the model once with zeros, variable dimensions 1, before it is ready.
        max_batch_size: See `ModelMetadata`; the file does not contain it.
        labels: Files of class labels, one per line, by output name.
    """

    device: str = "auto"
    threads: int | None = None
    warm_up: bool = False
    max_batch_size: int | None = None
    labels: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            names = ", ".join(DEVICES)
            raise ValueError(f"option 'device' is {self.device!r}; expected one of {names}")


class OnnxBackend(FileBackend):
    """One ONNX file as a model; see `FileBackend` for the other arguments."""

    def __init__(
        self,
        name: str,
        path: Path,
        version: str = "1",
        options: OnnxOptions = OnnxOptions(),
        **settings: Any,
    ) -> None:
        super().__init__(name, path, version, **settings)
        self._options = options
        self._ort: Any = None
        self._sessions: list[Any] = []
        self._is_on_gpu = False
        self._file_metadata: ModelMetadata | None = None
        self._symbols: tuple[tuple[str, int, str], ...] = ()

    @property
    def metadata(self) -> ModelMetadata:
        """The model's signature, from its file."""
        if self._file_metadata is None:
            raise self._not_ready()
        return self._file_metadata

    def check_here(self) -> None:
        """Check that the file, its runtime and its labels are there. Raises LoadError."""
        super().check_here()
        _runtime(self)
        self.read_labels(self._options.labels)

    def load(self) -> None:
        """Open the file.

        Raises:
            LoadError: ONNX Runtime is not installed, the file is missing or invalid, the device is
                not available, an input or output is not a tensor, or weights are in a file
                outside of the model's folder.
        """
        self._ort = _runtime(self)
        if not self.path.is_file():
            raise self.unloadable("the file does not exist")
        self._check_files()
        session = self._open()
        providers = session.get_providers()
        required = _PROVIDERS[self._options.device][0]
        if self._options.device != "auto" and required not in providers:
            raise self.unloadable(f"device {self._options.device!r} is not available")
        self._file_metadata = self._describe(session)
        self._symbols = _symbols(session.get_inputs())
        self._is_on_gpu = providers[0] != _CPU
        # On the CPU one session runs concurrent calls with one copy of the weights; on a GPU the
        # calls of one session run one after another.
        more = self._instances - 1 if self._is_on_gpu else 0
        self._sessions = [session, *(self._open() for _ in range(more))]
        if self._options.warm_up:
            self._warm_up()
        provider = providers[0]
        log.info("model loaded", model=str(self.model), file=str(self.path), provider=provider)

    def unload(self) -> None:
        """Free the sessions."""
        self._sessions = []
        self._file_metadata = None

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Run the model; copies inputs that are not contiguous and aligned, and BYTES.

        Raises:
            InvalidRequest: A BYTES element is not UTF-8, two inputs have different sizes for a
                dimension of the same name, or ONNX Runtime rejects an input.
        """
        self._check_symbols(inputs)
        session = self._sessions[job.instance % len(self._sessions)]
        feed = {name: self._prepare(name, array) for name, array in inputs.items()}
        try:
            if self._has(Datatype.BF16):
                return self._run_values(session, feed, job.outputs)
            if self._is_on_gpu and not self._has(Datatype.BYTES):  # strings are on the CPU only
                return _run_bound(session, feed, job.outputs)
            return dict(zip(job.outputs, session.run(job.outputs, feed), strict=True))
        except Exception as error:
            if type(error).__name__ != "InvalidArgument":  # ONNX Runtime's own classes are private
                raise
            raise InvalidRequest(
                f"model {str(self.model)!r}: {one_line(error)}", model=self.model
            ) from error

    def _check_files(self) -> None:
        if self.path.suffix == _OWN_FORMAT:
            return
        try:
            check_external_files(self.path)
        except MalformedModel as error:
            self._open()  # ONNX Runtime says more, if it finds the same
            raise self.unloadable(one_line(error)) from error
        except (OSError, ValueError) as error:
            raise self.unloadable(one_line(error)) from error

    def _open(self) -> Any:
        options = self._ort.SessionOptions()
        options.log_severity_level = _LOG_FATAL
        if self._options.threads is not None:
            options.intra_op_num_threads = self._options.threads
        available = self._ort.get_available_providers()
        providers = [name for name in _PROVIDERS[self._options.device] if name in available]
        try:
            # By path, because large models keep their weights in other files of the same folder.
            return self._ort.InferenceSession(str(self.path), options, providers=providers)
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
            labels=self.read_labels(self._options.labels),
        )

    def _tensor(self, kind: str, value: Any) -> TensorMetadata:
        datatype = _DATATYPES.get(value.type)
        if datatype is None:
            raise self.unloadable(
                f"{kind} {value.name!r} is a {value.type}, which is not a supported datatype"
            )
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
        """Reject inputs with different sizes for the same named dimension."""
        sizes: dict[str, tuple[int, str]] = {}
        for name, axis, symbol in self._symbols:
            size = inputs[name].shape[axis]
            first = sizes.setdefault(symbol, (size, name))
            if first[0] != size:
                raise InvalidRequest(
                    f"dimension {axis} of input {name!r} is {size}; expected {first[0]} as in "
                    f"input {first[1]!r}, because both are {symbol!r} of model {str(self.model)!r}",
                    model=self.model,
                )

    def _prepare(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an input as ONNX Runtime accepts it: aligned and contiguous, or `str` objects."""
        if array.dtype != object:
            return np.require(array, requirements=("A", "C"))
        texts = np.empty(array.shape, dtype=object)
        for index, item in np.ndenumerate(array):
            try:
                texts[index] = item.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(
                    f"input {name!r} has an element at {list(index)} that is not UTF-8; "
                    "ONNX models accept text only",
                    model=self.model,
                ) from error
        return texts

    def _has(self, datatype: Datatype) -> bool:
        metadata = self.metadata
        return any(t.datatype is datatype for t in (*metadata.inputs, *metadata.outputs))

    def _run_values(self, session: Any, feed: Inputs, outputs: Sequence[str]) -> Arrays:
        """Run with OrtValues, because numpy arrays cannot carry BF16."""
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
    """Run with inputs and outputs bound to the device: one copy in each direction."""
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    for name in outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    return dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))


def import_runtime() -> Any:
    """Return the module of ONNX Runtime, which sends no telemetry.

    Raises:
        ImportError: It is not installed.
    """
    import onnxruntime  # noqa: PLC0415  # optional, and slow to import

    if hasattr(onnxruntime, "disable_telemetry_events"):  # builds of Microsoft send them
        onnxruntime.disable_telemetry_events()
    return onnxruntime


def _runtime(backend: OnnxBackend) -> Any:
    try:
        return import_runtime()
    except ImportError as error:
        raise backend.unloadable(
            "ONNX Runtime is not installed: pip install 'tensor-gateway[onnx]'"
        ) from error


def _symbols(values: Sequence[Any]) -> tuple[tuple[str, int, str], ...]:
    """Return input, axis and name of each named dimension."""
    return tuple(
        (value.name, axis, dim)
        for value in values
        for axis, dim in enumerate(value.shape)
        if isinstance(dim, str)
    )


def _array(value: Any) -> npt.NDArray[Any]:
    """Return an output as an array; BF16 as bit patterns, which need a copy."""
    if value.data_type() != "tensor(bfloat16)":
        array: npt.NDArray[Any] = value.numpy()
        return array
    shape = tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if math.prod(shape) else b""
    return np.frombuffer(data, Datatype.BF16.numpy_dtype).reshape(shape)
