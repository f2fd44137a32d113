"""Tensors of an inference request: assigns bytes to inputs.

Over HTTP the body has the inputs one after the other, in the order of the header; over gRPC each
has its own entry.  Inputs in shared memory have neither.  Where a size depends on the datatype,
which no request contains, tensors are slices of the body until the model's metadata is known.

Source: docs/protocols/tensorrt-v1.md, "4. Inference request over HTTP" and
"8. Inference over gRPC".
"""

import math
from collections.abc import Sequence

from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.data import RawData, SharedMemoryData, SlicedData, StreamedData, TensorData
from gateway.ir.tensors.tensor import Tensor, as_raw
from gateway.protocols.trtis.infer_request_header import InferHeader, InputEntry

EMPTY = memoryview(b"")


def request_of(
    model: ModelRef, context: Context, header: InferHeader, inputs: tuple[Tensor, ...]
) -> InferRequest:
    """Return the call with this header and these tensors."""
    return InferRequest(
        model=model,
        context=context,
        inputs=inputs,
        outputs=header.outputs,
        id=str(header.id) if header.id else "",
        sequence=header.sequence,
        priority=header.priority,
        timeout_us=header.timeout_us,
        batch_size=header.batch_size,
    )


def tensors_of_body(header: InferHeader, body: memoryview) -> tuple[Tensor, ...]:
    """Assign to every input its part of a body, as a view.

    Raises:
        InvalidTensor: The body is shorter or longer than the known sizes of its inputs.
    """
    in_band = [entry for entry in header.inputs if entry.shared is None]
    shares = iter(_shares(in_band, body))
    return tuple([_tensor(entry, entry.shared or next(shares)) for entry in header.inputs])


def _shares(entries: list[InputEntry], body: memoryview) -> Sequence[TensorData]:
    sizes = [_known_size(entry) for entry in entries]
    least = sum(size for size in sizes if size is not None)
    unknown = sizes.count(None)
    if unknown > 1:
        return [SlicedData(body, index, size) for index, size in enumerate(sizes)]
    rest = body.nbytes - least
    if rest < 0 or (rest and not unknown):
        raise InvalidTensor(
            f"body has {body.nbytes} bytes: its {len(entries)} inputs need "
            f"{'at least ' if unknown else ''}{least}"
        )
    found = []
    at = 0
    for size in sizes:
        end = at + (rest if size is None else size)
        found.append(RawData(body[at:end]))
        at = end
    return found


def _known_size(entry: InputEntry) -> int | None:
    """Return the size of an input, where it does not depend on the datatype."""
    if entry.declared_bytes is not None:
        return entry.declared_bytes
    return 0 if entry.dims is not None and 0 in entry.dims else None


def tensors_of_entries(header: InferHeader, raws: Sequence[memoryview]) -> tuple[Tensor, ...]:
    """Assign to every input its entry of `raw_input`.

    Raises:
        InvalidTensor: An entry is missing or surplus, or its size differs from the header.
    """
    tensors = []
    at = 0
    for entry in header.inputs:
        if entry.shared is not None:
            tensors.append(_tensor(entry, entry.shared))
            continue
        if at == len(raws):
            raise InvalidTensor(
                f"input {entry.name!r} has no raw_input: the message has {len(raws)}"
            )
        raw = raws[at]
        at += 1
        if entry.declared_bytes not in (None, raw.nbytes):
            raise InvalidTensor(
                f"input {entry.name!r} has {raw.nbytes} bytes and a batch_byte_size of "
                f"{entry.declared_bytes}: expected equal numbers"
            )
        tensors.append(_tensor(entry, RawData(raw)))
    if at != len(raws):
        raise InvalidTensor(
            f"the message has {len(raws)} raw_input: expected {at}, one for each input that is "
            "not in shared memory"
        )
    return tuple(tensors)


def _tensor(entry: InputEntry, data: TensorData) -> Tensor:
    return Tensor(entry.name, None, entry.dims, data)


def views_of(call: InferRequest) -> list[memoryview]:
    """Return the bytes of the inputs in the message, in order, as far as they have arrived.

    Raises:
        InvalidTensor: Their size does not fit datatype and shape, or they are missing.
    """
    views = []
    for tensor in call.inputs:
        if isinstance(tensor.data, SharedMemoryData):
            continue
        arriving = isinstance(tensor.data, StreamedData)
        view = EMPTY if arriving else as_raw(tensor)
        found = tensor.nbytes if arriving else view.nbytes
        datatype, shape = tensor.datatype, tensor.shape
        if datatype is not None and datatype.size_bytes and shape is not None:
            expected = math.prod(shape) * (call.batch_size or 1) * datatype.size_bytes
            if found != expected:
                raise InvalidTensor(
                    f"input {tensor.name!r} has {found} bytes: batch size "
                    f"{call.batch_size} of shape {list(shape)} of {datatype.name} needs {expected}"
                )
        if not arriving:
            views.append(view)
    return views
