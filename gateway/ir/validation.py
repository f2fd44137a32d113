"""Requests against what a model declares: names, datatypes, shapes. Pure, and without a copy.

What does not fit is the caller's fault.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, Unsupported
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Shape, Tensor


class RequestValidator:
    """Checks requests for one version of one model; what it does not declare is not checked."""

    def __init__(self, metadata: ModelMetadata, version: str) -> None:
        self.model = ModelRef(metadata.name, version)
        self._inputs = {tensor.name: tensor for tensor in metadata.inputs}
        self._in_order = tuple(self._inputs.values())
        self._outputs = {tensor.name: tensor for tensor in metadata.outputs}
        self._all_outputs = tuple(self._outputs)

    def inputs(self, call: InferRequest) -> tuple[Tensor, ...]:
        """Return the inputs of *call*, in the model's order.

        Raises:
            InvalidRequest: An input is unknown, missing, there twice, or of another datatype or
                shape than the model's.
        """
        inputs = call.inputs
        if len(inputs) != len(self._in_order):
            return self._sorted(call)
        # Nearly all are right, and in the model's order: that is seen in one look.
        for tensor, declared in zip(inputs, self._in_order):  # noqa: B905  # as `fits`
            if tensor.name != declared.name or tensor.datatype is not declared.datatype:
                return self._sorted(call)
            shape = tensor.shape
            if shape is None or (
                shape != declared.shape and not shape_matches(shape, declared.shape)
            ):
                return self._sorted(call)
        return inputs

    def _sorted(self, call: InferRequest) -> tuple[Tensor, ...]:
        found: dict[str, Tensor] = {}
        for tensor in call.inputs:
            if tensor.name in found:
                raise self._invalid(f"input {tensor.name!r} is in the request twice")
            found[tensor.name] = tensor
            declared = self._inputs.get(tensor.name)
            if declared is None:
                raise self._invalid(
                    f"model {str(self.model)!r} has no input {tensor.name!r}; "
                    f"its inputs are {quote_names(self._inputs)}"
                )
            self._check_input(tensor, declared)
        if len(found) < len(self._inputs):
            name = next(name for name in self._inputs if name not in found)
            raise self._invalid(
                f"model {str(self.model)!r} needs input {name!r}, "
                f"the request has {quote_names(found)}"
            )
        return tuple([found[name] for name in self._inputs])

    def output_names(self, call: InferRequest) -> tuple[str, ...]:
        """Return the names of the outputs to answer with, in the model's order.

        Raises:
            InvalidRequest: An output is unknown.
            Unsupported: Classification is asked for.
        """
        if not call.outputs:
            return self._all_outputs
        for output in call.outputs:
            if output.name not in self._outputs:
                raise self._invalid(
                    f"model {str(self.model)!r} has no output {output.name!r}; "
                    f"its outputs are {quote_names(self._outputs)}"
                )
            if output.classes:
                raise Unsupported(
                    f"output {output.name!r} is asked for as classes, which models inside the "
                    "gateway do not give",
                    model=self.model,
                )
        asked = {output.name for output in call.outputs}
        if len(asked) == len(self._all_outputs):
            return self._all_outputs
        return tuple(name for name in self._outputs if name in asked)

    def _check_input(self, tensor: Tensor, declared: TensorMetadata) -> None:
        if declared.datatype is not None and tensor.datatype is not declared.datatype:
            found = "none" if tensor.datatype is None else tensor.datatype.name
            raise self._invalid(
                f"input {tensor.name!r} has datatype {found}, "
                f"model {str(self.model)!r} needs {declared.datatype.name}"
            )
        if tensor.shape is None or not shape_matches(tensor.shape, declared.shape):
            found = "none" if tensor.shape is None else str(list(tensor.shape))
            raise self._invalid(
                f"input {tensor.name!r} has shape {found}, "
                f"model {str(self.model)!r} needs {list(declared.shape or ())}"
            )

    def _invalid(self, text: str) -> InvalidRequest:
        return InvalidRequest(text, model=self.model)


def shape_matches(shape: Shape, declared: Shape | None) -> bool:
    """Return whether *shape* is one of those *declared* means; -1 takes any dimension."""
    if declared is None or shape == declared:
        return True
    if len(shape) != len(declared):
        return False
    # On the path of every inference: a plain loop takes a third of `all`, and `strict` of a `zip`
    # as long as the rest of it.
    for found, wanted in zip(shape, declared):  # noqa: B905, SIM110
        if wanted not in (-1, found):
            return False
    return True


def quote_names(names: Iterable[str]) -> str:
    """Return names for an error: quoted, or "none"."""
    return ", ".join(map(repr, names)) or "none"
