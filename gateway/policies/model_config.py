"""ModelConfigurationLayer: completes metadata by the configuration, and the other way around.

Metadata of Open Inference do not contain the maximum batch size; Triton's model configuration does.
For targets without a model configuration, the layer derives one from the metadata.
"""

from typing import Any, TypeVar, cast

from gateway.ir.calls import Call, ModelConfigRequest, ModelMetadataRequest
from gateway.ir.context import Need
from gateway.ir.errors import GatewayError, NotFound, Unsupported
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_BATCHING = frozenset({Need.BATCHING})


class ModelConfigurationLayer:
    """Handles calls for model configuration, and for metadata with BATCHING in the needs.

    Args:
        inner: The target; it raises Unsupported if it has no model configuration.
    """

    def __init__(self, inner: Service) -> None:
        self._inner = inner

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*.

        Raises:
            GatewayError: The error of the target.
        """
        # Each branch has its R; the type system cannot follow an isinstance that far.
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
            # The metadata call fails if the model does not exist.
            context = call.with_context(needs=_BATCHING, origin=None).context
            metadata_call = ModelMetadataRequest(model=call.model, context=context)
            metadata = await self._inner(metadata_call)
            return configuration_of(metadata, is_withheld=is_withheld)

    async def _metadata(self, call: ModelMetadataRequest) -> ModelMetadata:
        metadata = await self._inner(call)
        size = metadata.max_batch_size
        if metadata.stateful and size is not None:
            return metadata
        try:
            configuration = await self._inner(
                ModelConfigRequest(model=call.model, context=call.context)
            )
        except GatewayError as error:
            if error.is_retryable and size is None:
                raise
            return metadata  # without a configuration, the shapes decide whether the model batches
        return metadata.changed(
            max_batch_size=configuration.max_batch_size if size is None else size,
            stateful=metadata.stateful or configuration.stateful,
            decoupled=metadata.decoupled or configuration.decoupled,
            configuration=configuration,
        )


def configuration_of(metadata: ModelMetadata, *, is_withheld: bool = False) -> ModelConfiguration:
    """Return a model's metadata in the form of Triton's model configuration.

    Dimensions of a model that batches are those of one item. If the maximum batch size is unknown,
    dimensions include the batch axis and `max_batch_size` is 0, which is also correct.

    Source: docs/protocols/open-inference.md, "14. Models, statistics and settings".
    """
    max_batch_size = metadata.max_batch_size or 0
    policies: dict[str, Any] = {"sequence_batching": {}} if metadata.stateful else {}
    if metadata.decoupled:
        policies["model_transaction_policy"] = {"decoupled": True}
    return ModelConfiguration(
        {
            "name": metadata.name,
            "platform": metadata.platform,
            "max_batch_size": max_batch_size,
            "input": [_tensor(one, has_batch=max_batch_size > 0) for one in metadata.inputs],
            "output": [_tensor(one, has_batch=max_batch_size > 0) for one in metadata.outputs],
            **policies,
        },
        is_withheld,
    )


def _tensor(tensor: TensorMetadata, *, has_batch: bool) -> dict[str, Any]:
    shape = tensor.shape or ()
    return {
        "name": tensor.name,
        "data_type": _data_type(tensor.datatype),
        "dims": list(shape[1:] if has_batch else shape),
    }


def _data_type(datatype: Datatype | None) -> str:
    if datatype is None:
        return "TYPE_INVALID"
    return f"TYPE_{'STRING' if datatype is Datatype.BYTES else datatype.value}"
