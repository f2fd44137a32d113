"""Signatures: metadata from YAML, for models whose server tells too little or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from gateway.config.signatures import SignatureConfig, TensorConfig
from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.datatypes import Datatype
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")


class Signatures:
    """Answers metadata calls about configured models; everything else goes through.

    Where a signature has inputs and outputs the target is not asked. One that leaves either out
    takes it, with the versions, from the target.

    Args:
        inner: The target.
        signatures: By the model's name at the target.

    Raises:
        ValueError: A datatype does not exist.
    """

    def __init__(self, inner: Service, signatures: Mapping[str, SignatureConfig]) -> None:
        self._inner = inner
        self._whole = {
            name: metadata_of(name, signature)
            for name, signature in signatures.items()
            if signature.is_whole
        }
        self._parts = {
            name: _given(signature)
            for name, signature in signatures.items()
            if not signature.is_whole
        }

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*; metadata are completed from the configuration."""
        if isinstance(call, ModelMetadataRequest):
            # The reply to a ModelMetadataRequest is ModelMetadata, which is its R.
            return cast("ReplyCoroutine[R]", self._metadata(call))
        return self._inner(call)

    async def _metadata(self, call: ModelMetadataRequest) -> ModelMetadata:
        name = "" if call.model is None else call.model.name
        if name in self._whole:
            return self._whole[name]
        found = await self._inner(call)
        return found.changed(**self._parts[name]) if name in self._parts else found


def metadata_of(name: str, signature: SignatureConfig) -> ModelMetadata:
    """Return a signature from YAML as metadata; what it leaves out is empty.

    Raises:
        ValueError: A datatype does not exist.
    """
    return ModelMetadata(name=name, **_given(signature))


def _given(signature: SignatureConfig) -> dict[str, Any]:
    """Return the fields of metadata that a signature gives."""
    found: dict[str, Any] = {}
    if signature.inputs is not None:
        found["inputs"] = tuple(map(_tensor, signature.inputs))
    if signature.outputs is not None:
        found["outputs"] = tuple(map(_tensor, signature.outputs))
    if signature.max_batch_size is not None:
        found["max_batch_size"] = signature.max_batch_size
    if signature.stateful is not None:
        found["stateful"] = signature.stateful
    if signature.labels:
        found["labels"] = signature.labels
    return found


def _tensor(config: TensorConfig) -> TensorMetadata:
    try:
        datatype = Datatype(config.datatype)
    except ValueError:
        known = ", ".join(datatype.value for datatype in Datatype)
        raise ValueError(
            f"tensor {config.name!r} has datatype {config.datatype!r}, there is {known}"
        ) from None
    return TensorMetadata(config.name, datatype, config.shape)
