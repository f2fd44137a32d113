"""Rows of numbers from the outputs of models: pooling, cutting, normalising, scores.

Arithmetic is in FP64, with one rounding to FP32 at the end. Other rows keep their bits.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy
from gateway.ir.text_tasks import Pooling, ScoreFunction
from gateway.ir.work import charge

Array = npt.NDArray[Any]

_LEAST_NORM: Final = 1e-12
_ELEMENT: Final = 1 / 100
"""Items of work for one element that is converted, multiplied and added."""


def array_of(tensor: Tensor) -> tuple[Array, Datatype]:
    """Return the elements of a tensor, and their datatype; BF16 as FP32."""
    datatype = tensor.datatype or Datatype.FP32
    array = as_numpy(tensor)
    if datatype is Datatype.BF16:
        charge(array.size * _ELEMENT)
        return fp32_of_bf16(array), Datatype.FP32
    return array, datatype


def join_rows(
    name: str, parts: Sequence[Array], datatype: Datatype, order: Sequence[int] = ()
) -> Tensor:
    """Return the rows of all *parts* as one tensor.

    Args:
        name: The name of the output.
        parts: The rows of each call.
        datatype: The datatype of the elements.
        order: The place of each row among those of the request; empty where they are in order.
    """
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if order:
        ordered = np.empty_like(whole)
        ordered[np.array(order)] = whole
        whole = ordered
    return array_tensor(name, whole, datatype)


def pool(states: Array, pooling: Pooling, masks: Sequence[Array]) -> Array:
    """Return one row for each input from the rows of its tokens.

    Args:
        states: [inputs, tokens, d].
        pooling: "mean", "cls" or "last".
        masks: Places of the tokens of each input, without padding.
    """
    charge(states.size * _ELEMENT)
    if pooling == "mean":
        rows = np.empty((states.shape[0], states.shape[2]), np.float64)
        for at, places in enumerate(masks):
            count = max(len(places), 1)
            rows[at] = states[at, places].astype(np.float64).sum(axis=0) / count
        return rows
    at_end = -1 if pooling == "last" else 0
    chosen = [places[at_end] if len(places) else 0 for places in masks]
    return states[np.arange(states.shape[0]), chosen]


def cut_rows(rows: Array, size: int, *, normalize: bool) -> Array:
    """Return rows that are cut to *size*, and normalised after that; FP64 becomes FP32.

    Rows that need neither keep their bits.
    """
    if size < rows.shape[1]:
        rows = rows[:, :size]
    if normalize:
        charge(rows.size * _ELEMENT)
        exact = rows.astype(np.float64)
        lengths = np.sqrt(np.square(exact).sum(axis=1, keepdims=True))
        rows = exact / np.maximum(lengths, _LEAST_NORM)
    return rows


def round_rows(rows: Array) -> Array:
    """Return rows of FP64 as FP32; infinities where FP32 has no such value."""
    with np.errstate(over="ignore"):
        return rows.astype(np.float32)


def score_column(columns: Array, function: ScoreFunction, column: int) -> Array:
    """Return one column of *columns* [n, k] after a function of the scores."""
    if function == "none":
        return columns[:, column]
    charge(columns.size * _ELEMENT)
    exact = columns.astype(np.float64)
    with np.errstate(over="ignore"):
        if function == "sigmoid":
            return round_rows(1.0 / (1.0 + np.exp(-exact[:, column])))
        powers = np.exp(exact - exact.max(axis=1, keepdims=True))
        return round_rows(powers[:, column] / powers.sum(axis=1))
