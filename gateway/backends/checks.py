"""Requests against a model's metadata, and a model's outputs against the same. Pure.

What does not fit a request is the caller's fault (`InvalidRequest`); what does not fit an output is
the model's (`UpstreamError`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.data import as_numpy
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest, InvalidTensor, Unsupported, UpstreamError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Shape, Tensor, array_tensor

Arrays = Mapping[str, npt.NDArray[Any]]


class Signature:
    """Checks calls for one version of one model."""

    def __init__(self, metadata: ModelMetadata, version: str) -> None:
        self._model = ModelRef(metadata.name, version)
        self._inputs = {tensor.name: tensor for tensor in metadata.inputs}
        self._outputs = {tensor.name: tensor for tensor in metadata.outputs}

    def inputs(self, call: InferRequest) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of *call* as arrays, in the model's order.

        Arrays may be read-only and unaligned views of received bytes; BYTES are copied.

        Raises:
            InvalidRequest: An input is unknown, missing, there twice, or of another datatype or
                shape than the model's.
        """
        found: dict[str, Tensor] = {}
        for tensor in call.inputs:
            if tensor.name in found:
                raise self._invalid(f"input {tensor.name!r} is in the request twice")
            found[tensor.name] = tensor
            declared = self._inputs.get(tensor.name)
            if declared is None:
                raise self._invalid(
                    f"model {str(self._model)!r} has no input {tensor.name!r}; "
                    f"its inputs are {_listed(self._inputs)}"
                )
            self._check_input(tensor, declared)
        for name in self._inputs:
            if name not in found:
                raise self._invalid(
                    f"model {str(self._model)!r} needs input {name!r}, the request has "
                    f"{_listed(found)}"
                )
        return {name: as_numpy(found[name]) for name in self._inputs}

    def wanted(self, call: InferRequest) -> tuple[str, ...]:
        """Return the names of the outputs to answer with, in the model's order.

        Raises:
            InvalidRequest: An output is unknown.
            Unsupported: Classification is asked for.
        """
        if not call.outputs:
            return tuple(self._outputs)
        for output in call.outputs:
            if output.name not in self._outputs:
                raise self._invalid(
                    f"model {str(self._model)!r} has no output {output.name!r}; "
                    f"its outputs are {_listed(self._outputs)}"
                )
            if output.classes:
                raise Unsupported(
                    f"output {output.name!r} is asked for as classes, which models inside the "
                    "gateway do not give",
                    model=self._model,
                )
        asked = {output.name for output in call.outputs}
        return tuple(name for name in self._outputs if name in asked)

    def outputs(self, arrays: Arrays, wanted: Sequence[str]) -> tuple[Tensor, ...]:
        """Return the *wanted* ones of a model's outputs as tensors, without a copy but of BYTES.

        Raises:
            UpstreamError: An output is missing, or is not what the model declares.
        """
        unknown = [name for name in arrays if name not in self._outputs]
        if unknown:
            raise self._fault(f"gave output {unknown[0]!r}, which it does not declare")
        return tuple(self._output(name, arrays) for name in wanted)

    def _check_input(self, tensor: Tensor, declared: TensorMetadata) -> None:
        if declared.datatype is not None and tensor.datatype is not declared.datatype:
            found = "none" if tensor.datatype is None else tensor.datatype.name
            raise self._invalid(
                f"input {tensor.name!r} has datatype {found}, "
                f"model {str(self._model)!r} needs {declared.datatype.name}"
            )
        if tensor.shape is None or not fits(tensor.shape, declared.shape):
            found = "none" if tensor.shape is None else str(list(tensor.shape))
            raise self._invalid(
                f"input {tensor.name!r} has shape {found}, "
                f"model {str(self._model)!r} needs {list(declared.shape or ())}"
            )

    def _output(self, name: str, arrays: Arrays) -> Tensor:
        if name not in arrays:
            raise self._fault(f"gave no output {name!r}; it gave {_listed(arrays)}")
        declared = self._outputs[name]
        try:
            tensor = _tensor(name, np.asarray(arrays[name]), declared.datatype)
        except InvalidTensor as error:
            raise self._fault(f"gave an output it does not declare so: {error.message}") from error
        if not fits(tensor.shape or (), declared.shape):
            raise self._fault(
                f"gave output {name!r} of shape {list(tensor.shape or ())}, "
                f"it declares {list(declared.shape or ())}"
            )
        return tensor

    def _invalid(self, text: str) -> InvalidRequest:
        return InvalidRequest(text, model=self._model)

    def _fault(self, text: str) -> UpstreamError:
        return UpstreamError(f"model {str(self._model)!r} {text}", model=self._model)


def fits(shape: Shape, declared: Shape | None) -> bool:
    """Return whether *shape* is one of those *declared* means; -1 takes any dimension."""
    if declared is None:
        return True
    return len(shape) == len(declared) and all(
        wanted in (-1, found) for found, wanted in zip(shape, declared, strict=True)
    )


def _tensor(name: str, array: npt.NDArray[Any], datatype: Datatype | None) -> Tensor:
    if datatype is Datatype.BYTES and array.dtype.kind not in "SUO":
        raise InvalidTensor(f"tensor {name!r} has numpy dtype {array.dtype}, BYTES needs object")
    return array_tensor(name, array, datatype)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
