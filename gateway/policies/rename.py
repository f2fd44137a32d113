"""Rename: translates the names of a model, its version and its tensors.

Callers use their names; *inner* gets the names of the target. Calls to the server pass unchanged.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

from pydantic import Field

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.streams import MappedStream
from gateway.ir.tensor import RequestedOutput, Tensor
from gateway.service import Service
from gateway.settings.fields import Name
from gateway.settings.model import Model
from gateway.settings.setting import Setting

R = TypeVar("R")


class TensorNamesConfig(Model):
    """Translation of tensor names between the client and the target."""

    inputs: Mapping[Name, Name] = Field(default_factory=dict)
    """Input names of the client, each with the name at the target. Default: the same names."""
    outputs: Mapping[Name, Name] = Field(default_factory=dict)
    """Output names of the client, each with the name at the target. Default: the same names."""


TENSORS: Final = Setting[TensorNamesConfig](
    key="tensors",
    type=TensorNamesConfig,
    default=TensorNamesConfig(),
    help="Tensor names that differ between the client and the target.",
    places=("target",),
)


class TargetModel(NamedTuple):
    """The name and the version of a model at its target; None for those of the caller."""

    name: str | None = None
    version: str | None = None


class Rename:
    """Translates the names in calls, and translates them back in replies.

    Args:
        inner: The service to call; it uses the target's names.
        model: The target's name of the model; None keeps the caller's.
        version: The target's version; None keeps the caller's; "" requests no version.
        inputs: Target's input names by the caller's; others are unchanged.
        outputs: Target's output names by the caller's; others are unchanged.

    Raises:
        ValueError: Two names are mapped to the same name.
    """

    def __init__(
        self,
        inner: Service,
        *,
        model: str | None = None,
        version: str | None = None,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
    ) -> None:
        self._inner = inner
        self._model = model
        self._version = version
        self._inputs = dict(inputs or {})
        self._outputs = dict(outputs or {})
        self._inputs_back = _inverse("inputs", self._inputs)
        self._outputs_back = _inverse("outputs", self._outputs)

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner* with the target's names, and return the reply with the caller's.

        Raises:
            InvalidRequest: Two inputs have the same name after renaming.
        """
        model = call.model
        if model is None:
            return await self._inner(call)
        target = self._target(model)
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if isinstance(call, InferRequest):
            return cast("R", self._response(model, await self._inner(self._request(call, target))))
        if isinstance(call, StreamInferRequest):
            request = self._request(call.request, target)
            items = await self._inner(call.changed(model=target, request=request))
            return cast("R", MappedStream(items, lambda item: self._item(model, item)))
        if target != model:
            call = call.changed(model=target)
        reply = await self._inner(call)
        if isinstance(call, ModelMetadataRequest):
            return cast("R", self._metadata(model, cast("ModelMetadata", reply)))
        if isinstance(call, ModelConfigRequest):
            return cast("R", self._configuration(model, cast("ModelConfiguration", reply)))
        return reply

    def _target(self, model: ModelRef) -> ModelRef:
        name = model.name if self._model is None else self._model
        return ModelRef(name, model.version if self._version is None else self._version)

    def _request(self, call: InferRequest, target: ModelRef) -> InferRequest:
        inputs, outputs, members = call.inputs, call.outputs, call.flat_members
        if self._inputs:
            inputs = tuple(_rename(tensor, self._inputs) for tensor in inputs)
            names = [self._inputs.get(name, name) for name in members]
            _check_distinct("input", [*(tensor.name for tensor in inputs), *names])
            members = dict(zip(names, members.values(), strict=True))
        if self._outputs:
            outputs = tuple(_rename_output(output, self._outputs) for output in outputs)
        same = inputs == call.inputs and outputs == call.outputs and members == call.flat_members
        if target == call.model and same:
            return call
        return call.changed(model=target, inputs=inputs, outputs=outputs, flat_members=members)

    def _response(self, requested: ModelRef, reply: InferResponse) -> InferResponse:
        """Return *reply* with the caller's names; the target's version if none was requested."""
        model = ModelRef(requested.name, requested.version or reply.model.version)
        outputs = reply.outputs
        if self._outputs_back:
            outputs = tuple(_rename(tensor, self._outputs_back) for tensor in outputs)
        if model == reply.model and outputs == reply.outputs:
            return reply
        return reply.changed(model=model, outputs=outputs)

    async def _item(self, requested: ModelRef, item: InferResponse) -> InferResponse:
        return self._response(requested, item)

    def _metadata(self, requested: ModelRef, metadata: ModelMetadata) -> ModelMetadata:
        versions = metadata.versions
        if self._version:  # the target's version serves every requested version
            versions = (requested.version or self._version,)
        back = self._outputs_back
        configuration = metadata.configuration
        if configuration is not None:
            configuration = self._configuration(requested, configuration)
        return metadata.changed(
            name=requested.name,
            versions=versions,
            inputs=tuple(_rename_metadata(tensor, self._inputs_back) for tensor in metadata.inputs),
            outputs=tuple(_rename_metadata(tensor, back) for tensor in metadata.outputs),
            labels={back.get(name, name): labels for name, labels in metadata.labels.items()},
            configuration=configuration,
        )

    def _configuration(self, requested: ModelRef, found: ModelConfiguration) -> ModelConfiguration:
        """Rename the model and its tensors; keep the rest of the document."""
        document = {**found.document, "name": requested.name}
        for key, names in (("input", self._inputs_back), ("output", self._outputs_back)):
            if names and key in document:
                document[key] = [_rename_entry(entry, names) for entry in document[key]]
        return ModelConfiguration(document, found.is_withheld)


def _inverse(kind: str, names: Mapping[str, str]) -> dict[str, str]:
    back = {target: name for name, target in names.items()}
    if len(back) < len(names):
        raise ValueError(f"{kind}: two names are mapped to the same name in {dict(names)}")
    return back


def _rename(tensor: Tensor, names: Mapping[str, str]) -> Tensor:
    name = names.get(tensor.name)
    return tensor if name is None else tensor.renamed(name)


def _rename_output(output: RequestedOutput, names: Mapping[str, str]) -> RequestedOutput:
    name = names.get(output.name)
    if name is None:
        return output
    return RequestedOutput(name, output.classes, output.parameters, output.shared)


def _rename_metadata(tensor: TensorMetadata, names: Mapping[str, str]) -> TensorMetadata:
    return TensorMetadata(names.get(tensor.name, tensor.name), tensor.datatype, tensor.shape)


def _rename_entry(entry: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    name = entry.get("name", "")
    return {**entry, "name": names[name]} if name in names else entry


def _check_distinct(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest(f"the request has {kind} {name!r} twice after renaming")
        seen.add(name)


def _build(inner: Entries, at: LayerContext) -> Service | None:
    model, tensors = at.part(TargetModel), at.setting(TENSORS)
    if model == TargetModel() and not (tensors.inputs or tensors.outputs):
        return None
    return Rename(
        inner.questions,
        model=model.name,
        version=model.version,
        inputs=tensors.inputs,
        outputs=tensors.outputs,
    )


LAYER: Final = Layer(
    "Rename",
    "translates names of models and tensors, if the route configures it",
    "target",
    _build,
    settings=(TENSORS,),
)
