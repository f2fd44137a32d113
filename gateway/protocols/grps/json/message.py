"""GrpsMessage to and from JSON: members, names and rules.

`document.py` checks the document itself (size, depth, duplicate keys), `elements.py` reads tensor
elements.  Requests may use the union of what the Python and the C++ server accept; responses are
read more leniently, as servers write them.

Source: docs/protocols/grps.md, "9. JSON".
"""

import base64
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import prod
from typing import Any, Final

import numpy as np

from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, InvalidTensor, TooLarge, Unsupported
from gateway.ir.limits import (
    MessageLimits,
    check_bytes_elements,
    check_count,
    check_name,
    check_shape,
)
from gateway.ir.tensors.data import ArrayData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.expected_inputs import compare_inputs, is_comparing
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy
from gateway.ir.values.exact_values import base64_bytes
from gateway.ir.values.nearest import loads_to_odd
from gateway.ir.work import charge
from gateway.protocols.grps.datatypes import (
    MOST_DIM,
    WIRE_TYPES,
    WireType,
    kind_and_shape,
    wire_type,
)
from gateway.protocols.grps.json.elements import (
    FLOAT32_MAX,
    read_array,
    read_data,
    read_integer,
    read_number,
    written_array,
    written_elements,
)
from gateway.protocols.grps.messages import ContentFormat, Flag, GrpsMessage, GrpsStatus, MapValue
from gateway.wire.json.floats import dump_exact

_PARSED: Final = {
    "str_data": ContentFormat.STR_DATA,
    "gtensors": ContentFormat.GTENSORS,
    "gmap": ContentFormat.GMAP,
}
_DATA: Final = (*_PARSED, "ndarray", "bin_data")
_CAMEL: Final = {"strData": "str_data", "binData": "bin_data"}

# Nested members exist in both spellings; the last three are mistakes in the documentation.
_FLATS: Final = {kind.member: kind for kind in WIRE_TYPES} | {
    kind.member.replace("_", " ").title().replace(" ", "").replace("Flat", "flat", 1): kind
    for kind in WIRE_TYPES
}
_ALIASES: Final = {
    kind: wire_type("", name)
    for kind, name in (
        ("flat_double", "DT_FLOAT64"),
        ("flat_float", "DT_FLOAT32"),
        ("flat_half", "DT_FLOAT16"),
    )
}
_MEMBERS: Final = {**_FLATS, **_ALIASES}
_MAP_FIELDS: Final = {
    "s_s": "s_s",
    "sS": "s_s",
    "s_b": "s_b",
    "sB": "s_b",
    "s_i32": "s_i32",
    "sI32": "s_i32",
    "s_i64": "s_i64",
    "sI64": "s_i64",
    "s_f": "s_f",
    "sF": "s_f",
    "s_d": "s_d",
    "sD": "s_d",
}
_FLAGS: Final = {flag.name: int(flag) for flag in Flag}
_FLAG_NAMES: Final = {int(flag): flag.name for flag in Flag}
_DIGITS: Final = re.compile(r"\d{1,4}")
_SHOWN: Final = 64


def read_request(
    document: Mapping[str, Any], limits: MessageLimits, text: memoryview
) -> GrpsMessage:
    """Return the message in a client's document, and in its *text*.

    Raises:
        InvalidRequest: It has no data member, more than one, or one that JSON does not have.
        InvalidTensor: A tensor's members contradict each other.
        TooLarge: A limit is exceeded.
    """
    present = [member for member in _DATA if document.get(member) is not None]
    if not present:
        raise InvalidRequest(
            "the JSON body has no legal member: expected one of str_data, gtensors, gmap, ndarray"
        )
    if len(present) > 1:
        raise InvalidRequest(
            f"the JSON body has both {present[0]} and {present[1]}: expected one of them"
        )
    if present[0] == "bin_data":
        raise InvalidRequest("bin_data should use application/octet-stream format")
    model = document.get("model")
    if model is None:
        model = ""
    if not isinstance(model, str):
        raise InvalidRequest(f"model is {_show(model)}: expected a string")
    return _with_data(present[0], document, model, None, limits, text)


def read_response(
    document: Mapping[str, Any], limits: MessageLimits, text: memoryview
) -> GrpsMessage:
    """Return the message in a server's document, and in its *text*.

    Raises:
        InvalidRequest: A member has an invalid value.
        InvalidTensor: A tensor's members contradict each other.
        TooLarge: A limit is exceeded.
    """
    status = _read_status(document.get("status"))
    members = {_CAMEL.get(key, key): value for key, value in document.items()}
    present = [member for member in _DATA if members.get(member) is not None]
    if not present:
        return GrpsMessage(status=status)
    if present[0] == "bin_data":
        return GrpsMessage(
            form=ContentFormat.BIN_DATA, status=status, data=_bytes(members["bin_data"])
        )
    return _with_data(present[0], members, "", status, limits, text)


