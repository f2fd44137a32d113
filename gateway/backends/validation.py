"""Validates requests and outputs of a model against its metadata.

An invalid request is an `InvalidRequest`; an invalid output of the model is an `UpstreamError`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.accelerator import accelerated
from gateway.api.backend import Arrays
from gateway.ir.calls import InferRequest
from gateway.ir.context import NO_PARAMETERS
from gateway.ir.errors import InvalidTensor, UpstreamError
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.data import ArrayData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor, array_tensor, as_numpy
from gateway.ir.tensors.validation import RequestValidator, quote_names, shape_matches

Expected = tuple[Datatype | None, "np.dtype[Any] | None", Shape | None]
"""The datatype, the dtype and the shape that an output is to have."""


@accelerated
def plain_outputs(
    expected: dict[str, Expected], arrays: Arrays, names: Sequence[str]
) -> tuple[Tensor, ...] | None:
    """Return the outputs *names* as tensors; None if one of them is not an array as expected."""
    tensors: list[Tensor] = []
    for name in names:
        array = arrays.get(name)
        datatype, dtype, declared = expected[name]
        if type(array) is not np.ndarray or array.dtype is not dtype:
            return None
        shape = array.shape
        if shape != declared and not shape_matches(shape, declared):
            return None
        tensors.append(Tensor(name, datatype, shape, ArrayData(array), NO_PARAMETERS))
    return tuple(tensors)


class Signature:
    """Validates the calls of one version of a model.

    Attributes:
        validator: Validates requests.
    """

    def __init__(self, metadata: ModelMetadata, version: str) -> None:
        self.validator = RequestValidator(metadata, version)
        self._model = self.validator.model
        self._outputs = {tensor.name: tensor for tensor in metadata.outputs}
        self._expected: dict[str, Expected] = {
            tensor.name: (tensor.datatype, _dtype(tensor.datatype), tensor.shape)
            for tensor in metadata.outputs
        }

    def inputs(self, call: InferRequest) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of *call* as arrays, in the model's order.

        Arrays may be read-only and unaligned views of received bytes; BYTES are copied.

        Raises:
            InvalidRequest: An input is unknown, missing or duplicate, or has another datatype or
                shape than the model's.
        """
        return {tensor.name: as_numpy(tensor) for tensor in self.validator.inputs(call)}

    def outputs(self, arrays: Arrays, names: Sequence[str]) -> tuple[Tensor, ...]:
        """Return the outputs *names* of a model as tensors; only BYTES are copied.

        Raises:
            UpstreamError: An output is missing, or does not match the model's metadata.
        """
        for name in arrays:
            if name not in self._outputs:
                raise self._model_error(f"returned output {name!r}, which it does not declare")
        plain = plain_outputs(self._expected, arrays, names)  # nearly always
        if plain is not None:
            return plain
        return tuple([self._output(name, arrays) for name in names])

    def _output(self, name: str, arrays: Arrays) -> Tensor:
        if name not in arrays:
            raise self._model_error(
                f"returned no output {name!r}; it returned {quote_names(arrays)}"
            )
        declared = self._outputs[name]
        try:
            tensor = _tensor(name, np.asarray(arrays[name]), declared.datatype)
        except InvalidTensor as error:
            raise self._model_error(f"returned an invalid output: {error.message}") from error
        if not shape_matches(tensor.shape or (), declared.shape):
            raise self._model_error(
                f"returned output {name!r} of shape {list(tensor.shape or ())}; "
                f"its metadata has {list(declared.shape or ())}"
            )
        return tensor

    def _model_error(self, text: str) -> UpstreamError:
        return UpstreamError(f"model {str(self._model)!r} {text}", model=self._model)


def _dtype(datatype: Datatype | None) -> np.dtype[Any] | None:
    """Return the dtype of *datatype*; None if it is not known, or for BYTES, which have several."""
    return None if datatype is None or datatype is Datatype.BYTES else datatype.numpy_dtype


def _tensor(name: str, array: npt.NDArray[Any], datatype: Datatype | None) -> Tensor:
    if datatype is Datatype.BYTES and array.dtype.kind not in "SUO":
        raise InvalidTensor(f"tensor {name!r} has dtype {array.dtype}; expected object for BYTES")
    return array_tensor(name, array, datatype)
