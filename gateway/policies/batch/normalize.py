"""NormalizeOutputs: makes equivalent requests equal, for batching and caching.

Some clients name every output they request; others name none and get all outputs.
"""

from typing import TypeVar, cast

from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, InferRequest
from gateway.ir.context import ModelRef
from gateway.model_info.metadata_cache import METADATA_TTL_S, MetadataCache
from gateway.service import Service

R = TypeVar("R")


class NormalizeOutputs:
    """Replaces a list of all the model's outputs by an empty list, which has the same meaning.

    Replies then have the target's order of outputs, as those of Triton and of in-process models
    always do. `Complete`, which is outside, restores the caller's order if its protocol has one.

    Args:
        inner: The service to call.
        metadata: The outputs of the model; None for a cache over *inner*.
    """

    def __init__(self, inner: Service, metadata: MetadataCache | None = None) -> None:
        self._inner = inner
        self._metadata = (
            MetadataCache(inner, ttl_s=METADATA_TTL_S) if metadata is None else metadata
        )

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner* with the normalized request."""
        if isinstance(call, InferRequest):
            has_all = call.outputs and await self._requests_all(call)
            # The R of an InferRequest is InferResponse.
            return cast("R", await self._inner(call.changed(outputs=()) if has_all else call))
        try:
            return await self._inner(call)
        finally:
            if type(call) in MODEL_CONTROL_CALLS:
                self._metadata.forget(call.model)

    async def _requests_all(self, call: InferRequest) -> bool:
        for output in call.outputs:
            if output.classes or output.parameters or output.shared is not None:
                return False
        metadata = await self._metadata.get_or_none(call.model or ModelRef(""), batching=True)
        declared = () if metadata is None else metadata.outputs
        return {output.name for output in call.outputs} == {output.name for output in declared}
