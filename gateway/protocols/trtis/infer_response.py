"""Responses to inferences: reads and writes NV-InferResponse, and assigns bytes to outputs.

Source: docs/protocols/tensorrt-v1.md, "5. Inference response over HTTP" and "13. Classification".
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.errors import MalformedMessage, TooLarge, Unsupported, UpstreamProtocolError
from gateway.ir.limits import MessageLimits, check_count, check_name, check_shape
from gateway.ir.tensors.data import RawData, SharedMemoryData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Shape, Tensor, as_items, as_raw, items_tensor
from gateway.ir.work import charge
from gateway.protocols.trtis.datatypes import DATATYPES, check_carried
from gateway.protocols.trtis.infer_request_header import number_of
from gateway.protocols.trtis.textproto.writer import float_text
from gateway.schema import tensorrt_v1_pb2 as pb

REPLY_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.BATCHING})
"""What a reply needs for this protocol, on both carriers."""
CALLER_NEEDS: Final = REPLY_NEEDS | {Need.NUMERIC_VERSIONS}
"""What a caller of this protocol needs."""
_CLASS = re.compile(rb"([^:]*):([0-9]{1,10})(?::(.*))?", re.DOTALL)
_INT32_END, _INT64_END = 1 << 31, 1 << 63
EMPTY = memoryview(b"")
# Each item of a batch has an entry, also without classes.
_MOST_EMPTY = 100_000

Written = tuple[pb.InferResponseHeader, list[memoryview]]


def write_reply(call: InferRequest, reply: InferResponse) -> Written:
    """Describe the response to *call*: only requested outputs, in the order of the request.

    Returns:
        The header without its id, and a view for each output: empty for classes and for shared
        memory.

    Raises:
        UpstreamProtocolError: A requested output is missing, or the batch size differs.
        Unsupported: An output has no form in TensorRT v1.
    """
    batch_size = 1 if reply.batch_size is None else reply.batch_size
    if call.batch_size not in (None, batch_size):
        raise UpstreamProtocolError(
            f"response has batch size {batch_size}: the request has {call.batch_size}",
            model=call.model,
        )
    name = reply.model.name if call.model is None else call.model.name
    header = pb.InferResponseHeader(
        model_name=name,
        model_version=version_number(reply.model.version),
        batch_size=batch_size,
    )
    outputs = {tensor.name: tensor for tensor in reply.outputs}
    views = []
    for requested in call.outputs:
        tensor = outputs.get(requested.name)
        if tensor is None:
            raise UpstreamProtocolError(
                f"response lacks the requested output {requested.name!r}: "
                f"it has {len(outputs)} outputs",
                model=call.model,
            )
        entry = header.output.add(name=requested.name)
        if requested.classes:
            _write_classes(entry, tensor, batch_size)
            views.append(EMPTY)
        else:
            views.append(_write_raw(entry, tensor))
    return header, views


def version_number(version: str) -> int:
    """Return a model version as its number in v1: 1 for a version that is not a number."""
    number = number_of(version)
    return number if 0 < number < _INT64_END else 1


def _write_raw(entry: pb.InferResponseHeader.Output, tensor: Tensor) -> memoryview:
    datatype, shape = tensor.datatype, tensor.shape
    if shape is None:
        raise Unsupported(
            f"output {tensor.name!r} has no shape in the response or in the model's metadata: "
            "TensorRT v1 needs one"
        )
    if datatype is not None:
        check_carried("output", tensor.name, datatype)
    entry.raw.dims.extend(shape or (1,))
    if isinstance(tensor.data, SharedMemoryData):
        entry.raw.batch_byte_size = tensor.data.size_bytes
        return EMPTY
    view = as_raw(tensor)
    entry.raw.batch_byte_size = view.nbytes
    return view


def _write_classes(entry: pb.InferResponseHeader.Output, tensor: Tensor, batch_size: int) -> None:
    """Write elements "value:index:label", the same number for each item of the batch.

    Raises:
        UpstreamProtocolError: An element is not a class, or items have different numbers of them.
        TooLarge: Too many items have no classes.
    """
    items = as_items(tensor)
    charge(8 * len(items))
    each, rest = divmod(len(items), batch_size)
    if rest:
        raise UpstreamProtocolError(
            f"output {tensor.name!r} has {len(items)} classes: expected a multiple of the "
            f"{batch_size} items of the batch"
        )
    for start in range(0, len(items) if each else 0, each or 1):
        classes = entry.batch_classes.add()
        for item in items[start : start + each]:
            classes.cls.append(_class(tensor.name, bytes(item)))
    if not each:
        if batch_size > _MOST_EMPTY:
            raise TooLarge(
                f"output {tensor.name!r} has {batch_size} items without classes, at most "
                f"{_MOST_EMPTY} are allowed",
                limit="classes",
            )
        entry.batch_classes.extend([pb.InferResponseHeader.Output.Classes()] * batch_size)


def _class(name: str, item: bytes) -> pb.InferResponseHeader.Output.Class:
    found = _CLASS.fullmatch(item)
    broken = UpstreamProtocolError(
        f"output {name!r} has the class {item[:64]!r}: expected value:index:label"
    )
    try:
        if found is None or int(found[2]) >= _INT32_END:
            raise broken
        value, label = float(found[1]), (found[3] or b"").decode()
    except ValueError:  # also for an index of thousands of digits
        raise broken from None
    return pb.InferResponseHeader.Output.Class(idx=int(found[2]), value=value, label=label)


# Responses of an upstream.


def read_reply(
    call: InferRequest,
    header: pb.InferResponseHeader,
    raws: Sequence[memoryview],
    origin: Origin,
    limits: MessageLimits,
) -> InferResponse:
    """Read an upstream's response to *call*.

    Args:
        call: Determines which outputs are in shared memory.
        header: With its classes.
        raws: A view for each output, empty where the message has no bytes of it.
        origin: The origin of the response.
        limits: The limits of the response.

    Raises:
        MalformedMessage: A requested output is missing, an output is neither raw nor classes, or
            the batch size differs from that of the request.
        InvalidTensor, TooLarge: Sizes do not fit.
    """
    check_count("outputs", len(header.output), limits.outputs, "outputs")
    if header.batch_size and call.batch_size not in (None, header.batch_size):
        raise MalformedMessage(
            f"response has batch size {header.batch_size}: the request has {call.batch_size}"
        )
    requested = {output.name: output for output in call.outputs}
    outputs = [
        _read_output(entry, raw, requested.get(entry.name), header.batch_size, limits)
        for entry, raw in zip(header.output, raws, strict=True)
    ]
    missing = requested.keys() - {tensor.name for tensor in outputs}
    if missing:
        raise MalformedMessage(
            f"response lacks the requested output {min(missing)!r}: it has {len(outputs)} outputs"
        )
    check_name("model name", header.model_name, limits.model_name_bytes, "model_name_bytes")
    version = str(header.model_version) if header.model_version > 0 else ""
    name = header.model_name or ("" if call.model is None else call.model.name)
    return InferResponse(
        model=ModelRef(name, version),
        outputs=tuple(outputs),
        id=call.id,
        batch_size=header.batch_size or 1,
        origin=origin,
    )


def sizes_in_band(call: InferRequest, header: pb.InferResponseHeader) -> list[int]:
    """Return the size of each output's bytes in the message."""
    elsewhere = {output.name for output in call.outputs if output.shared is not None}
    return [
        entry.raw.batch_byte_size if entry.HasField("raw") and entry.name not in elsewhere else 0
        for entry in header.output
    ]


