"""Conversion between shapes with a batch axis and shapes of one item with a separate batch size.

TensorRT v1 has a separate batch size, and only the model's metadata tell whether the model has a
batch axis. Its requests have no datatypes, so this module also splits the body into inputs. Some
servers take one item with each request: `items_of` divides a batch for them.

`Complete` gets the metadata.

Source: docs/protocols/tensorrt-v1.md, "11. Batches, shapes and outputs".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, InvalidTensor, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import RawData, SlicedData, TensorData, check_items
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.expected_inputs import find_mismatch
from gateway.ir.tensors.tensor import Shape, Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.policies.complete.tensors import TensorCompleter

M = TypeVar("M", InferRequest, InferResponse)


def apply_batch_size(call: InferRequest, metadata: ModelMetadata, *, whole: bool) -> InferRequest:
    """Return *call*, which has a separate batch size, with datatypes, shapes and sliced data.

    Slices become views of their buffer.

    Args:
        call: As the codec of a protocol with a separate batch size decoded it.
        metadata: The metadata of the model.
        whole: Add the batch axis to the shapes, if the model has one; otherwise shapes stay those
            of one item.

    Raises:
        InvalidRequest: The batch size is not allowed, or an input does not match the model. Inputs
            without a name match by position.
        InvalidTensor: The number of bytes does not match the inputs.
    """
    batch_size = call.batch_size or 0
    model = call.model or ModelRef(metadata.name)
    _check_batch(model, metadata, batch_size)
    has_batch = metadata.supports_batching
    names = dict.fromkeys(declared.name for declared in metadata.inputs)  # in their order
    # Before elements are read.
    mismatch = find_mismatch(model, [tensor.name for tensor in call.inputs], names)
    if mismatch is not None:
        raise mismatch
    body: memoryview | None = None
    offset = 0
    inputs = []
    completer = TensorCompleter("input", model, metadata.inputs, has_batch, InvalidRequest)
    for tensor, declared in zip(call.inputs, completer.declared_of(call.inputs), strict=True):
        name, data = declared.name, tensor.data
        datatype, shape = _item_type(tensor, declared, metadata.name, has_batch=has_batch)
        item = _Item(name, datatype, shape, batch_size)
        if isinstance(data, SlicedData):
            body = data.whole
            start, offset = offset, offset + item.slice_bytes(data.declared_bytes)
            data = RawData(body[start:offset])
        item.check(tensor, data)
        full = (batch_size, *shape) if whole and has_batch else shape
        inputs.append(Tensor(name, datatype, full, data, tensor.parameters))
    if body is not None and body.nbytes != offset:
        raise InvalidTensor(
            f"the inputs have {body.nbytes} bytes together, "
            f"batch size {batch_size} of model {str(model)!r} needs {offset}"
        )
    return call.changed(inputs=tuple(inputs), batch_size=None if whole else batch_size)


def _check_batch(model: ModelRef, metadata: ModelMetadata, batch_size: int) -> None:
    limit = (metadata.max_batch_size or batch_size) if metadata.supports_batching else 1
    if not 1 <= batch_size <= limit:
        why = "" if metadata.supports_batching else ": it does not batch"
        raise InvalidRequest(
            f"batch size is {batch_size}, model {str(model)!r} allows 1 to {max(limit, 1)}{why}",
            model=model,
        )


def _item_type(
    tensor: Tensor, declared: TensorMetadata, model: str, *, has_batch: bool
) -> tuple[Datatype, Shape]:
    """Return the datatype and shape of one item."""
    name = declared.name
    datatype = tensor.datatype or declared.datatype
    if datatype is None:
        raise InvalidRequest(
            f"the metadata of model {model!r} declare no datatype for input {name!r}"
        )
    expected = _item_shape(declared, has_batch=has_batch)
    shape = tensor.shape
    if shape is None:
        if expected is None or min(expected, default=0) < 0:
            raise InvalidRequest(
                f"input {name!r} has no dims, and those of the model are "
                f"{'unknown' if expected is None else list(expected)}"
            )
        return datatype, expected
    return datatype, shape if expected in (None, shape) else _match_shape(name, shape, expected)


def _item_shape(declared: TensorMetadata, *, has_batch: bool) -> Shape | None:
    if declared.shape is None:
        return None
    return declared.shape[1:] if has_batch else declared.shape


def _match_shape(name: str, shape: Shape, expected: Shape) -> Shape:
    if not expected and shape == (1,):
        return ()  # a scalar, in a protocol without rank 0
    if len(shape) != len(expected) or any(
        size not in (-1, dim) for dim, size in zip(shape, expected, strict=False)
    ):
        raise InvalidRequest(
            f"input {name!r} has dims {list(shape)}, the model expects {list(expected)}"
        )
    return shape


@dataclass(frozen=True, slots=True)
class _Item:
    """The type of an input as the model declares it, and the batch size of its data."""

    name: str
    datatype: Datatype
    shape: Shape
    batch_size: int

    @property
    def count(self) -> int:
        """Elements of the complete batch."""
        return self.batch_size * math.prod(self.shape)

    def slice_bytes(self, declared: int | None) -> int:
        """Return the size of a slice; for BYTES the sender must declare it."""
        count = self.count
        if self.datatype is Datatype.BYTES:
            if declared is None and count:
                raise InvalidTensor(
                    f"BYTES input {self.name!r} has no size in bytes (batch_byte_size)"
                )
            return declared or 0
        expected = count * self.datatype.size_bytes
        if declared not in (None, expected):
            raise self._size_mismatch(declared or 0, expected)
        return expected

    def check(self, tensor: Tensor, data: TensorData) -> None:
        """Reject data that does not match datatype, shape and batch size."""
        if self.datatype is Datatype.BYTES:
            if isinstance(data, RawData):
                check_items(self.name, data.view, self.count)
            return
        expected = self.count * self.datatype.size_bytes
        found = data.view.nbytes if isinstance(data, RawData) else tensor.nbytes
        if found != expected:
            raise self._size_mismatch(found, expected)

    def _size_mismatch(self, found: int, expected: int) -> InvalidTensor:
        return InvalidTensor(
            f"input {self.name!r} has {found} bytes, batch size {self.batch_size} of dims "
            f"{list(self.shape)} of {self.datatype.name} needs {expected}"
        )


def split_request(call: InferRequest, metadata: ModelMetadata) -> InferRequest:
    """Return *call* with a separate batch size and shapes of one item.

    Raises:
        InvalidRequest: The inputs have different batch sizes, or the model does not allow the size.
    """
    if not metadata.supports_batching:
        return call.changed(batch_size=1)
    model = call.model or ModelRef(metadata.name)
    size = _one_size(call.inputs, InvalidRequest, model)
    size = 1 if size is None else size
    _check_batch(model, metadata, size)
    inputs = tuple([_with_shape(tensor, (tensor.shape or ())[1:]) for tensor in call.inputs])
    return call.changed(inputs=inputs, batch_size=size)


def merge_batch_size(reply: InferResponse, metadata: ModelMetadata) -> InferResponse:
    """Return *reply*, which has a separate batch size, with the batch axis in its shapes."""
    has_batch = metadata.supports_batching
    by_name = {declared.name: declared for declared in metadata.outputs}
    size = reply.batch_size or 1
    outputs = []
    for tensor in reply.outputs:
        shape = tensor.shape or ()
        declared = by_name.get(tensor.name)
        item = None if declared is None else _item_shape(declared, has_batch=has_batch)
        if item == () and shape == (1,):
            shape = ()
        outputs.append(_with_shape(tensor, (size, *shape) if has_batch else shape))
    return reply.changed(outputs=tuple(outputs), batch_size=None)


def split_reply(
    reply: InferResponse, metadata: ModelMetadata, batch_size: int | None
) -> InferResponse:
    """Return *reply* with a separate batch size and shapes of one item.

    Args:
        reply: The reply.
        metadata: The metadata of the model.
        batch_size: The batch size of the request, which the reply must have; None for any.

    Raises:
        UpstreamProtocolError: The outputs have different batch sizes, or not the request's.
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
    outputs = tuple([_with_shape(tensor, (tensor.shape or ())[1:]) for tensor in reply.outputs])
    return reply.changed(outputs=outputs, batch_size=size)


