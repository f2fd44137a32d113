"""Signatures: metadata from YAML, for models whose server reports none, or the wrong ones."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import structlog

from gateway.api.layer import Calls, Entries, Layer, LayerContext
from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.errors import GatewayError, VersionNotFound
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.service import ReplyCoroutine, Service
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.setting import Setting
from gateway.settings.signature import SignatureConfig, TensorConfig
from gateway.telemetry.log.error_texts import error_text

R = TypeVar("R")

log = structlog.get_logger(__name__)

# The target's metadata is optional for a complete signature, so the wait for it is short.
_OPTIONAL_TIMEOUT_S: Final = 1.0

SIGNATURE: Final = Setting[SignatureConfig | None](
    key="signature",
    type=SignatureConfig | None,
    default=None,
    help="Inputs, outputs and other metadata. Default: that of the model.",
    places=("model",),
)


@dataclass(frozen=True, slots=True)
class DescribedModels:
    """What the configuration says about models, by their name at the target.

    Attributes:
        signatures: Of models whose server reports none, or the wrong ones.
        declarations: What the metadata tells besides.
    """

    signatures: Mapping[str, SignatureConfig] = field(default_factory=dict)
    declarations: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def of(self, has_model: Callable[[str], bool]) -> "DescribedModels":
        """Return what it says about some models, by their names."""
        return DescribedModels(
            {name: each for name, each in self.signatures.items() if has_model(name)},
            {name: each for name, each in self.declarations.items() if has_model(name)},
        )


class Signatures:
    """Replies to metadata calls about configured models; passes all other calls on.

    Fields that a signature does not set come from the target. A signature with inputs and outputs
    needs only the versions and the platform of the model, and works without them if the target
    does not reply.

    Args:
        inner: The target.
        signatures: By model name at the target.
        declarations: What the metadata tells of models besides, by model name.
        clock: Monotonic seconds.

    Raises:
        ValueError: A datatype does not exist.
    """

    def __init__(
        self,
        inner: Service,
        signatures: Mapping[str, SignatureConfig],
        declarations: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._declarations = declarations
        self._complete = {
            name: metadata_of(name, signature)
            for name, signature in signatures.items()
            if signature.is_complete
        }
        self._partial = {
            name: _fields(signature)
            for name, signature in signatures.items()
            if not signature.is_complete
        }

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Return the metadata of the configuration, or pass the call on."""
        if isinstance(call, ModelMetadataRequest):
            # The reply to a ModelMetadataRequest is ModelMetadata, which is its R.
            return cast("ReplyCoroutine[R]", self._metadata(call))
        return self._inner(call)

    async def _metadata(self, call: ModelMetadataRequest) -> ModelMetadata:
        name = "" if call.model is None else call.model.name
        found = await self._signature(name, call)
        declared = self._declarations.get(name)
        if declared is None:
            return found
        return found.changed(declarations={**found.declarations, **declared})

    async def _signature(self, name: str, call: ModelMetadataRequest) -> ModelMetadata:
        if name in self._complete:
            return await self._with_target_fields(self._complete[name], call)
        found = await self._inner(call)
        if name not in self._partial:
            return found
        return found.changed(**self._partial[name], reported=found.inputs)

    async def _with_target_fields(
        self, declared: ModelMetadata, call: ModelMetadataRequest
    ) -> ModelMetadata:
        """Return *declared* with the versions and the kind of the model at the target.

        Raises:
            VersionNotFound: The model has no such version.
        """
        try:
            deadline = self._optional_deadline(call.context.deadline)
            found = await self._inner(call.with_deadline(deadline))
        except VersionNotFound:
            raise
        except GatewayError as error:
            log.debug("signature without a target", model=declared.name, reason=error_text(error))
            return declared
        return declared.changed(
            versions=found.versions,
            platform=found.platform,
            stateful=declared.stateful or found.stateful,
            decoupled=found.decoupled,
            dialect=found.dialect,
            declarations=found.declarations,
            reported=found.inputs,
        )

    def _optional_deadline(self, deadline: float | None) -> float:
        optional = self._clock() + _OPTIONAL_TIMEOUT_S
        return optional if deadline is None else min(deadline, optional)


def metadata_of(name: str, signature: SignatureConfig) -> ModelMetadata:
    """Return a signature from YAML as metadata; fields that it does not set are empty.

    Raises:
        ValueError: A datatype does not exist.
    """
    return ModelMetadata(name=name, **_fields(signature))


def _fields(signature: SignatureConfig) -> dict[str, Any]:
    """Return the fields of metadata that a signature sets."""
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
        names = ", ".join(datatype.value for datatype in Datatype)
        raise ValueError(
            f"tensor {config.name!r} has an unknown datatype {config.datatype!r}; "
            f"expected one of {names}"
        ) from None
    return TensorMetadata(config.name, datatype, config.shape)


def _build(inner: Entries, at: LayerContext) -> Service:
    models = at.part(DescribedModels)
    return Signatures(inner.questions, models.signatures, models.declarations)


def _build_local(inner: Entries, at: LayerContext) -> Service | None:
    models = at.part(DescribedModels)
    return _build(inner, at) if models.signatures or models.declarations else None


def _check(config: ConfigView) -> Iterator[Finding]:
    for path, signature in config.values(SIGNATURE):
        if signature is not None:
            try:
                metadata_of(str(path[1]), signature)
            except ValueError as error:
                yield path, str(error)


LAYER: Final = Layer(
    "Signatures",
    "replies to metadata calls from the configuration's signatures",
    "endpoint",
    _build,
    Calls.QUESTIONS,
    settings=(SIGNATURE,),
    check=_check,
)
LOCAL_LAYER: Final = Layer(
    "Signatures",
    "adds labels and batch sizes from the configuration",
    "model",
    _build_local,
    Calls.QUESTIONS,
    settings=(SIGNATURE,),
)
