"""Batch sizes apart from shapes, and inputs that share one buffer: made whole, and back. Pure.

TensorRT v1 never writes the batch axis: shapes are of one item, the batch size is a number of its
own, and only the model's metadata tells whether there is such an axis at all. Nor does a request
tell datatypes, so that where one input ends in a body is known here first.

`Complete` asks for the metadata; here it is applied.

Source: docs/protocols/tensorrt-v1.md, "11. Batches, shapes and outputs".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.data import RawData, SlicedData, TensorData, check_bools, check_items
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest, InvalidTensor, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Shape, Tensor

M = TypeVar("M", InferRequest, InferResponse)


def apply_batch_size(call: InferRequest, metadata: ModelMetadata, *, whole: bool) -> InferRequest:
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
    batches = metadata.supports_batching
    declared = {known.name: known for known in metadata.inputs}
    shared: memoryview | None = None
    offset = 0
    inputs = []
    for tensor in call.inputs:
        name, data = tensor.name, tensor.data
        known = declared.get(name)
        if known is None:
            names = ", ".join(map(repr, declared)) or "none"
            raise InvalidRequest(
                f"model {str(model)!r} has no input {name!r}; its inputs are {names}",
                model=model,
            )
        datatype, shape = _described(tensor, known, metadata.name, batches=batches)
        item = _Item(name, datatype, shape, batch_size)
        if isinstance(data, SlicedData):
            shared = data.whole
            start, offset = offset, offset + item.share_bytes(data.declared_bytes)
            data = RawData(shared[start:offset])
        item.check(tensor, data)
        full = (batch_size, *shape) if whole and batches else shape
        inputs.append(Tensor(name, datatype, full, data, tensor.parameters))
    if shared is not None and shared.nbytes != offset:
        raise InvalidTensor(
            f"the inputs share {shared.nbytes} bytes, "
            f"batch size {batch_size} of model {str(model)!r} needs {offset}"
        )
    return call.changed(inputs=tuple(inputs), batch_size=None if whole else batch_size)


def _check_batch(model: ModelRef, metadata: ModelMetadata, batch_size: int) -> None:
    most = (metadata.max_batch_size or batch_size) if metadata.supports_batching else 1
    if not 1 <= batch_size <= most:
        why = "" if metadata.supports_batching else ": it does not batch"
        raise InvalidRequest(
            f"batch size {batch_size}, model {str(model)!r} takes from 1 to {max(most, 1)}{why}",
            model=model,
        )


def _described(
    tensor: Tensor, known: TensorMetadata, model: str, *, batches: bool
) -> tuple[Datatype, Shape]:
    """Return datatype and shape of one item."""
    name = tensor.name
    datatype = tensor.datatype or known.datatype
    if datatype is None:
        raise InvalidRequest(
            f"the metadata of model {model!r} does not tell the datatype of input {name!r}"
        )
    declared = _item_shape(known, batches=batches)
    shape = tensor.shape
    if shape is None:
        if declared is None or min(declared, default=0) < 0:
            raise InvalidRequest(
                f"input {name!r} comes without dims, and those of the model are "
                f"{'unknown' if declared is None else list(declared)}"
            )
        return datatype, declared
    return datatype, shape if declared in (None, shape) else _fitting(name, shape, declared)


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


@dataclass(frozen=True, slots=True)
class _Item:
    """An input as the model takes it, with the batch size that its bytes are of."""

    name: str
    datatype: Datatype
    shape: Shape
    batch_size: int

    @property
    def count(self) -> int:
        """Elements of the whole batch."""
        return self.batch_size * math.prod(self.shape)

    def share_bytes(self, given: int | None) -> int:
        """Return the size of a share; that of BYTES must be given."""
        count = self.count
        if self.datatype is Datatype.BYTES:
            if given is None and count:
                raise InvalidTensor(
                    f"input {self.name!r} is BYTES and comes without its size in bytes "
                    "(batch_byte_size)"
                )
            return given or 0
        expected = count * self.datatype.size_bytes
        if given not in (None, expected):
            raise self._wrong_size(given or 0, expected)
        return expected

    def check(self, tensor: Tensor, data: TensorData) -> None:
        """Refuse bytes that are not what datatype, shape and batch size need."""
        if self.datatype is Datatype.BYTES:
            if isinstance(data, RawData):
                check_items(self.name, data.view, self.count)
            return
        expected = self.count * self.datatype.size_bytes
        found = data.view.nbytes if isinstance(data, RawData) else tensor.nbytes
        if found != expected:
            raise self._wrong_size(found, expected)
        if self.datatype is Datatype.BOOL and isinstance(data, RawData):
            check_bools(self.name, data.view)

    def _wrong_size(self, found: int, expected: int) -> InvalidTensor:
        return InvalidTensor(
            f"input {self.name!r} has {found} bytes, batch size {self.batch_size} of dims "
            f"{list(self.shape)} of {self.datatype.name} needs {expected}"
        )


def split_request(call: InferRequest, metadata: ModelMetadata) -> InferRequest:
    """Return a call of whole shapes with its batch size apart.

    Raises:
        InvalidRequest: The inputs have not one batch size, or one the model does not take.
    """
    if not metadata.supports_batching:
        return call.changed(batch_size=1)
    model = call.model or ModelRef(metadata.name)
    size = _one_size(call.inputs, InvalidRequest, model)
    size = 1 if size is None else size
    _check_batch(model, metadata, size)
    inputs = tuple([_reshaped(tensor, (tensor.shape or ())[1:]) for tensor in call.inputs])
    return call.changed(inputs=inputs, batch_size=size)


def merge_batch_size(reply: InferResponse, metadata: ModelMetadata) -> InferResponse:
    """Return an answer whose batch size stands apart with whole shapes."""
    batches = metadata.supports_batching
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
    if not metadata.supports_batching:
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
