"""Rename: translates the names of a model, its version and its tensors, and shapes of outputs.

Callers use their names; *inner* gets the names of the target. Calls to the server pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast

from pydantic import Field, model_validator

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.ir.bodies.streams import MappedStream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelMetadataRequest,
    StreamInferRequest,
    rewritten,
    with_model,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, UpstreamProtocolError
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import ArrayData
from gateway.ir.tensors.tensor import RequestedOutput, Shape, Tensor
from gateway.ir.values.nearest import renamed_members
from gateway.service import Service
from gateway.settings.fields import Name
from gateway.settings.model import Model
from gateway.settings.setting import Setting

R = TypeVar("R")


class TensorNamesConfig(Model):
    """Translation of tensor names, and of shapes of outputs, between client and target."""

    inputs: Mapping[Name, Name] = Field(default_factory=dict)
    """The client's names, each with that of the target. Default: the same names."""
    outputs: Mapping[Name, Name] = Field(default_factory=dict)
    """The client's names, each with that of the target. Default: the same names."""
    shapes: Mapping[Name, tuple[Annotated[int, Field(ge=-1)], ...]] | None = None
    """Shapes in which clients get outputs, by the client's name, if the target has more or fewer
    axes of size 1. One axis may be `-1`. Default: those of the target."""

    @model_validator(mode="after")
    def _check_shapes(self) -> TensorNamesConfig:
        for name, shape in (self.shapes or {}).items():
            if shape.count(-1) > 1:
                raise ValueError(f"shape of {name!r} is {list(shape)}; expected at most one -1")
        return self


TENSORS: Final = Setting[TensorNamesConfig](
    key="tensors",
    type=TensorNamesConfig,
    default=TensorNamesConfig(),
    help="Names of tensors, and shapes of outputs, that differ from the client's.",
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
        shapes: Shapes of outputs by the caller's names, with at most one axis of -1; others are
            those of the target.

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
        shapes: Mapping[str, Shape] | None = None,
    ) -> None:
        self._inner = inner
        self._model = model
        self._version = version
        self._inputs = dict(inputs or {})
        self._outputs = dict(outputs or {})
        self._shapes = dict(shapes or {})
        self._inputs_back = _inverse("inputs", self._inputs)
        self._outputs_back = _inverse("outputs", self._outputs)

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner* with the target's names, and return the reply with the caller's.

        Raises:
            InvalidRequest: Two inputs have the same name after renaming.
            UpstreamProtocolError: An output has another shape, not only by axes of size 1.
            GatewayError: The message has tensors that only its own server reads.
        """
        model = call.model
        if model is None:
            return await self._inner(call)
        target = self._target(model)
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if isinstance(call, InferRequest):
            return cast("R", self._response(model, await self._inner(self._request(call, target))))
        if isinstance(call, StreamInferRequest):
            if self._inputs or self._outputs or self._shapes:
                request = self._request(rewritten(call).request, target)
                renamed = call.changed(model=target, request=request)
            else:
                renamed = with_model(call, target)
            items = await self._inner(renamed)
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
        if self._inputs or self._outputs or self._shapes:
            call = rewritten(call)
        inputs, outputs, members = call.inputs, call.outputs, call.flat_members
        if self._inputs:
            inputs = tuple(_rename(tensor, self._inputs) for tensor in inputs)
            names = [self._inputs.get(name, name) for name in members]
            _check_distinct("input", [*(tensor.name for tensor in inputs), *names])
            members = renamed_members(members, self._inputs)
        if self._outputs:
            outputs = tuple(_rename_output(output, self._outputs) for output in outputs)
        same = inputs == call.inputs and outputs == call.outputs and members == call.flat_members
        if same:
            return call if target == call.model else call.changed(model=target)
        return call.changed(model=target, inputs=inputs, outputs=outputs, flat_members=members)

    def _response(self, requested: ModelRef, reply: InferResponse) -> InferResponse:
        """Return *reply* with the caller's names; the target's version if none was requested."""
        model = ModelRef(requested.name, requested.version or reply.model.version)
        outputs = reply.outputs
        if self._outputs_back:
            outputs = tuple(_rename(tensor, self._outputs_back) for tensor in outputs)
        if self._shapes:
            outputs = tuple(_reshape(tensor, self._shapes) for tensor in outputs)
        if outputs == reply.outputs:
            return reply if model == reply.model else reply.changed(model=model)
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
            outputs=tuple(
                _reshape_metadata(_rename_metadata(tensor, back), self._shapes)
                for tensor in metadata.outputs
            ),
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


def _reshape(tensor: Tensor, shapes: Mapping[str, Shape]) -> Tensor:
    wanted, found, data = shapes.get(tensor.name), tensor.shape, tensor.data
    if wanted is None or found is None or wanted == found:
        return tensor
    rest = prod([axis for axis in wanted if axis >= 0])
    free = prod(found) // rest if rest else 0
    shape = tuple([free if axis < 0 else axis for axis in wanted])
    if [axis for axis in shape if axis != 1] != [axis for axis in found if axis != 1]:
        raise UpstreamProtocolError(
            f"output {tensor.name!r} has shape {list(found)}; expected {list(wanted)}, with any "
            "axes of size 1 (tensors.shapes)"
        )
    if isinstance(data, ArrayData):
        data = ArrayData(data.array.reshape(shape))
    return Tensor(tensor.name, tensor.datatype, shape, data, tensor.parameters)


def _reshape_metadata(tensor: TensorMetadata, shapes: Mapping[str, Shape]) -> TensorMetadata:
    shape = shapes.get(tensor.name)
    return tensor if shape is None else TensorMetadata(tensor.name, tensor.datatype, shape)


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
    if model == TargetModel() and not (tensors.inputs or tensors.outputs or tensors.shapes):
        return None
    return Rename(
        inner.questions,
        model=model.name,
        version=model.version,
        inputs=tensors.inputs,
        outputs=tensors.outputs,
        shapes=tensors.shapes,
    )


LAYER: Final = Layer(
    "Rename",
    "translates names of models and tensors, if the route configures it",
    "target",
    _build,
    settings=(TENSORS,),
)