def write_json(message: GrpsMessage, *, numbers: bool = False) -> bytes:
    """Return a message as JSON: snake_case, names of enumerations, defaults left out.

    Args:
        message: With tensors in datatypes of grps.
        numbers: INT64 as numbers, as brpc's own printer does; else as text, as grps does.

    Raises:
        Unsupported: A value cannot be written.
    """
    document: dict[str, Any] = {}
    status = message.status
    if status is not None:
        document["status"] = _status(status)
    # The server always names a model beside an ndarray, be it "".
    if message.model or message.form is ContentFormat.NDARRAY:
        document["model"] = message.model
    if message.form is not None:
        document[message.form.value] = _data(message, numbers=numbers)
    try:
        return dump_exact(document)
    except TypeError as error:  # lone surrogates, integers over 64 bits
        raise Unsupported(f"message cannot be written as JSON: {error}") from error


def _with_data(
    member: str,
    document: Mapping[str, Any],
    model: str,
    status: GrpsStatus | None,
    limits: MessageLimits,
    text: memoryview,
) -> GrpsMessage:
    value = document[member]

    @cache
    def reread() -> Any:
        return loads_to_odd(text)[member]

    if member == "ndarray":
        tensor = array_tensor("", read_array(value, limits, reread))
        return GrpsMessage(
            form=ContentFormat.NDARRAY, model=model, status=status, tensors=(tensor,)
        )
    form = _PARSED[member]
    if form is ContentFormat.STR_DATA:
        if not isinstance(value, str):
            raise InvalidRequest(f"str_data is {_show(value)}: expected a string")
        return GrpsMessage(form=form, model=model, status=status, text=value)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{member} is {_show(value)}: expected an object")
    if form is ContentFormat.GMAP:
        entries = _read_map(value, limits)
        return GrpsMessage(form=form, model=model, status=status, entries=entries)
    tensors = value.get("tensors")
    if tensors is None:
        tensors = []
    if not isinstance(tensors, list):
        raise InvalidRequest(f"gtensors.tensors is {_show(tensors)}: expected a list")
    check_count("tensors", len(tensors), limits.tensors, "tensors")
    if is_comparing():
        names = [tensor.get("name") for tensor in tensors if isinstance(tensor, dict)]
        compare_inputs(ModelRef(model), [name for name in names if isinstance(name, str)])
    found = tuple(
        [
            _read_tensor(tensor, limits, partial(_tensor_at, reread, at))
            for at, tensor in enumerate(tensors)
        ]
    )
    texts = [prod(one.shape or ()) for one in found if one.datatype is Datatype.BYTES]
    check_bytes_elements(sum(texts), limits)
    return GrpsMessage(form=form, model=model, status=status, tensors=found)


def _tensor_at(reread: Callable[[], Any], at: int) -> Any:
    return reread()["tensors"][at]


def _read_tensor(tensor: Any, limits: MessageLimits, reread: Callable[[], Any]) -> Tensor:
    if not isinstance(tensor, dict):
        raise InvalidTensor(f"gtensors has {_show(tensor)}: expected an object")
    name = tensor.get("name")
    if name is None:
        name = ""
    if not isinstance(name, str):
        raise InvalidTensor(f"the name of a tensor is {_show(name)}: expected a string")
    check_name("tensor name", name, limits.name_bytes, "name_bytes")
    kind = _read_dtype(name, tensor.get("dtype"))
    shape = _read_shape(name, tensor.get("shape"), limits)
    count = check_shape(name, kind.datatype, shape, limits)
    flat = _read_flat(name, kind, tensor)

    def elements() -> list[Any]:
        return _read_flat(name, kind, reread())

    if len(flat) != count:
        raise InvalidTensor(
            f"tensor {name!r} has {len(flat)} elements in {kind.member}: "
            f"expected {count} for shape {list(shape)}"
        )
    data = read_data(name, kind, shape, flat, limits, elements)
    return Tensor(name, kind.datatype, shape, data)


def _read_dtype(name: str, dtype: Any) -> WireType:
    if isinstance(dtype, str) and _DIGITS.fullmatch(dtype):
        return wire_type(name, int(dtype))
    if dtype is None:
        return wire_type(name, 0)
    if type(dtype) not in (int, str):
        raise InvalidTensor(f"tensor {name!r} has dtype {_show(dtype)}: expected a name or number")
    return wire_type(name, dtype)


def _read_shape(name: str, shape: Any, limits: MessageLimits) -> tuple[int, ...]:
    if shape is None:
        return ()
    if not isinstance(shape, list):
        raise InvalidTensor(f"tensor {name!r} has shape {_show(shape)}: expected a list")
    if len(shape) > limits.rank:
        raise TooLarge(
            f"tensor {name!r} has {len(shape)} dimensions, at most {limits.rank} are allowed",
            limit="rank",
        )
    what = f"a dimension of tensor {name!r}"
    return tuple([read_integer(what, dim, 0, MOST_DIM) for dim in shape])


