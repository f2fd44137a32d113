"""GuessedOutputs: what no metadata of a model tell: datatypes of replies of JSON, a batch axis."""

from typing import Any, TypeVar

import numpy as np

from gateway.ir.calls import Call, InferResponse, ModelMetadataRequest
from gateway.ir.context import Need
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import UntypedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, items_tensor
from gateway.ir.values.untyped import parsed, typed_tensor
from gateway.service import Service

R = TypeVar("R")

_UNNAMED = "predictions"
_INT64_MAX = (1 << 63) - 1


def with_datatypes(inner: Service, needs: frozenset[Need]) -> Service:
    """Return a client of a server, whose replies have datatypes; guessed ones, if they have none.

    Args:
        inner: The server.
        needs: What the codec needs to write a message.
    """
    if Need.UNTYPED not in needs:
        return inner
    return GuessedOutputs(inner, has_items=Need.ITEMS in needs)


class GuessedOutputs:
    """Gives outputs without a datatype one that has all their values.

    Args:
        inner: The server.
        has_items: A request of the server has one item: without metadata the first axis of all
            inputs is that of a batch.
    """

    def __init__(self, inner: Service, *, has_items: bool = False) -> None:
        self._inner = inner
        self._has_items = has_items

    async def __call__(self, call: Call[R], /) -> R:
        """Return the reply of the server."""
        try:
            reply = await self._inner(call)
        except GatewayError:
            if not self._has_items or not isinstance(call, ModelMetadataRequest):
                raise
            name = "" if call.model is None else call.model.name
            return ModelMetadata(name=name, max_batch_size=_INT64_MAX)  # type: ignore[return-value]  # R
        if not isinstance(reply, InferResponse) or await self._has_metadata(call):
            return reply
        outputs = tuple(map(_guessed, reply.outputs))
        return reply.changed(outputs=outputs)  # type: ignore[return-value]  # R

    async def _has_metadata(self, call: Call[Any]) -> bool:
        question = ModelMetadataRequest(model=call.model, context=call.context)
        try:
            await self._inner(question)
        except GatewayError:
            return False
        return True


def _guessed(tensor: Tensor) -> Tensor:
    data = tensor.data
    if not isinstance(data, UntypedData):
        return tensor
    name = tensor.name or _UNNAMED
    if isinstance(data.value, memoryview):
        return items_tensor(name, (), [data.value])
    return typed_tensor(name, data, TensorMetadata(name, _datatype(parsed(data).value), None))


def _datatype(value: Any) -> Datatype:
    leaves = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else list(_leaves(value))
    kinds = set(map(type, leaves)) - {type(None)}
    if kinds and kinds <= {int}:
        return Datatype.UINT64 if max(leaves) > _INT64_MAX else Datatype.INT64
    if kinds == {bool}:
        return Datatype.BOOL
    return Datatype.BYTES if str in kinds else Datatype.FP64


def _leaves(value: Any) -> Any:
    if not isinstance(value, list):
        yield value
        return
    for each in value:
        yield from _leaves(each)