def _read_output(
    entry: pb.InferResponseHeader.Output,
    raw: memoryview,
    requested: RequestedOutput | None,
    batch_size: int,
    limits: MessageLimits,
) -> Tensor:
    name = entry.name
    check_name("output name", name, limits.name_bytes, "name_bytes")
    if entry.batch_classes:
        return _read_classes(entry, limits)
    if not entry.HasField("raw"):
        raise MalformedMessage(f"output {name!r} is neither raw nor classes")
    shape = tuple(entry.raw.dims)
    check_shape(name, None, (max(batch_size, 1), *shape), limits)
    data: TensorData = RawData(raw)
    if requested is not None and requested.shared is not None:
        shared = requested.shared
        data = SharedMemoryData(shared.region, shared.offset, entry.raw.batch_byte_size)
    elif raw.nbytes != entry.raw.batch_byte_size:
        raise MalformedMessage(
            f"output {name!r} has {raw.nbytes} bytes: expected {entry.raw.batch_byte_size}"
        )
    return Tensor(name, DATATYPES.get(entry.data_type), shape, data)


def _read_classes(entry: pb.InferResponseHeader.Output, limits: MessageLimits) -> Tensor:
    counts = {len(classes.cls) for classes in entry.batch_classes}
    if len(counts) != 1:
        raise MalformedMessage(
            f"output {entry.name!r} has from {min(counts)} to {max(counts)} classes for an item: "
            "expected the same number for each"
        )
    shape: Shape = (counts.pop(),)
    check_shape(entry.name, Datatype.BYTES, (len(entry.batch_classes), *shape), limits)
    items = [_class_item(found) for classes in entry.batch_classes for found in classes.cls]
    whole = items_tensor(entry.name, (len(items),), items)
    return Tensor(entry.name, Datatype.BYTES, shape, whole.data)


def _class_item(found: Any) -> bytes:
    text = f"{float_text(found.value)}:{found.idx}"
    return (f"{text}:{found.label}" if found.label else text).encode()