def _read_flat(name: str, kind: WireType, tensor: Mapping[str, Any]) -> list[Any]:
    """Return the elements, which must be only in the member that dtype determines."""
    found: list[Any] | None = None
    for member, holder in _MEMBERS.items():
        value = tensor.get(member)
        if value is None:
            continue
        if not isinstance(value, list):
            raise InvalidTensor(f"tensor {name!r} has {_show(value)} in {member}: expected a list")
        if not value and holder is not kind:
            continue
        if holder is not kind:
            raise InvalidTensor(
                f"tensor {name!r} is {kind.name} and has data in {member}: "
                f"expected {kind.member} alone"
            )
        if found is not None:
            raise InvalidTensor(f"tensor {name!r} has data twice, in {member} too")
        found = value
    return [] if found is None else found


def _read_map(value: dict[str, Any], limits: MessageLimits) -> dict[str, dict[str, MapValue]]:
    entries: dict[str, dict[str, MapValue]] = {}
    for member, found in value.items():
        field = _MAP_FIELDS.get(member)
        if field is None or found is None:
            continue
        if not isinstance(found, dict):
            raise InvalidRequest(f"gmap.{member} is {_show(found)}: expected an object")
        check_count("entries of gmap", len(found), limits.parameters + limits.tensors, "parameters")
        if field in entries:
            raise InvalidRequest(f"gmap has {field} in two spellings: expected one")
        if found:
            entries[field] = {
                key: _map_value(f"gmap.{field}.{key[:_SHOWN]}", field, one)
                for key, one in found.items()
            }
    return entries


def _map_value(what: str, field: str, value: Any) -> MapValue:
    if field == "s_s":
        if not isinstance(value, str):
            raise InvalidRequest(f"{what} is {_show(value)}: expected a string")
        return value
    if field == "s_b":
        return _bytes(value, what)
    if field in ("s_i32", "s_i64"):
        most = 1 << (31 if field == "s_i32" else 63)
        return read_integer(what, value, -most, most - 1)
    number = read_number(what, value)
    if field == "s_f" and abs(number) > FLOAT32_MAX and number not in (np.inf, -np.inf):
        raise InvalidRequest(f"{what} is {number}: out of the range of float")
    return float(np.float32(number)) if field == "s_f" else number


def _bytes(value: Any, what: str = "bin_data") -> bytes:
    """Read base64, standard or URL-safe, padded or not."""
    if isinstance(value, str):
        text = "".join(value.split()).rstrip("=").replace("-", "+").replace("_", "/")
        try:
            return base64_bytes(text + "=" * (-len(text) % 4))
        except ValueError:
            pass  # the error follows
    raise InvalidRequest(f"{what} is {_show(value)}: expected base64")


def _read_status(value: Any) -> GrpsStatus | None:
    if not isinstance(value, dict):
        return None
    code, msg, flag = value.get("code"), value.get("msg"), value.get("status")
    if isinstance(flag, str):
        flag = _FLAGS.get(flag, Flag.UNKNOWN)
    return GrpsStatus(
        code if type(code) is int else 0,
        msg if isinstance(msg, str) else "",
        flag if type(flag) is int or isinstance(flag, Flag) else 0,
    )


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _status(status: GrpsStatus) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if status.code:
        written["code"] = status.code
    if status.msg:
        # That of an upstream may be any text; the result must be valid JSON.
        written["msg"] = status.msg.encode("utf-8", "replace").decode()
    if status.flag:
        written["status"] = _FLAG_NAMES.get(status.flag, status.flag)
    return written


def _data(message: GrpsMessage, *, numbers: bool) -> Any:
    if message.form is ContentFormat.STR_DATA:
        return message.text
    if message.form is ContentFormat.BIN_DATA:
        return base64.b64encode(message.data).decode()
    if message.form is ContentFormat.NDARRAY:
        return written_array(as_numpy(message.tensors[0]))
    if message.form is ContentFormat.GMAP:
        return {
            field: {key: _entry(field, value, numbers=numbers) for key, value in values.items()}
            for field, values in message.entries.items()
            if values
        }
    return {"tensors": [_tensor(tensor, numbers=numbers) for tensor in message.tensors]}


def _entry(field: str, value: MapValue, *, numbers: bool) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        dtype = np.float32 if field == "s_f" else np.float64
        return written_elements(np.array([value], dtype), numbers=True)[0]
    if field == "s_i64" and not numbers:
        return str(value)
    return value


def _tensor(tensor: Tensor, *, numbers: bool) -> dict[str, Any]:
    kind, shape = kind_and_shape(tensor)
    written: dict[str, Any] = {}
    if tensor.name:
        written["name"] = tensor.name
    written["dtype"] = kind.name
    if shape:
        written["shape"] = list(shape)
    if kind.datatype is Datatype.BYTES:
        items = as_items(tensor)
        charge(len(items))
        elements: Any = [str(item, "utf-8") for item in items]
    else:
        flat = tensor.data.array if isinstance(tensor.data, ArrayData) else as_numpy(tensor)
        elements = written_elements(flat.reshape(-1), numbers=numbers)
    if prod(shape):
        written[kind.member] = elements
    return written
