"""Tensors of an inference request: which bytes belong to which input.

Over HTTP the inputs lie end to end in the body, in the order of the header; over gRPC each has an
entry of its own.  Inputs in shared memory have neither.  Where sizes follow from datatypes, which
no request tells, the tensors are shares of the body until a model's metadata is there.

Source: docs/protocols/tensorrt-v1.md, "4. Inference request over HTTP" and
"8. Inference over gRPC".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.data import RawData, SharedMemoryData, SlicedData, StreamedData, TensorData
from gateway.ir.errors import InvalidTensor
from gateway.ir.tensor import Tensor, as_raw
from gateway.protocols.trtis.infer_request_header import InferHeader, InputEntry

_NOTHING = memoryview(b"")


def request_of(
    model: ModelRef, context: Context, header: InferHeader, inputs: tuple[Tensor, ...]
) -> InferRequest:
    """Return the call that header and tensors make."""
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
    """Give every input its bytes of a body, as views.

    Raises:
        InvalidTensor: The body is shorter or longer than the inputs are known to need.
    """
    in_band = [entry for entry in header.inputs if entry.shared is None]
    shares = iter(_shares(in_band, body))
    return tuple([_tensor(entry, entry.shared or next(shares)) for entry in header.inputs])


def _shares(entries: list[InputEntry], body: memoryview) -> Sequence[TensorData]:
    sizes = [_known_size(entry) for entry in entries]
    known = sum(size for size in sizes if size is not None)
    unknown = sizes.count(None)
    if unknown > 1:
        return [SlicedData(body, index, size) for index, size in enumerate(sizes)]
    rest = body.nbytes - known
    if rest < 0 or (rest and not unknown):
        raise InvalidTensor(
            f"body has {body.nbytes} bytes, its {len(entries)} inputs need "
            f"{'at least ' if unknown else ''}{known}"
        )
    found = []
    at = 0
    for size in sizes:
        end = at + (rest if size is None else size)
        found.append(RawData(body[at:end]))
        at = end
    return found


def _known_size(entry: InputEntry) -> int | None:
    """Return the bytes of an input, where no datatype is needed to tell."""
    if entry.declared_bytes is not None:
        return entry.declared_bytes
    return 0 if entry.dims is not None and 0 in entry.dims else None


def tensors_of_entries(header: InferHeader, raws: Sequence[memoryview]) -> tuple[Tensor, ...]:
    """Give every input its entry of `raw_input`.

    Raises:
        InvalidTensor: An entry is missing or left over, or has not the size that the header tells.
    """
    tensors = []
    at = 0
    for entry in header.inputs:
        if entry.shared is not None:
            tensors.append(_tensor(entry, entry.shared))
            continue
        if at == len(raws):
            raise InvalidTensor(
                f"input {entry.name!r} has no raw_input: {len(raws)} came with the message"
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
            f"the message has {len(raws)} raw_input; expected {at}, one for each input that is "
            "not in shared memory"
        )
    return tuple(tensors)


def _tensor(entry: InputEntry, data: TensorData) -> Tensor:
    return Tensor(entry.name, None, entry.dims, data)


def views_of(call: InferRequest) -> list[memoryview]:
    """Return the bytes of the inputs that travel in the message, in order, as far as they are here.

    Raises:
        InvalidTensor: The bytes are not as many as datatype and shape need, or not here.
    """
    views = []
    for tensor in call.inputs:
        if isinstance(tensor.data, SharedMemoryData):
            continue
        arriving = isinstance(tensor.data, StreamedData)
        view = _NOTHING if arriving else as_raw(tensor)
        found = tensor.nbytes if arriving else view.nbytes
        datatype, shape = tensor.datatype, tensor.shape
        if datatype is not None and datatype.size_bytes and shape is not None:
            expected = math.prod(shape) * (call.batch_size or 1) * datatype.size_bytes
            if found != expected:
                raise InvalidTensor(
                    f"input {tensor.name!r} has {found} bytes, batch size "
                    f"{call.batch_size} of shape {list(shape)} of {datatype.name} needs {expected}"
                )
        if not arriving:
            views.append(view)
    return views