def _one_size(
    tensors: Sequence[Tensor],
    failure: type[InvalidRequest | UpstreamProtocolError],
    model: ModelRef,
) -> int | None:
    """Return the size of the first axis of all tensors; None without tensors."""
    sizes = {(tensor.shape or (None,))[0] for tensor in tensors}
    if len(sizes) > 1 or None in sizes:
        shapes = "; ".join(f"{tensor.name!r} {list(tensor.shape or ())}" for tensor in tensors[:8])
        raise failure(
            f"the first axes of the tensors of model {str(model)!r} differ: {shapes}; expected the "
            "same batch size",
            model=model,
        )
    return sizes.pop() if sizes else None


def _with_shape(tensor: Tensor, shape: Shape) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, shape, tensor.data, tensor.parameters)


def items_of(call: InferRequest) -> Sequence[InferRequest]:
    """Return *call*, which has a separate batch size, as one call for each item; numbers are views.

    Raises:
        InvalidTensor: Shapes and data do not match.
    """
    size = call.batch_size or 1
    columns = [_items(tensor, size) for tensor in call.inputs]
    return [call.changed(inputs=inputs, batch_size=1) for inputs in zip(*columns, strict=True)]


def _items(tensor: Tensor, size: int) -> list[Tensor]:
    shape = tensor.shape or ()
    if tensor.datatype is Datatype.BYTES:
        each = math.prod(shape)
        found = as_items(tensor)
        return [
            items_tensor(tensor.name, shape, found[at * each : (at + 1) * each], tensor.parameters)
            for at in range(size)
        ]
    whole = Tensor(tensor.name, tensor.datatype, (size, *shape), tensor.data)
    return [array_tensor(tensor.name, row, tensor.datatype) for row in as_numpy(whole)]
