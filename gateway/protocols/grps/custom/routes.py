"""Customised HTTP routes, which map JSON or form bodies to tensors by configuration.

A real grps server lets the model's code handle a path and write the complete response.  Here the
configuration of a route has a path in the body for each input, and a template for the outputs; so a
chat endpoint needs no code.  A route without inputs is another path of predict.

Source: docs/protocols/grps.md, "14. Customised routes".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from gateway.ir.context import ModelRef, Parameter
from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import MessageLimits, check_shape
from gateway.ir.tensors.data import ArrayData, ItemsData, TensorData
from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp64
from gateway.ir.tensors.tensor import Tensor
from gateway.protocols.grps.custom.json_path import MISSING, Step, lookup, names_in, read_place
from gateway.protocols.grps.custom.streaming import STREAMING_READERS, Streaming
from gateway.protocols.grps.datatypes import BY_DATATYPE, widened_datatype
from gateway.protocols.grps.json.elements import read_data, read_integer
from gateway.wire.options import (
    Reader,
    list_of,
    mapping,
    mapping_of,
    matching,
    member_of,
    model,
    one_of,
    optional,
    read_values,
    text,
    wrong,
)

JSON_BODY, FORM_BODY, QUERY_BODY = "json", "form", "query"
_OWN: Final = "/grps/"
# In forms and queries all values are text.
_TRUTHS: Final = {"true": True, "false": False}
_DIM: Final = re.compile(r"-?[0-9]{1,18}")
# Not encoded, and not "/", which is the status page.
_PATH: Final = re.compile(r"(/[A-Za-z0-9_~!$&'()*+,;=:@-][A-Za-z0-9._~!$&'()*+,;=:@-]*)+")


@dataclass(frozen=True, slots=True)
class CustomInput:
    """The path of one input in the body.

    Attributes:
        shape: -1 for the dimension that depends on the value; None for the value's own nesting.
        default: Used where the body has no value; `MISSING` where the value is required.
    """

    name: str
    datatype: Datatype
    place: tuple[Step, ...]
    shape: tuple[int, ...] | None = None
    default: Any = MISSING


@dataclass(frozen=True, slots=True)
class CustomStream:
    """The streams of a route.

    Attributes:
        switch: How a request selects a stream, and its content type.
        answer: Template of one message; None for that of the complete response.
        before: Text before each message.
        after: Text after each message.
        end: Text after the last message.
    """

    switch: Streaming
    answer: Any = None
    before: str = ""
    after: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class CustomRoute:
    """An additional path of a listener.

    Attributes:
        path: Exact.
        model: None for the one in the query, or the listener's default.
        body: Form of the request: JSON object, form or query.
        inputs: Empty where the path is another one of predict.
        parameters: Paths of values that become parameters, by name; absent values are left out.
        answer: Template of JSON; see `json_path`.
        error: Template of an error, with `${code}` and `${message}`.
    """

    path: str
    model: ModelRef | None = None
    body: str = JSON_BODY
    inputs: tuple[CustomInput, ...] = ()
    parameters: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    answer: Any = None
    error: Any = None
    stream: CustomStream | None = None


def route_content(
    route: CustomRoute,
    document: Mapping[str, Any],
    limits: MessageLimits,
    reread: Callable[[], Mapping[str, Any]],
) -> tuple[tuple[Tensor, ...], dict[str, Parameter]]:
    """Return the inputs and parameters of a request to *route*.

    Args:
        route: The route.
        document: What the body or the query has.
        limits: The limits of a message.
        reread: Returns it, the decimals of JSON as `ir.nearest.to_odd` returns them.

    Raises:
        InvalidRequest: A value is missing, or of another kind.
        InvalidTensor: Elements are of another kind, out of range or too many.
        TooLarge: A limit is exceeded.
    """
    tensors = tuple([_tensor(one, document, limits, reread) for one in route.inputs])
    parameters: dict[str, Parameter] = {}
    for name, place in route.parameters.items():
        value = lookup(document, place)
        if value is MISSING or value is None:
            continue
        if not isinstance(value, bool | int | float | str):
            raise InvalidRequest(f"{_spelled(place)} is not a plain value: parameter {name!r}")
        parameters[name] = value
    return tensors, parameters


def read_routes(key: str, value: Any) -> tuple[CustomRoute, ...]:
    """Read the option of this name.

    Raises:
        ValueError: It is wrong; the error names the entry.
    """
    routes: tuple[CustomRoute, ...] = list_of(_route)(key, value)
    paths = [route.path for route in routes]
    if len(set(paths)) != len(paths):
        raise ValueError(f"{key} has a path twice: expected one route for each path")
    return routes


def _tensor(
    one: CustomInput,
    document: Mapping[str, Any],
    limits: MessageLimits,
    reread: Callable[[], Mapping[str, Any]],
) -> Tensor:
    value = lookup(document, one.place)
    if value is MISSING or value is None:
        value = one.default
    if value is MISSING:
        raise InvalidRequest(f"body has no value at {_spelled(one.place)} for input {one.name!r}")
    flat, nesting = _flattened(one, value, limits)
    shape = nesting if one.shape is None else _fitted(one, len(flat))
    check_shape(one.name, one.datatype, shape, limits)

    def elements() -> list[Any]:
        again = lookup(reread(), one.place)
        return flat if again is MISSING or again is None else _flattened(one, again, limits)[0]

    data = _data(one, shape, flat, limits, elements)
    return Tensor(one.name, one.datatype, shape, data)


def _flattened(
    one: CustomInput, value: Any, limits: MessageLimits
) -> tuple[list[Any], tuple[int, ...]]:
    """Return the elements of a value, and the shape of its nesting."""
    shape: list[int] = []
    level = [value]
    while level and any(isinstance(item, list) for item in level):
        sizes = {len(item) if isinstance(item, list) else -1 for item in level}
        if len(sizes) != 1 or len(shape) >= limits.rank:
            raise InvalidRequest(f"{_spelled(one.place)} is ragged or nested too deep")
        shape.append(sizes.pop())
        level = [below for item in level for below in item]
    if not isinstance(value, list) and one.shape is None:
        shape = [1]
    return level, tuple(shape)


def _fitted(one: CustomInput, count: int) -> tuple[int, ...]:
    """Return the shape of *count* elements, with the variable dimension computed."""
    shape = one.shape or ()
    fixed = 1
    for dim in shape:
        fixed *= dim if dim >= 0 else 1
    if -1 in shape:
        rows, rest = divmod(count, fixed) if fixed else (0, count)
        if not rest:
            return tuple([rows if dim < 0 else dim for dim in shape])
    elif fixed == count:
        return shape
    raise InvalidRequest(
        f"{_spelled(one.place)} has {count} elements: input {one.name!r} has shape {list(shape)}"
    )


def _data(
    one: CustomInput,
    shape: tuple[int, ...],
    flat: list[Any],
    limits: MessageLimits,
    elements: Callable[[], list[Any]],
) -> TensorData:
    if one.datatype is Datatype.BOOL:
        truths = [_TRUTHS.get(value, value) if isinstance(value, str) else value for value in flat]
        if not all(isinstance(value, bool) for value in truths):
            raise InvalidRequest(f"{_spelled(one.place)} is not true or false")
        return ArrayData(np.array(truths, np.bool_).reshape(shape))
    if one.datatype is Datatype.UINT64:  # grps itself has no integer so large
        what = _spelled(one.place)
        values = [read_integer(what, value, 0, _UINT64_MAX) for value in flat]
        return ArrayData(np.array(values, "<u8").reshape(shape))
    if one.datatype is Datatype.BF16:  # from FP64: through FP32 it would be rounded twice
        known = BY_DATATYPE[Datatype.FP64]
        data = read_data(one.name, known, shape, flat, limits, elements, Datatype.BF16)
        return _narrow(one, data)
    known = BY_DATATYPE[widened_datatype(one.datatype)]
    data = read_data(one.name, known, shape, flat, limits, elements)
    if one.datatype in BY_DATATYPE or isinstance(data, ItemsData):
        return data
    return _narrow(one, data)


def _narrow(one: CustomInput, data: Any) -> TensorData:
    array = data.array
    if one.datatype is Datatype.BF16:
        rounded = bf16_of_fp64(array)
        if rounded is None:
            raise InvalidRequest(f"{_spelled(one.place)} is out of the range of BF16")
        return ArrayData(rounded)
    most = np.iinfo(one.datatype.numpy_dtype).max
    if array.size and (int(array.min()) < 0 or int(array.max()) > int(most)):
        raise InvalidRequest(f"{_spelled(one.place)} is out of the range of {one.datatype.value}")
    return ArrayData(array.astype(one.datatype.numpy_dtype))


def _spelled(place: tuple[Step, ...]) -> str:
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


_UINT64_MAX: Final = (1 << 64) - 1
_ERROR_NAMES: Final = frozenset({"code", "message"})


def _route(where: str, entry: Any) -> CustomRoute:
    entry = {"path": None, **mapping(where, entry)}
    route = CustomRoute(**read_values(where, _ROUTE_READERS, entry, f"{where}."))
    if route.inputs and route.answer is None:
        raise ValueError(f"{where} has inputs and no answer: expected a template as answer")
    unknown = names_in(route.error) - _ERROR_NAMES
    if unknown:
        raise ValueError(f"{where}.error names {min(unknown)!r}: expected code or message")
    return route


def _path(key: str, value: Any) -> str:
    if not isinstance(value, str) or not _PATH.fullmatch(value) or value.startswith(_OWN):
        raise wrong(key, value, f"a plain path outside {_OWN}, such as /v1/chat")
    return value


def _input(where: str, entry: Any) -> CustomInput:
    entry = {
        "name": None,
        "datatype": Datatype.BYTES.value,
        "place": None,
        **mapping(where, entry),
    }
    return CustomInput(**read_values(where, _INPUT_READERS, entry, f"{where}."))


def _place(key: str, value: Any) -> tuple[Step, ...]:
    return read_place(text(key, value))


def _shape(key: str, value: Any) -> tuple[int, ...]:
    dims: tuple[int, ...] = list_of(_dim)(key, value)
    if dims.count(-1) > 1:
        raise wrong(key, value, "dimensions of which at most one is -1")
    return dims


def _dim(key: str, value: Any) -> int:
    dim = int(value) if isinstance(value, str) and _DIM.fullmatch(value) else value
    if type(dim) is not int or dim < -1:
        raise wrong(key, value, "a dimension of 0 or more, or -1")
    return dim


def _stream(where: str, entry: Any) -> CustomStream:
    known = read_values(where, _STREAM_READERS, mapping(where, entry), f"{where}.")
    switch = {key: known.pop(key) for key in STREAMING_READERS if key in known}
    return CustomStream(Streaming(**switch), **known)


def _template(key: str, value: Any) -> Any:
    """Read a template; text that is JSON is parsed, since all scalars of a file are text."""
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{key} is not JSON: {error}") from error


_INPUT_READERS: Final[Mapping[str, Reader]] = {
    "name": matching(re.compile(".+", re.DOTALL), "a name"),
    "datatype": member_of(Datatype),
    "place": _place,
    "shape": optional(_shape),
    "default": lambda _key, value: value,
}
_STREAM_READERS: Final[Mapping[str, Reader]] = {
    **STREAMING_READERS,
    "answer": _template,
    "before": text,
    "after": text,
    "end": text,
}
_ROUTE_READERS: Final[Mapping[str, Reader]] = {
    "path": _path,
    "model": optional(model),
    "body": one_of(JSON_BODY, FORM_BODY, QUERY_BODY),
    "inputs": list_of(_input),
    "parameters": mapping_of(_place),
    "answer": _template,
    "error": _template,
    "stream": optional(_stream),
}
