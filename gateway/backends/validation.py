"""Requests against a model's metadata, and a model's outputs against the same. Pure.

What does not fit a request is the caller's fault (`InvalidRequest`); what does not fit an output is
the model's (`UpstreamError`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.ir.calls import InferRequest
from gateway.ir.context import NO_PARAMETERS
from gateway.ir.data import ArrayData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidTensor, UpstreamError
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensor import Tensor, array_tensor, as_numpy
from gateway.ir.validation import RequestValidator, quote_names, shape_matches

Arrays = Mapping[str, npt.NDArray[Any]]


class Signature:
    """Checks calls for one version of one model.

    Attributes:
        declared: What its requests are held against.
    """

    def __init__(self, metadata: ModelMetadata, version: str) -> None:
        self.declared = RequestValidator(metadata, version)
        self._model = self.declared.model
        self._outputs = {tensor.name: tensor for tensor in metadata.outputs}
        self._usual = {
            tensor.name: (tensor.datatype, _dtype(tensor.datatype), tensor.shape)
            for tensor in metadata.outputs
        }

    def inputs(self, call: InferRequest) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of *call* as arrays, in the model's order.

        Arrays may be read-only and unaligned views of received bytes; BYTES are copied.

        Raises:
            InvalidRequest: An input is unknown, missing, there twice, or of another datatype or
                shape than the model's.
        """
        arrays = {}
        for tensor in self.declared.inputs(call):
            arrays[tensor.name] = as_numpy(tensor)
        return arrays

    def outputs(self, arrays: Arrays, wanted: Sequence[str]) -> tuple[Tensor, ...]:
        """Return the *wanted* ones of a model's outputs as tensors, without a copy but of BYTES.

        Raises:
            UpstreamError: An output is missing, or is not what the model declares.
        """
        for name in arrays:
            if name not in self._outputs:
                raise self._fault(f"gave output {name!r}, which it does not declare")
        tensors: list[Tensor] = []
        for name in wanted:
            array = arrays.get(name)
            datatype, dtype, declared = self._usual[name]
            # The usual one, at a third of the cost of what says what is wrong with another.
            if type(array) is np.ndarray and array.dtype is dtype:
                shape = array.shape
                if shape == declared or shape_matches(shape, declared):
                    tensors.append(Tensor(name, datatype, shape, ArrayData(array), NO_PARAMETERS))
                    continue
            tensors.append(self._output(name, arrays))
        return tuple(tensors)

    def _output(self, name: str, arrays: Arrays) -> Tensor:
        if name not in arrays:
            raise self._fault(f"gave no output {name!r}; it gave {quote_names(arrays)}")
        declared = self._outputs[name]
        try:
            tensor = _tensor(name, np.asarray(arrays[name]), declared.datatype)
        except InvalidTensor as error:
            raise self._fault(f"gave an output it does not declare so: {error.message}") from error
        if not shape_matches(tensor.shape or (), declared.shape):
            raise self._fault(
                f"gave output {name!r} of shape {list(tensor.shape or ())}, "
                f"it declares {list(declared.shape or ())}"
            )
        return tensor

    def _fault(self, text: str) -> UpstreamError:
        return UpstreamError(f"model {str(self._model)!r} {text}", model=self._model)


def _dtype(datatype: Datatype | None) -> np.dtype[Any] | None:
    """Return what arrays of *datatype* have; None where that is not one alone, or not known."""
    return None if datatype is None or datatype is Datatype.BYTES else datatype.numpy_dtype


def _tensor(name: str, array: npt.NDArray[Any], datatype: Datatype | None) -> Tensor:
    if datatype is Datatype.BYTES and array.dtype.kind not in "SUO":
        raise InvalidTensor(f"tensor {name!r} has numpy dtype {array.dtype}, BYTES needs object")
    return array_tensor(name, array, datatype)
