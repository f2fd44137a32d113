"""Signatures: metadata from YAML, for models whose server tells too little or wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import structlog

from gateway.config.signatures import SignatureConfig, TensorConfig
from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError, VersionNotFound
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

log = structlog.get_logger(__name__)

# A target that does not answer must not hold up what the signature tells.
_PATIENCE_S: Final = 1.0


class Signatures:
    """Answers metadata calls about configured models; everything else goes through.

    What a signature leaves out comes from the target. One with inputs and outputs takes only the
    versions and kind of the model from there, and does without where the target does not tell.

    Args:
        inner: The target.
        signatures: By the model's name at the target.
        clock: Monotonic seconds.

    Raises:
        ValueError: A datatype does not exist.
    """

    def __init__(
        self,
        inner: Service,
        signatures: Mapping[str, SignatureConfig],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._clock = clock
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
            return await self._declared(self._whole[name], call)
        found = await self._inner(call)
        return found.changed(**self._parts[name]) if name in self._parts else found

    async def _declared(self, declared: ModelMetadata, call: ModelMetadataRequest) -> ModelMetadata:
        """Return *declared* with what the target tells besides.

        Raises:
            VersionNotFound: The model has no such version.
        """
        try:
            found = await self._inner(call.with_deadline(self._soon(call.context.deadline)))
        except VersionNotFound:
            raise
        except GatewayError as error:
            log.debug("signature without a target", model=declared.name, reason=error.message)
            return declared
        return declared.changed(
            versions=found.versions,
            platform=found.platform,
            stateful=declared.stateful or found.stateful,
            decoupled=found.decoupled,
        )

    def _soon(self, deadline: float | None) -> float:
        """Return the deadline of a question that can be done without."""
        soon = self._clock() + _PATIENCE_S
        return soon if deadline is None else min(deadline, soon)


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
