"""Members of a request that are inputs or parameters: taken apart by a model's metadata. Pure.

`Complete` asks for the metadata; here it is applied.

Source: docs/protocols/open-inference.md, "11. Generate".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef, Parameter
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Shape, Tensor, array_tensor, items_tensor

_SHOWN = 40


def split_flat_members(call: InferRequest, metadata: ModelMetadata) -> InferRequest:
    """Return *call* with its members as inputs, where the model has one of the name, or parameters.

    Raises:
        InvalidRequest: A value is none of its input's datatype, does not fit its shape, or is a
            list and no input.
    """
    model = call.model or ModelRef("")
    declared = {known.name: known for known in metadata.inputs}
    inputs, parameters = list(call.inputs), dict(call.parameters)
    for name, value in call.flat_members.items():
        known = declared.get(name)
        if known is not None:
            values = value if isinstance(value, tuple) else (value,)
            inputs.append(_tensor(model, known, values))
        elif isinstance(value, tuple):
            raise InvalidRequest(
                f"model {str(model)!r} has no input {name!r}, and a list of {len(value)} values "
                "can be no parameter",
                model=model,
            )
        else:
            parameters[name] = value
    return call.changed(inputs=tuple(inputs), parameters=parameters, flat_members={})


def _tensor(model: ModelRef, known: TensorMetadata, values: Sequence[Parameter]) -> Tensor:
    try:
        return _filled(known, values)
    except _Misfit as error:
        raise InvalidRequest(
            f"input {known.name!r} of model {str(model)!r} {error}", model=model
        ) from None


def _filled(known: TensorMetadata, values: Sequence[Parameter]) -> Tensor:
    shape, datatype = _spread(known.shape, len(values)), known.datatype
    if datatype is Datatype.BYTES:
        return items_tensor(known.name, shape, [_text(value) for value in values])
    if datatype is None or datatype is Datatype.BF16:
        said = "of an unknown datatype" if datatype is None else "BF16"
        raise _Misfit(f"is {said}, which values cannot be written as")
    array = np.array([_number(datatype, value) for value in values], datatype.numpy_dtype)
    return array_tensor(known.name, array.reshape(shape), datatype)


class _Misfit(Exception):
    """Says what is wrong with an input, whose name stands before it."""


def _spread(declared: Shape | None, count: int) -> Shape:
    """Return the shape of *count* values: what is variable is 1, but for the last such axis.

    Raises:
        _Misfit: The fixed axes do not divide them.
    """
    if declared is None:
        return (count,)
    fixed = math.prod(dim for dim in declared if dim >= 0)
    left, rest = divmod(count, fixed) if fixed else (0, count)
    dims = list(declared)
    for axis in reversed(range(len(dims))):
        if dims[axis] < 0:
            dims[axis], left = left, 1
    if rest or math.prod(dims) != count:
        raise _Misfit(f"has shape {list(declared)}, which {count} values do not fill")
    return tuple(dims)


def _text(value: Parameter) -> bytes:
    if not isinstance(value, str):
        raise _wrong(value, "a string")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise _Misfit("has text that is not Unicode") from None


def _number(datatype: Datatype, value: Parameter) -> bool | int | float:
    """Return *value*, which the datatype can hold.

    Raises:
        _Misfit: It cannot.
    """
    if datatype is Datatype.BOOL:
        if isinstance(value, bool):
            return value
        raise _wrong(value, "true or false")
    if isinstance(value, bool | str) or (datatype.is_integer and isinstance(value, float)):
        raise _wrong(value, "an integer" if datatype.is_integer else "a number")
    dtype = datatype.numpy_dtype
    info = np.iinfo(dtype) if datatype.is_integer else np.finfo(dtype)
    # As Python's own numbers: numpy compares in the range of the datatype.
    kind = int if datatype.is_integer else float
    if not kind(info.min) <= value <= kind(info.max):
        raise _Misfit(f"is {datatype.name}, {_shown(value)} is out of its range")
    return value


def _wrong(value: Parameter, needed: str) -> _Misfit:
    return _Misfit(f"is given {_shown(value)}, needed is {needed}")


def _shown(value: Parameter) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
