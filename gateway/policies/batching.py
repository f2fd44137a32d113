"""Batch sizes apart from shapes, and inputs that share one buffer: made whole, and back. Pure.

TensorRT v1 never writes the batch axis: shapes are of one item, the batch size is a number of its
own, and only the model's metadata tells whether there is such an axis at all. Nor does a request
tell datatypes, so that where one input ends in a body is known here first.

`Complete` asks for the metadata; here it is applied.

Source: TensorRT v1, "Batching", "Shapes", "batch_byte_size" (dossier, sections 3.1, 6 and 10).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.data import RawData, ShareData, check_bools
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest, InvalidTensor, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Shape, Tensor, raw_tensor

M = TypeVar("M", InferRequest, InferResponse)


def settled(call: InferRequest, metadata: ModelMetadata, *, whole: bool) -> InferRequest:
    """Return *call*, whose batch size stands apart, with datatypes, shapes and views of its own.

    Shares become views of their buffer.

    Args:
        call: As a protocol without a batch axis reads it.
        metadata: Of the model it is to.
        whole: Put the batch axis into the shapes, where the model has one; else they stay those of
            one item.

    Raises:
        InvalidRequest: The batch size is not allowed, or an input does not fit the model.
        InvalidTensor: The bytes are not as many as the inputs need.
    """
    batch_size = call.batch_size or 0
    model = call.model or ModelRef(metadata.name)
    _check_batch(model, metadata, batch_size)
    declared = {known.name: known for known in metadata.inputs}
    offset = 0
    inputs = []
    for tensor in call.inputs:
        known = declared.get(tensor.name)
        if known is None:
            names = ", ".join(map(repr, declared)) or "none"
            raise InvalidRequest(
                f"model {str(model)!r} has no input {tensor.name!r}; its inputs are {names}",
                model=model,
            )
        described = _described(tensor, known, metadata)
        data = tensor.data
        if isinstance(data, ShareData):
            size = _share_bytes(described, data.given_bytes, batch_size)
            described = _with_view(described, data.whole[offset : offset + size])
            offset += size
        _check_data(described, batch_size)
        if whole and metadata.batches:
            described = _reshaped(described, (batch_size, *(described.shape or ())))
        inputs.append(described)
    for tensor in call.inputs:
        if isinstance(tensor.data, ShareData) and tensor.data.whole.nbytes != offset:
            raise InvalidTensor(
                f"the inputs share {tensor.data.whole.nbytes} bytes, "
                f"batch size {batch_size} of model {str(model)!r} needs {offset}"
            )
    return call.changed(inputs=tuple(inputs), batch_size=None if whole else batch_size)


def _check_batch(model: ModelRef, metadata: ModelMetadata, batch_size: int) -> None:
    most = (metadata.max_batch_size or batch_size) if metadata.batches else 1
    if not 1 <= batch_size <= most:
        why = "" if metadata.batches else ": it does not batch"
        raise InvalidRequest(
            f"batch size {batch_size}, model {str(model)!r} takes from 1 to {max(most, 1)}{why}",
            model=model,
        )


def _described(tensor: Tensor, known: TensorMetadata, metadata: ModelMetadata) -> Tensor:
    """Return *tensor* with a datatype and the shape of one item."""
    name = tensor.name
    datatype = tensor.datatype or known.datatype
    if datatype is None:
        raise InvalidRequest(
            f"the metadata of model {metadata.name!r} does not tell the datatype of input {name!r}"
        )
    declared = _item_shape(known, batches=metadata.batches)
    shape = tensor.shape
    if shape is None:
        if declared is None or any(dim < 0 for dim in declared):
            raise InvalidRequest(
                f"input {name!r} comes without dims, and those of the model are "
                f"{'unknown' if declared is None else list(declared)}"
            )
        shape = declared
    elif declared is not None:
        shape = _fitting(name, shape, declared)
    return Tensor(name, datatype, shape, tensor.data, tensor.parameters)


def _item_shape(known: TensorMetadata, *, batches: bool) -> Shape | None:
    if known.shape is None:
        return None
    return known.shape[1:] if batches else known.shape


def _fitting(name: str, shape: Shape, declared: Shape) -> Shape:
    if not declared and shape == (1,):
        return ()  # one scalar: a protocol without rank 0 writes it as one element
    if len(shape) != len(declared) or any(
        needed not in (-1, dim) for dim, needed in zip(shape, declared, strict=False)
    ):
        raise InvalidRequest(
            f"input {name!r} has dims {list(shape)}, the model takes {list(declared)}"
        )
    return shape


def _share_bytes(tensor: Tensor, given: int | None, batch_size: int) -> int:
    """Return the size of a share; that of BYTES must be given."""
    datatype, shape = tensor.datatype, tensor.shape
    assert datatype is not None  # noqa: S101  # `_described` has filled both
    assert shape is not None  # noqa: S101
    count = batch_size * math.prod(shape)
    if datatype is Datatype.BYTES:
        if given is None and count:
            raise InvalidTensor(
                f"input {tensor.name!r} is BYTES and comes without its size in bytes "
                "(batch_byte_size)"
            )
        return given or 0
    expected = count * datatype.size_bytes
    if given not in (None, expected):
        raise InvalidTensor(_wrong_size(tensor, batch_size, given or 0, expected))
    return expected


def _with_view(tensor: Tensor, view: memoryview) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tensor.shape, RawData(view), tensor.parameters)


def _check_data(tensor: Tensor, batch_size: int) -> None:
    """Refuse a tensor whose bytes are not what datatype, shape and batch size need."""
    data, datatype, shape = tensor.data, tensor.datatype, tensor.shape
    assert datatype is not None  # noqa: S101  # `_described` has filled both
    assert shape is not None  # noqa: S101
    if isinstance(data, RawData) and datatype is Datatype.BYTES:
        raw_tensor(tensor.name, datatype, (batch_size, *shape), data.view)
    elif datatype is not Datatype.BYTES:
        expected = batch_size * math.prod(shape) * datatype.size_bytes
        if tensor.nbytes != expected:
            raise InvalidTensor(_wrong_size(tensor, batch_size, tensor.nbytes, expected))
        if datatype is Datatype.BOOL and isinstance(data, RawData):
            check_bools(tensor.name, data.view)


def _wrong_size(tensor: Tensor, batch_size: int, found: int, expected: int) -> str:
    datatype = "" if tensor.datatype is None else f" of {tensor.datatype.name}"
    return (
        f"input {tensor.name!r} has {found} bytes, batch size {batch_size} of dims "
        f"{list(tensor.shape or ())}{datatype} needs {expected}"
    )


def split_request(call: InferRequest, metadata: ModelMetadata) -> InferRequest:
    """Return a call of whole shapes with its batch size apart.

    Raises:
        InvalidRequest: The inputs have not one batch size, or one the model does not take.
    """
    if not metadata.batches:
        return call.changed(batch_size=1)
    model = call.model or ModelRef(metadata.name)
    size = _one_size(call.inputs, InvalidRequest, model)
    size = 1 if size is None else size
    _check_batch(model, metadata, size)
    inputs = tuple([_reshaped(tensor, (tensor.shape or ())[1:]) for tensor in call.inputs])
    return call.changed(inputs=inputs, batch_size=size)


def joined_reply(reply: InferResponse, metadata: ModelMetadata) -> InferResponse:
    """Return an answer whose batch size stands apart with whole shapes."""
    batches = metadata.batches
    declared = {known.name: known for known in metadata.outputs}
    size = reply.batch_size or 1
    outputs = []
    for tensor in reply.outputs:
        shape = tensor.shape or ()
        known = declared.get(tensor.name)
        item = None if known is None else _item_shape(known, batches=batches)
        if item == () and shape == (1,):
            shape = ()
        outputs.append(_reshaped(tensor, (size, *shape) if batches else shape))
    return reply.changed(outputs=tuple(outputs), batch_size=None)


def split_reply(
    reply: InferResponse, metadata: ModelMetadata, batch_size: int | None
) -> InferResponse:
    """Return an answer of whole shapes with its batch size apart.

    Args:
        reply: The answer.
        metadata: Of the model that gave it.
        batch_size: The request's, which the answer's must be; None for any.

    Raises:
        UpstreamProtocolError: The outputs have not one batch size, or not the request's.
    """
    if not metadata.batches:
        return reply.changed(batch_size=1)
    size = _one_size(reply.outputs, UpstreamProtocolError, reply.model)
    if size is None:
        size = batch_size or 1
    if batch_size not in (None, size):
        raise UpstreamProtocolError(
            f"the outputs have batch size {size}, the request {batch_size}", model=reply.model
        )
    outputs = tuple([_reshaped(tensor, (tensor.shape or ())[1:]) for tensor in reply.outputs])
    return reply.changed(outputs=outputs, batch_size=size)


def _one_size(
    tensors: Sequence[Tensor],
    failure: type[InvalidRequest | UpstreamProtocolError],
    model: ModelRef,
) -> int | None:
    """Return the first axis that all tensors share; None when there is no tensor."""
    sizes = {(tensor.shape or (None,))[0] for tensor in tensors}
    if len(sizes) > 1 or None in sizes:
        shapes = "; ".join(f"{tensor.name!r} {list(tensor.shape or ())}" for tensor in tensors[:8])
        raise failure(
            f"model {str(model)!r} batches, so the first axis of all tensors must be one number; "
            f"found are {shapes}",
            model=model,
        )
    return sizes.pop() if sizes else None


def _reshaped(tensor: Tensor, shape: Shape) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, shape, tensor.data, tensor.parameters)
