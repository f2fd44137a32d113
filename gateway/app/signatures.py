"""Signatures: metadata from YAML, for models whose server tells too little or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

from gateway.config.models import SignatureConfig, TensorConfig
from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.datatypes import Datatype
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.service import Service

R = TypeVar("R")


class Signatures:
    """Answers metadata calls about configured models; everything else goes through.

    Args:
        inner: The upstream.
        signatures: By the model's name at the upstream.
    """

    def __init__(self, inner: Service, signatures: Mapping[str, SignatureConfig]) -> None:
        self._inner = inner
        self._known = {name: metadata_of(name, signature) for name, signature in signatures.items()}

    async def __call__(self, call: Call[R], /) -> R:
        """Answer from the configuration where it knows the model."""
        if isinstance(call, ModelMetadataRequest) and call.model is not None:
            known = self._known.get(call.model.name)
            if known is not None:
                # A ModelMetadataRequest's R is ModelMetadata.
                return cast("R", known)
        return await self._inner(call)


def metadata_of(name: str, signature: SignatureConfig) -> ModelMetadata:
    """Return a signature from YAML as metadata.

    Raises:
        ValueError: A datatype does not exist.
    """
    return ModelMetadata(
        name=name,
        platform="",
        inputs=tuple(map(_tensor, signature.inputs)),
        outputs=tuple(map(_tensor, signature.outputs)),
        max_batch_size=signature.max_batch_size,
        labels=signature.labels,
    )


def _tensor(config: TensorConfig) -> TensorMetadata:
    try:
        datatype = Datatype(config.datatype)
    except ValueError:
        known = ", ".join(datatype.value for datatype in Datatype)
        raise ValueError(
            f"tensor {config.name!r} has datatype {config.datatype!r}, there is {known}"
        ) from None
    return TensorMetadata(config.name, datatype, config.shape)
