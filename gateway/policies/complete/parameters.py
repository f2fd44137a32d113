"""Splitting of flat members into tensors and parameters, by model metadata.

`Complete` gets the metadata.

Source: docs/protocols/open-inference.md, "11. Generate".
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Members, ModelRef, Parameter, replace_surrogates
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor, array_tensor, items_tensor
from gateway.ir.values.nearest import DecimalMembers, may_lie_between

_MAX_SHOWN = 40


def split_flat_members(call: InferRequest, metadata: ModelMetadata) -> InferRequest:
    """Return *call* with its members as inputs, if the model has an input of that name.

    All other members become parameters.

    Raises:
        InvalidRequest: A value does not match the datatype or shape of its input, or a list is not
            an input.
        Unsupported: The model declares no inputs.
    """
    model = call.model or ModelRef("")
    by_name = {declared.name: declared for declared in metadata.inputs}
    if not by_name:
        raise Unsupported(
            f"the server does not report the inputs of model {str(model)!r}: "
            "expected a declaration of its inputs and outputs (models: NAME: signature)",
            model=model,
        )
    inputs, parameters = list(call.inputs), dict(call.parameters)
    for name, value in call.flat_members.items():
        declared = by_name.get(name)
        if declared is not None:
            values = _values(call.flat_members, name, declared)
            inputs.append(_tensor("input", model, declared, values, InvalidRequest))
        elif isinstance(value, tuple):
            raise InvalidRequest(
                f"model {str(model)!r} has no input {name!r}, and a parameter cannot be a list of "
                f"{len(value)} values",
                model=model,
            )
        else:
            parameters[name] = value
    return call.changed(inputs=tuple(inputs), parameters=parameters, flat_members={})


def split_reply_members(
    call: InferRequest, reply: InferResponse, metadata: ModelMetadata
) -> InferResponse:
    """Return *reply* to *call* with its members as outputs, if the model has an output so named.

    All other members become parameters.

    Raises:
        UpstreamProtocolError: A value does not match its output, a list is not an output, or a
            requested output is missing.
    """
    model = call.model or reply.model
    by_name = {declared.name: declared for declared in metadata.outputs}
    requested = [output.name for output in call.outputs]
    outputs: dict[str, Tensor] = {}
    parameters = dict(reply.parameters)
    for name, value in reply.flat_members.items():
        declared = by_name.get(name)
        if declared is not None:
            values = _values(reply.flat_members, name, declared)
            outputs[name] = _tensor("output", model, declared, values, UpstreamProtocolError)
        elif isinstance(value, tuple):
            raise UpstreamProtocolError(f"model {str(model)!r} has no output {name!r}", model=model)
        else:
            parameters[name] = replace_surrogates(value) if isinstance(value, str) else value
    missing = set(requested) - outputs.keys()
    if missing:
        raise UpstreamProtocolError(
            f"the response lacks output {min(missing)!r}, which was requested", model=model
        )
    # The members are in alphabetical order.
    ordered = [outputs[name] for name in requested or by_name if name in outputs]
    return reply.changed(outputs=tuple(ordered), parameters=parameters, flat_members={})


def _values(members: Members, name: str, declared: TensorMetadata) -> Sequence[Parameter]:
    """Return the values of a tensor, rounded to odd where that tells what is nearest to them."""
    value, datatype = members[name], declared.datatype
    values: Sequence[Parameter] = value if isinstance(value, tuple) else (value,)
    if datatype is None or not datatype.is_float or not isinstance(members, DecimalMembers):
        return values
    if not {int, float}.issuperset(map(type, values)):
        return values
    with suppress(OverflowError):  # an integer beyond FP64: `_number` has the error
        if may_lie_between(cast("Sequence[float]", values), datatype):
            again = members.to_odd(name)
            return again if isinstance(again, list) else (again,)
    return values


def _tensor(
    kind: str,
    model: ModelRef,
    declared: TensorMetadata,
    values: Sequence[Parameter],
    failure: type[GatewayError],
) -> Tensor:
    try:
        return _from_values(declared, values)
    except _MismatchError as error:
        raise failure(
            f"{kind} {declared.name!r} of model {str(model)!r} {error}", model=model
        ) from None


def _from_values(declared: TensorMetadata, values: Sequence[Parameter]) -> Tensor:
    shape, datatype = _shape(declared.shape, len(values)), declared.datatype
    if datatype is Datatype.BYTES:
        return items_tensor(declared.name, shape, [_text(value) for value in values])
    if datatype is None or datatype is Datatype.BF16:
        found = "has an unknown datatype" if datatype is None else "is BF16"
        raise _MismatchError(f"{found}, which JSON values cannot represent")
    array = np.array([_number(datatype, value) for value in values], datatype.numpy_dtype)
    return array_tensor(declared.name, array.reshape(shape), datatype)


class _MismatchError(Exception):
    """A value does not match its input; the text follows the input's name."""


def _shape(declared: Shape | None, count: int) -> Shape:
    """Return the shape of *count* values: the last variable axis varies, all others are 1.

    Raises:
        _MismatchError: The count is not a multiple of the fixed axes.
    """
    if declared is None:
        return (count,)
    fixed = math.prod(dim for dim in declared if dim >= 0)
    size, rest = divmod(count, fixed) if fixed else (0, count)
    dims = list(declared)
    for axis in reversed(range(len(dims))):
        if dims[axis] < 0:
            dims[axis], size = size, 1
    if rest or math.prod(dims) != count:
        raise _MismatchError(f"has shape {list(declared)}, which does not match {count} values")
    return tuple(dims)


def _text(value: Parameter) -> bytes:
    if not isinstance(value, str):
        raise _wrong_type(value, "a string")
    try:
        # Lone surrogates are bytes of a server that were not UTF-8; a request has none.
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _MismatchError("has text that is not valid Unicode") from None


def _number(datatype: Datatype, value: Parameter) -> bool | int | float:
    """Return *value*, if the datatype can represent it.

    Raises:
        _MismatchError: The datatype cannot represent the value.
    """
    if datatype is Datatype.BOOL:
        if isinstance(value, bool):
            return value
        raise _wrong_type(value, "true or false")
    if isinstance(value, bool | str) or (datatype.is_integer and isinstance(value, float)):
        raise _wrong_type(value, "an integer" if datatype.is_integer else "a number")
    dtype = datatype.numpy_dtype
    info = np.iinfo(dtype) if datatype.is_integer else np.finfo(dtype)
    if isinstance(value, float) and not math.isfinite(value):  # only a server can send it
        return value
    # Compare Python numbers: numpy would compare in the range of the datatype.
    kind = int if datatype.is_integer else float
    if not kind(info.min) <= value <= kind(info.max) and not _is_rounded_down(dtype, value):
        raise _MismatchError(f"is {datatype.name}, and {_quote(value)} is out of its range")
    return value


def _is_rounded_down(dtype: "np.dtype[Any]", value: float) -> bool:
    """Return whether a number above the largest one of a float is nearest to that one."""
    with np.errstate(over="ignore"), suppress(OverflowError):
        return dtype.kind == "f" and bool(np.isfinite(dtype.type(float(value))))
    return False


def _wrong_type(value: Parameter, expected: str) -> _MismatchError:
    return _MismatchError(f"has the value {_quote(value)}; expected {expected}")


def _quote(value: Parameter) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
