"""Describe: model configuration for targets that have none, and whether a model batches.

Open Inference's metadata do not say how much a model batches, nor for certain whether it does;
Triton's configuration does. Other targets have metadata and no configuration: it is made of them.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from gateway.ir.calls import Call, ModelConfigRequest, ModelMetadataRequest
from gateway.ir.context import Need
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError, NotFound, Unsupported
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_BATCHING = frozenset({Need.BATCHING})


class ModelConfigurationLayer:
    """Answers questions about models from the target's configuration, or else its metadata.

    Args:
        inner: The target; it raises Unsupported where it has no model configuration.
    """

    def __init__(self, inner: Service) -> None:
        self._inner = inner

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*.

        Raises:
            GatewayError: The target's own.
        """
        # Each branch knows its R; the type system cannot follow an isinstance that far.
        if isinstance(call, ModelConfigRequest):
            return cast("ReplyCoroutine[R]", self._configuration(call))
        if isinstance(call, ModelMetadataRequest) and Need.BATCHING in call.context.needs:
            return cast("ReplyCoroutine[R]", self._metadata(call))
        return self._inner(call)

    async def _configuration(self, call: ModelConfigRequest) -> ModelConfiguration:
        try:
            return await self._inner(call)
        except (Unsupported, NotFound) as error:
            is_withheld = error.origin is not None
            # Whether the model is there at all, its metadata tell.
            context = call.with_context(needs=_BATCHING, origin=None).context
            question = ModelMetadataRequest(model=call.model, context=context)
            return configuration_of(await self._inner(question), is_withheld=is_withheld)

    async def _metadata(self, call: ModelMetadataRequest) -> ModelMetadata:
        found = await self._inner(call)
        known = found.max_batch_size
        if found.stateful and known is not None:
            return found
        question = ModelConfigRequest(model=call.model, context=call.context)
        try:
            told = await self._inner(question)
        except GatewayError as error:
            if error.retryable and known is None:
                raise
            return found  # it has no configuration, or does not show it: shapes have to tell
        return found.changed(
            max_batch_size=told.max_batch_size if known is None else known,
            stateful=found.stateful or told.stateful,
            labelled=told.labelled,
        )


def configuration_of(metadata: ModelMetadata, *, is_withheld: bool = False) -> ModelConfiguration:
    """Return a model's metadata in the words of Triton's model configuration.

    Dimensions of a model that batches are those of one item. Where it is not known how much it
    batches, they are whole and `max_batch_size` is 0: so read, they are true.

    Source: docs/protocols/open-inference.md, "14. Models, statistics and settings".
    """
    most = metadata.max_batch_size or 0
    policies: dict[str, Any] = {"sequence_batching": {}} if metadata.stateful else {}
    if metadata.decoupled:
        policies["model_transaction_policy"] = {"decoupled": True}
    return ModelConfiguration(
        {
            "name": metadata.name,
            "platform": metadata.platform,
            "max_batch_size": most,
            "input": [_tensor(tensor, batches=most > 0) for tensor in metadata.inputs],
            "output": [_tensor(tensor, batches=most > 0) for tensor in metadata.outputs],
            **policies,
        },
        is_withheld,
    )


def _tensor(tensor: TensorMetadata, *, batches: bool) -> dict[str, Any]:
    shape = tensor.shape or ()
    return {
        "name": tensor.name,
        "data_type": _data_type(tensor.datatype),
        "dims": list(shape[1:] if batches else shape),
    }


def _data_type(datatype: Datatype | None) -> str:
    if datatype is None:
        return "TYPE_INVALID"
    return f"TYPE_{'STRING' if datatype is Datatype.BYTES else datatype.value}"
