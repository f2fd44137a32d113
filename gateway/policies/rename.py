"""Rename: one model under another name, version or tensor names, both ways.

Names are the caller's on the outside and the target's on the inside. Questions to the server pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

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

R = TypeVar("R")


class Rename:
    """Translates names on the way in and back on the way out.

    Args:
        inner: Answers under its own names.
        model: The target's name of the model; None keeps the caller's.
        version: The target's version; None keeps the caller's; "" asks for none.
        inputs: Target's input name for each of the caller's; others keep their name.
        outputs: Target's output name for each of the caller's; others keep their name.

    Raises:
        ValueError: Two names are mapped to the same one.
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
        """Answer *call* in the caller's names.

        Raises:
            InvalidRequest: After renaming two inputs have the same name.
        """
        asked = call.model
        if asked is None:
            return await self._inner(call)
        target = self._target(asked)
        # Each branch knows its R; the type system cannot follow an isinstance that far.
        if isinstance(call, InferRequest):
            return cast("R", self._response(asked, await self._inner(self._request(call, target))))
        if isinstance(call, StreamInferRequest):
            request = self._request(call.request, target)
            items = await self._inner(call.changed(model=target, request=request))
            return cast("R", MappedStream(items, lambda item: self._item(asked, item)))
        if target != asked:
            call = call.changed(model=target)
        reply = await self._inner(call)
        if isinstance(call, ModelMetadataRequest):
            return cast("R", self._metadata(asked, cast("ModelMetadata", reply)))
        if isinstance(call, ModelConfigRequest):
            return cast("R", self._configuration(asked, cast("ModelConfiguration", reply)))
        return reply

    def _target(self, asked: ModelRef) -> ModelRef:
        name = asked.name if self._model is None else self._model
        return ModelRef(name, asked.version if self._version is None else self._version)

    def _request(self, call: InferRequest, target: ModelRef) -> InferRequest:
        inputs, outputs, members = call.inputs, call.outputs, call.flat_members
        if self._inputs:
            inputs = tuple(_renamed(tensor, self._inputs) for tensor in inputs)
            renamed = [self._inputs.get(name, name) for name in members]
            _check_distinct("input", [*(tensor.name for tensor in inputs), *renamed])
            members = dict(zip(renamed, members.values(), strict=True))
        if self._outputs:
            outputs = tuple(_renamed_output(output, self._outputs) for output in outputs)
        same = inputs == call.inputs and outputs == call.outputs and members == call.flat_members
        if target == call.model and same:
            return call
        return call.changed(model=target, inputs=inputs, outputs=outputs, flat_members=members)

    def _response(self, asked: ModelRef, reply: InferResponse) -> InferResponse:
        """Name the answer as the caller asked; the answering version where it chose none."""
        model = ModelRef(asked.name, asked.version or reply.model.version)
        outputs = reply.outputs
        if self._outputs_back:
            outputs = tuple(_renamed(tensor, self._outputs_back) for tensor in outputs)
        if model == reply.model and outputs == reply.outputs:
            return reply
        return reply.changed(model=model, outputs=outputs)

    async def _item(self, asked: ModelRef, item: InferResponse) -> InferResponse:
        return self._response(asked, item)

    def _metadata(self, asked: ModelRef, found: ModelMetadata) -> ModelMetadata:
        versions = found.versions
        if self._version:  # whichever version is asked for, this one answers
            versions = (asked.version or self._version,)
        back = self._outputs_back
        return found.changed(
            name=asked.name,
            versions=versions,
            inputs=tuple(_renamed_metadata(tensor, self._inputs_back) for tensor in found.inputs),
            outputs=tuple(_renamed_metadata(tensor, back) for tensor in found.outputs),
            labels={back.get(name, name): labels for name, labels in found.labels.items()},
        )

    def _configuration(self, asked: ModelRef, found: ModelConfiguration) -> ModelConfiguration:
        """Name the model and its tensors; what else the document says of them stays."""
        document = {**found.document, "name": asked.name}
        for key, names in (("input", self._inputs_back), ("output", self._outputs_back)):
            if names and key in document:
                document[key] = [_renamed_entry(entry, names) for entry in document[key]]
        return ModelConfiguration(document, found.is_withheld)


def _inverse(kind: str, names: Mapping[str, str]) -> dict[str, str]:
    back = {target: name for name, target in names.items()}
    if len(back) < len(names):
        raise ValueError(f"{kind}: two names are mapped to the same one in {dict(names)}")
    return back


def _renamed(tensor: Tensor, names: Mapping[str, str]) -> Tensor:
    name = names.get(tensor.name)
    return tensor if name is None else tensor.renamed(name)


def _renamed_output(output: RequestedOutput, names: Mapping[str, str]) -> RequestedOutput:
    name = names.get(output.name)
    if name is None:
        return output
    return RequestedOutput(name, output.classes, output.parameters, output.shared)


def _renamed_metadata(tensor: TensorMetadata, names: Mapping[str, str]) -> TensorMetadata:
    return TensorMetadata(names.get(tensor.name, tensor.name), tensor.datatype, tensor.shape)


def _renamed_entry(entry: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    name = entry.get("name", "")
    return {**entry, "name": names[name]} if name in names else entry


def _check_distinct(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest(f"{kind} {name!r} is there twice once the route has renamed it")
        seen.add(name)
