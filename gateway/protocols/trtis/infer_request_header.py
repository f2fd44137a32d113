"""Reads and writes NV-InferRequest, the header of an inference, as text and as a message.

Reading includes the checks that need no model.  `infer_request.py` has the bytes of the tensors,
`textproto/` the text format.

Source: docs/protocols/tensorrt-v1.md, "4. Inference request over HTTP" and
"12. Versions, ids and sequences".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from google.protobuf.message import DecodeError

from gateway.ir.calls import InferRequest
from gateway.ir.context import CallSequence
from gateway.ir.errors import (
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    TooLarge,
    Unsupported,
)
from gateway.ir.limits import (
    MessageLimits,
    check_classes,
    check_count,
    check_name,
    check_shape,
    check_unique,
)
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Shape, Tensor
from gateway.protocols.trtis.datatypes import check_carried
from gateway.protocols.trtis.textproto.parser import parse_text
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.protobuf.wire_format import TooManyFields, WireError, fields

_START = pb.InferRequestHeader.FLAG_SEQUENCE_START
_END = pb.InferRequestHeader.FLAG_SEQUENCE_END
_UINT32_END, _UINT64_END = 1 << 32, 1 << 64

# Requests repeat their headers: entries for some hundred models. Longer headers are rare.
_CACHE_ENTRIES = 512
_REMEMBERED_LENGTH = 4096
# The library takes 25 times a header; a longer one is counted first.
_LONG_BYTES = 1 << 16
_OTHER_FIELDS = 64


@dataclass(frozen=True, slots=True)
class InputEntry:
    """An input in the header.

    Attributes:
        dims: Of one item; None for those of the model.
        declared_bytes: Of the whole batch; None where the header has no size.
        shared: Its place in shared memory; None for an input in the message.
    """

    name: str
    dims: Shape | None
    declared_bytes: int | None
    shared: SharedMemoryData | None


@dataclass(frozen=True, slots=True)
class InferHeader:
    """An inference without the bytes of its tensors."""

    batch_size: int
    inputs: tuple[InputEntry, ...]
    outputs: tuple[RequestedOutput, ...]
    sequence: CallSequence | None
    id: int
    priority: int
    timeout_us: int | None


class HeaderReader:
    """Reads headers, and caches some hundred of them.

    Args:
        limits: For names and counts.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._text = lru_cache(_CACHE_ENTRIES)(self._of_text)
        self._message = lru_cache(_CACHE_ENTRIES)(self._of_message)

    def text(self, text: str, *, allow_unknown: bool = False) -> InferHeader:
        """Read a header in text format.

        Args:
            text: The header.
            allow_unknown: Skip fields that the schema lacks.

        Raises:
            MalformedMessage: It is not in text format.
            InvalidRequest: A value is not allowed, or a name occurs twice.
            TooLarge: A limit is exceeded.
        """
        read = self._text if len(text) <= _REMEMBERED_LENGTH else self._of_text
        return read(text, allow_unknown)

    def message(self, data: bytes) -> InferHeader:
        """Read a header as a serialized message; raises as `text`."""
        if len(data) <= _REMEMBERED_LENGTH:
            return self._message(data)
        return self._of_message(data)

    def _of_text(self, text: str, allow_unknown: bool) -> InferHeader:
        header = parse_text(text, pb.InferRequestHeader, allow_unknown=allow_unknown)
        return _checked(header, self._limits)

    def _of_message(self, data: bytes) -> InferHeader:
        if len(data) > _LONG_BYTES:
            _check_fields(data, self._limits)
        return _checked(_parse(data), self._limits)


def id_of_text(text: str) -> int:
    """Return the id in a header that was refused; 0 where it cannot be read."""
    try:
        return parse_text(text, pb.InferRequestHeader, allow_unknown=True).id
    except MalformedMessage:
        return 0


def id_of_message(data: bytes) -> int:
    """Return the id in a header that was refused; 0 where it cannot be read, or is long."""
    if len(data) > _LONG_BYTES:
        return 0
    try:
        return _parse(data).id
    except MalformedMessage:
        return 0


def _check_fields(data: bytes, limits: MessageLimits) -> None:
    """Count the fields of a header before the library makes an object of each."""
    try:
        fields(memoryview(data), limits.tensors + limits.outputs + _OTHER_FIELDS)
    except TooManyFields as error:
        raise TooLarge(
            f"the header has more than {limits.tensors} inputs and {limits.outputs} requested "
            "outputs (tensors, outputs)",
            limit="outputs",
        ) from error
    except WireError as error:
        raise MalformedMessage(f"the header is no message: {error}") from error


def _parse(data: bytes) -> pb.InferRequestHeader:
    try:
        return pb.InferRequestHeader.FromString(data)
    except DecodeError as error:
        raise MalformedMessage(f"{len(data)} bytes are not an InferRequestHeader") from error


def _checked(header: pb.InferRequestHeader, limits: MessageLimits) -> InferHeader:
    if not header.batch_size:
        raise InvalidRequest("batch_size is 0 or absent: expected at least 1")
    check_count("inputs", len(header.input), limits.tensors, "tensors")
    check_count("requested outputs", len(header.output), limits.outputs, "outputs")
    inputs = tuple([_input(entry, header.batch_size, limits) for entry in header.input])
    outputs = tuple([_output(entry, limits) for entry in header.output])
    check_unique("input", [entry.name for entry in inputs])
    check_unique("output", [output.name for output in outputs])
    sequence = None
    if header.correlation_id:
        flags = header.flags
        sequence = CallSequence(header.correlation_id, bool(flags & _START), bool(flags & _END))
    return InferHeader(
        header.batch_size,
        inputs,
        outputs,
        sequence,
        header.id,
        header.priority,
        header.timeout_microseconds or None,
    )


