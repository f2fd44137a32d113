"""Rows of different lengths in one call: inputs are padded to the longest, outputs are cut back."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.calls import InferRequest
from gateway.ir.tensors.rows import IndependentRows, most_padded
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy

Array = npt.NDArray[Any]

_RANK_OF_COLUMNS: Final = 3
"""An output with fewer axes has no axis for the elements of a row."""


class PaddedSize:
    """The elements of calls that are padded to one length, which are bounded."""

    def __init__(self) -> None:
        self._rows = self._width = self._own = 0

    def add(self, call: InferRequest) -> bool:
        """Add *call*, if it does not make the others much longer; the first one always fits."""
        rows = call.rows
        if rows is None or not rows.lengths:
            return True
        count = self._rows + len(rows.lengths)
        width = max(self._width, width_of(call))
        own = self._own + sum(rows.lengths)
        size = count * width
        limit = most_padded(own)
        if self._rows and size > min(limit, rows.most_elements or limit):
            return False
        self._rows, self._width, self._own = count, width, own
        return True


def width_of(call: InferRequest) -> int:
    """Return the length of the rows of *call* with their padding."""
    return (call.inputs[0].shape or (0, 0))[1]


def pad_tensors(tensors: Sequence[Tensor], rows: IndependentRows) -> Tensor:
    """Return the rows of all *tensors*, one input of several calls, in one tensor."""
    first = tensors[0]
    fill = dict(rows.fills).get(first.name, 0)
    whole = pad_columns([as_numpy(tensor) for tensor in tensors], fill, rows)
    return array_tensor(first.name, whole, first.datatype)


def pad_columns(arrays: Sequence[Array], fill: int, rows: IndependentRows) -> Array:
    """Return the rows of all *arrays*, whose second axes differ, with *fill* in the padding."""
    width = max([array.shape[1] for array in arrays])
    count = sum(map(len, arrays))
    whole = np.full((count, width, *arrays[0].shape[2:]), fill, arrays[0].dtype)
    begin = 0
    for array in arrays:
        left = width - array.shape[1] if rows.pads_left else 0
        whole[begin : begin + len(array), left : left + array.shape[1]] = array
        begin += len(array)
    return whole


def cut_width(tensor: Tensor, width: int, merged: int, *, pads_left: bool) -> Tensor:
    """Return an output of *merged* columns with those of *width*; others as they are."""
    shape = tensor.shape or ()
    if width >= merged or len(shape) < _RANK_OF_COLUMNS or shape[1] != merged:
        return tensor
    array = as_numpy(tensor)
    kept = array[:, merged - width :] if pads_left else array[:, :width]
    return array_tensor(tensor.name, kept, tensor.datatype)
