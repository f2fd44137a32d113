"""GuessedOutputs: the datatypes of a reply of JSON, where no metadata of the model tell them."""

from typing import Any, TypeVar

import numpy as np

from gateway.ir.calls import Call, InferResponse, ModelMetadataRequest
from gateway.ir.context import Need
from gateway.ir.data import UntypedData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensor import Tensor
from gateway.ir.untyped import parsed, typed_tensor
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
    return GuessedOutputs(inner) if Need.UNTYPED in needs else inner


class GuessedOutputs:
    """Gives outputs without a datatype one that has all their values.

    Args:
        inner: The server.
    """

    def __init__(self, inner: Service) -> None:
        self._inner = inner

    async def __call__(self, call: Call[R], /) -> R:
        """Return the reply of the server."""
        reply = await self._inner(call)
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