def _input(
    entry: pb.InferRequestHeader.Input, batch_size: int, limits: MessageLimits
) -> InputEntry:
    name = entry.name
    _check_tensor_name("input", name, limits)
    dims = tuple(entry.dims) or None
    if dims is not None:
        check_shape(name, None, (batch_size, *dims), limits)
    size_bytes = entry.batch_byte_size or None
    if not entry.HasField("shared_memory"):
        return InputEntry(name, dims, size_bytes, None)
    shared = _shared(name, entry.shared_memory, limits)
    if size_bytes is not None and size_bytes != shared.size_bytes:
        raise InvalidTensor(
            f"input {name!r} has {shared.size_bytes} bytes in shared memory and a batch_byte_size "
            f"of {size_bytes}: expected equal numbers"
        )
    return InputEntry(name, dims, size_bytes, shared)


def _output(entry: pb.InferRequestHeader.Output, limits: MessageLimits) -> RequestedOutput:
    name = entry.name
    _check_tensor_name("output", name, limits)
    classes = entry.cls.count
    if entry.HasField("cls") and not classes:
        raise InvalidRequest(f"output {name!r} requests 0 classes: expected at least 1")
    check_classes(name, classes, limits)
    if not entry.HasField("shared_memory"):
        return RequestedOutput(name, classes)
    if classes:
        raise InvalidRequest(
            f"output {name!r} requests classes in shared memory: expected one of both"
        )
    return RequestedOutput(name, shared=_shared(name, entry.shared_memory, limits))


def _check_tensor_name(kind: str, name: str, limits: MessageLimits) -> None:
    if not name:
        raise InvalidRequest(f"an {kind} has no name: TensorRT v1 needs one")
    check_name(f"{kind} name", name, limits.name_bytes, "name_bytes")


def _shared(name: str, memory: pb.InferSharedMemory, limits: MessageLimits) -> SharedMemoryData:
    check_name(f"region of {name!r}", memory.name, limits.name_bytes, "name_bytes")
    return SharedMemoryData(memory.name, memory.offset, memory.byte_size)


# Requests to an upstream.


def write_header(call: InferRequest, *, schedule: bool) -> pb.InferRequestHeader:
    """Write the header of a request to an upstream.

    Args:
        call: Its batch size is set, and its inputs have name, datatype and shape.
        schedule: Write priority and timeout, which old servers ignore.

    Raises:
        Unsupported: A part of it is unknown or has no form in TensorRT v1.
    """
    if call.batch_size is None:
        raise Unsupported("the request has no batch size: TensorRT v1 needs one")
    if not 0 < call.batch_size < _UINT32_END:
        raise Unsupported(f"batch size is {call.batch_size}: TensorRT v1 needs 1 to 2**32 - 1")
    header = pb.InferRequestHeader(
        batch_size=call.batch_size,
        input=[_written_input(tensor) for tensor in call.inputs],
        output=_written_outputs(call.outputs),
        id=number_of(call.id),
    )
    if call.sequence is not None:
        header.correlation_id = _correlation_id(call.sequence.id)
        header.flags = _START * call.sequence.start + _END * call.sequence.end
    if schedule and call.priority < _UINT32_END and (call.timeout_us or 0) < _UINT64_END:
        header.priority = call.priority
        header.timeout_microseconds = call.timeout_us or 0
    return header


def number_of(text: str) -> int:
    """Return the id with *text* as its decimal form; 0, which is no id, for any other text."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(_UINT64_END)):
        number = int(text)
        if number < _UINT64_END and str(number) == text:
            return number
    return 0


def _correlation_id(sequence: int | str) -> int:
    if isinstance(sequence, str):
        # v1 has numbers only. A hash needs no table, and a collision needs some 2**32 sequences.
        return int.from_bytes(blake2b(sequence.encode("utf-8", "replace"), digest_size=8).digest())
    if not 0 < sequence < _UINT64_END:
        raise Unsupported(f"sequence is {sequence}: TensorRT v1 has ids from 1 to 2**64 - 1")
    return sequence


def _written_input(tensor: Tensor) -> pb.InferRequestHeader.Input:
    datatype, shape = tensor.datatype, tensor.shape
    if not tensor.name or datatype is None or shape is None:
        raise Unsupported(
            f"input {tensor.name!r} has no name, datatype or shape: TensorRT v1 needs all three"
        )
    check_carried("input", tensor.name, datatype)
    entry = pb.InferRequestHeader.Input(name=tensor.name, dims=shape or (1,))
    if isinstance(tensor.data, SharedMemoryData):
        entry.shared_memory.CopyFrom(_written_shared(tensor.data))
    elif datatype is Datatype.BYTES:
        entry.batch_byte_size = tensor.nbytes
    return entry


def _written_outputs(
    outputs: Iterable[RequestedOutput],
) -> list[pb.InferRequestHeader.Output]:
    written = []
    for output in outputs:
        entry = pb.InferRequestHeader.Output(name=output.name)
        if output.classes:
            entry.cls.count = output.classes
        if output.shared is not None:
            entry.shared_memory.CopyFrom(_written_shared(output.shared))
        written.append(entry)
    return written


def _written_shared(shared: SharedMemoryData) -> pb.InferSharedMemory:
    return pb.InferSharedMemory(
        name=shared.region, offset=shared.offset, byte_size=shared.size_bytes
    )
