"""Alike: makes requests equal that mean the same, so that they can be batched and answered alike.

Some protocols name every output that is wanted, others say nothing and get all of them.
"""

from __future__ import annotations

from typing import TypeVar, cast

from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, InferRequest
from gateway.ir.context import ModelRef
from gateway.policies.metadata_cache import METADATA_TTL_S, MetadataCache
from gateway.service import Service

R = TypeVar("R")


class NormalizeOutputs:
    """Lets a request for each of a model's outputs by name be one for all of them.

    The answer has them in the target's own order, as Triton and models in the gateway have them
    however they are asked; `Complete`, outside, gives the caller's where its protocol has one.

    Args:
        inner: Answers.
        metadata: Says which outputs the model has; None for a cache over *inner*.
    """

    def __init__(self, inner: Service, metadata: MetadataCache | None = None) -> None:
        self._inner = inner
        self._metadata = (
            MetadataCache(inner, ttl_s=METADATA_TTL_S) if metadata is None else metadata
        )

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*."""
        if isinstance(call, InferRequest):
            asks_all = call.outputs and await self._asks_all(call)
            # The answer to an InferRequest is an InferResponse, which is its R.
            return cast("R", await self._inner(call.changed(outputs=()) if asks_all else call))
        try:
            return await self._inner(call)
        finally:
            if type(call) in MODEL_CONTROL_CALLS:
                self._metadata.forget(call.model)

    async def _asks_all(self, call: InferRequest) -> bool:
        for output in call.outputs:
            if output.classes or output.parameters or output.shared is not None:
                return False
        metadata = await self._metadata.get_or_none(call.model or ModelRef(""), batching=True)
        declared = () if metadata is None else metadata.outputs
        return {output.name for output in call.outputs} == {output.name for output in declared}
