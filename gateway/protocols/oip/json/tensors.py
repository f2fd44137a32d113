"""Members of JSON messages: names, parameters, and the tensors of `inputs` and `outputs`.

Requests and responses share them.  Requests are read strictly; responses with `lenient`, because
servers write `null` members and parameters of other types (docs/protocols/open-inference.md,
"3. Tensors as JSON").
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from gateway.ir.context import NO_PARAMETERS, JsonParameter, Parameter, replace_surrogates
from gateway.ir.errors import InvalidTensor, MalformedMessage, TooLarge
from gateway.ir.limits import (
    MessageLimits,
    check_bytes_elements,
    check_count,
    check_name,
    check_shape,
    is_usable_name,
)
from gateway.ir.tensors.data import RawData, SharedMemoryData, check_items, split_items
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.items import LENGTH, longest_of
from gateway.ir.tensors.tensor import Shape, Tensor, raw_tensor, streamed_tensor
from gateway.ir.work import charge
from gateway.protocols.oip.datatypes import parse_datatype
from gateway.protocols.oip.dialects import Dialect
from gateway.protocols.oip.json.binary_tensors import BINARY_SIZE, BinaryPart, NeededWhole
from gateway.protocols.oip.json.elements import ElementReader
from gateway.protocols.oip.json.numpy_elements import (
    VARIABLE,
    as_dimensions,
    convert_elements,
    with_dimension,
)
from gateway.protocols.oip.json.parse import Document
from gateway.protocols.oip.parameters import INT64_MIN, UINT64_MAX, check_integer
from gateway.protocols.oip.shared_memory import KEYS, located

NOTHING = RawData(memoryview(b""))
NOWHERE: Mapping[str, SharedMemoryData] = {}
_INT = {int}
_SCALARS = {float, bool, str}
_CONTAINERS = {list, dict}
_SHOWN = 40


class TensorReader:
    """Reads a list of tensors, JSON and binary in any combination.

    Args:
        kind: "input" or "output"; the list has its plural as name.
        binary: The bytes after the JSON.
        limits: Those on tensors, names and parameters are enforced.
        lenient: Read what servers write.
        places: Tensors that the caller expects in shared memory, by name.
        dialect: Read what this server reads; None to read strictly.
    """

    def __init__(
        self,
        kind: str,
        binary: BinaryPart,
        limits: MessageLimits,
        *,
        lenient: bool = False,
        places: Mapping[str, SharedMemoryData] = NOWHERE,
        dialect: Dialect | None = None,
    ) -> None:
        self._kind = kind
        self._places = places
        self._binary = binary
        self._limits = limits
        self._is_lenient = lenient
        self._has_json_parameters = dialect is not None and dialect.reads_json_parameters
        self._converting = dialect if dialect is not None and dialect.reads_as_numpy else None
        self._items = 0
        self._elements = ElementReader(kind, limits, lenient=lenient)

    def read(self, document: Document) -> tuple[Tensor, ...]:
        """Read the document's tensors.

        Raises:
            MalformedMessage: A member is missing or of a wrong type, or bytes are left over.
            InvalidTensor: Datatype, shape and data contradict each other.
            TooLarge: A limit is exceeded.
        """
        kind, limits = self._kind, self._limits
        members = list_member(document.members, f"{kind}s", required=True)
        if len(members) > limits.tensors:
            check_count(f"{kind}s", len(members), limits.tensors, "tensors")
        self._elements.reread = partial(document.elements_to_odd, f"{kind}s")
        tensors = tuple([self._tensor(index, member) for index, member in enumerate(members)])
        if len(tensors) > 1:
            refuse_twice(kind, [tensor.name for tensor in tensors])
        self._binary.finish()
        if document.arrays_left is not None and self._converting is None:
            outside = 1 + len(tensors) + (type(document.members.get("outputs")) is list)
            if kind == "output":
                outside -= 1
            self._elements.check_brackets(document.arrays_left - outside)
        return tensors

    def _tensor(self, index: int, member: Any) -> Tensor:
        kind = self._kind
        name = tensor_name(kind, index, member, self._limits)
        text = member.get("datatype")
        if type(text) is not str:
            raise MalformedMessage(_wrong(f"{kind} {name!r}", "datatype", text, "a string"))
        if self._converting is None:
            datatype = parse_datatype(name, text)
        else:
            datatype = parse_datatype(name, text.upper())
            member = self._converted(name, datatype, member, self._converting)
        shape = self._shape(name, member.get("shape"))
        count = self._count(name, datatype, shape)
        data = member.get("data")
        found = member.get("parameters")
        if found is None and type(data) is list:  # the usual case first
            data = self._elements.read(name, datatype, shape, data, index)
            return Tensor(name, datatype, shape, data, NO_PARAMETERS)
        parameters = read_parameters(
            found,
            f"{kind} {name!r}",
            self._limits,
            lenient=self._is_lenient,
            json_values=self._has_json_parameters,
        )
        if self._kind == "input" and not KEYS.isdisjoint(parameters):
            if data is not None or BINARY_SIZE in parameters:
                raise InvalidTensor(
                    f"input {name!r} has data and is in shared memory: expected one of the two"
                )
        elif BINARY_SIZE in parameters:
            if data is not None:
                raise InvalidTensor(
                    f"{kind} {name!r} has both data and {BINARY_SIZE}: expected one of them"
                )
            return self._from_binary(name, datatype, shape, count, parameters)
        if data is None:
            return self._with_shared_memory(Tensor(name, datatype, shape, NOTHING, parameters))
        return Tensor(
            name,
            datatype,
            shape,
            self._elements.read(name, datatype, shape, data, index),
            parameters,
        )

    def _converted(
        self, name: str, datatype: Datatype, member: dict[str, Any], dialect: Dialect
    ) -> dict[str, Any]:
        """Return a tensor's object with its shape and its elements as a server converts them."""
        shape, data = as_dimensions(member.get("shape")), member.get("data")
        if shape is None:
            return member
        if data is not None:
            half = dialect.has_half_in_json
            found, filled = convert_elements(name, datatype, shape, data, self._limits, half=half)
            return {**member, "shape": list(filled), "data": found}
        parameters = member.get("parameters")
        size = parameters.get(BINARY_SIZE) if type(parameters) is dict else None
        if VARIABLE in shape and type(size) is int:
            if datatype is Datatype.BYTES:
                if self._binary.is_arriving:
                    raise NeededWhole
                view = self._binary.peek(size)
                charge(view.nbytes // LENGTH.size)
                count = len(split_items(name, view))
            else:
                count = size // datatype.size_bytes
            shape = list(with_dimension(name, shape, count))
        return {**member, "shape": shape}

    def _count(self, name: str, datatype: Datatype, shape: Shape) -> int:
        """Check a shape and return its number of elements; sums up those of BYTES."""
        count = check_shape(name, datatype, shape, self._limits)
        if datatype is Datatype.BYTES:
            self._items += count
            check_bytes_elements(self._items, self._limits)
        return count

    def _from_binary(
        self,
        name: str,
        datatype: Datatype,
        shape: Shape,
        count: int,
        parameters: Mapping[str, Parameter],
    ) -> Tensor:
        """Return a tensor whose bytes follow the JSON."""
        custom = {key: value for key, value in parameters.items() if key != BINARY_SIZE}
        if self._binary.is_arriving:
            if datatype is Datatype.BYTES:
                raise NeededWhole
            awaited = self._binary.await_(name, parameters[BINARY_SIZE])
            return streamed_tensor(name, datatype, shape, awaited, custom)
        view = self._binary.read(name, parameters[BINARY_SIZE])
        return self._raw(name, datatype, shape, count, view, custom)

    def _raw(
        self,
        name: str,
        datatype: Datatype,
        shape: Shape,
        count: int,
        view: memoryview,
        parameters: Mapping[str, Parameter],
    ) -> Tensor:
        if datatype is not Datatype.BYTES:
            return raw_tensor(name, datatype, shape, view, parameters)
        most = self._limits.bytes_element_size
        if len(view) <= most:  # so no element is longer
            check_items(name, view, count)
            return Tensor(name, datatype, shape, RawData(view), parameters)
        index, longest = longest_of(split_items(name, view, count))
        if longest > most:
            raise TooLarge(
                f"{self._kind} {name!r} has {longest} bytes at index {index}, "
                f"at most {most} are allowed",
                limit="bytes_element_size",
            )
        return Tensor(name, datatype, shape, RawData(view), parameters)

    def _with_shared_memory(self, tensor: Tensor) -> Tensor:
        """Return a tensor without data as one in shared memory, if it is there."""
        name = tensor.name
        place = self._places.get(name)
        if place is not None:
            return Tensor(name, tensor.datatype, tensor.shape, place, tensor.parameters)
        found = located(tensor, self._limits) if self._kind == "input" else None
        if found is None:
            raise InvalidTensor(
                f"{self._kind} {name!r} has no data: expected 'data', "
                f"or the parameter {BINARY_SIZE!r} and its bytes after the JSON"
            )
        return found

    def _shape(self, name: str, value: Any) -> Shape:
        if type(value) is not list or (value and set(map(type, value)) != _INT):
            raise MalformedMessage(
                _wrong(f"{self._kind} {name!r}", "shape", value, "a list of integers")
            )
        return tuple(value)


def input_names(document: Document) -> list[str]:
    """Return the names of a document's inputs, those that are texts; none where it has no list."""
    members = document.members.get("inputs")
    found = [each.get("name") for each in members or () if type(each) is dict]
    return [name for name in found if type(name) is str]


def list_member(members: Mapping[str, Any], key: str, *, required: bool = False) -> list[Any]:
    """Return a list member; empty when absent or null and not *required*.

    Raises:
        MalformedMessage: It is something else.
    """
    value = members.get(key)
    if type(value) is list:
        return value
    if value is None and not required:
        return []
    raise MalformedMessage(_wrong("the message", key, value, "a list"))


def text_member(members: Mapping[str, Any], key: str, limits: MessageLimits) -> str:
    """Return a text member, checked as a name; "" when absent or null.

    Raises:
        MalformedMessage: It is not text.
        InvalidRequest: It has control characters.
        TooLarge: It is too long.
    """
    value = members.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise MalformedMessage(_wrong("the message", key, value, "a string"))
    if not is_plain(value, limits):
        check_name(key, value, limits.name_bytes, "name_bytes")
    return value


def is_plain(name: str, limits: MessageLimits) -> bool:
    """Return whether *name* needs no `check_name`; saves formatting its description."""
    return len(name) <= limits.name_bytes and name.isascii() and name.isprintable()


def tensor_name(kind: str, index: int, member: Any, limits: MessageLimits) -> str:
    """Return the name of the tensor object *member*.

    Raises:
        MalformedMessage: It is not an object, or has no name.
        InvalidRequest: The name has control characters.
        TooLarge: It is too long.
    """
    if type(member) is not dict:
        raise MalformedMessage(f"{kind} {index} is {_show(member)}: expected an object")
    name = member.get("name")
    if type(name) is not str or not name:
        raise MalformedMessage(_wrong(f"{kind} {index}", "name", name, "a string"))
    if not is_plain(name, limits):
        check_name(f"name of {kind} {index}", name, limits.name_bytes, "name_bytes")
    return name


def refuse_twice(kind: str, names: list[str]) -> None:
    """Refuse a name that occurs twice.

    Raises:
        MalformedMessage: One does.
    """
    if len(set(names)) != len(names):
        name = next(name for index, name in enumerate(names) if name in names[:index])
        raise MalformedMessage(f"{kind} {name!r} occurs twice")


# Keys that the protocol gives a type; Triton refuses null for them, too.
_TYPED = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "binary_data_output",
        "binary_data",
        "binary_data_size",
        "classification",
        "classification_count",
    }
)


def _is_typed(key: str) -> bool:
    return key in _TYPED or key.startswith(("triton_", "shared_memory_"))


def read_parameters(
    found: Any,
    what: str,
    limits: MessageLimits,
    *,
    lenient: bool = False,
    json_values: bool = False,
) -> dict[str, Parameter]:
    """Return the `parameters` of a message or tensor, reserved ones included, without null ones.

    Args:
        found: The member; None when it is absent or null.
        what: Names the message or tensor in errors.
        limits: On count and names.
        lenient: Keep lists and objects, longer integers as their text, and leave out what has no
            usable name.
        json_values: Keep lists and objects. Keys with the names of Triton's may be null.

    Raises:
        MalformedMessage: They are not an object, or a value is not a scalar.
        InvalidRequest: A name has control characters, or an integer has more than 64 bits.
        TooLarge: There are too many, or a name is too long.
    """
    if found is None or (lenient and type(found) is not dict):
        return {}
    if type(found) is not dict:
        raise MalformedMessage(_wrong(what, "parameters", found, "an object"))
    check_count(f"parameters of {what}", len(found), limits.parameters, "parameters")
    parameters: dict[str, Parameter] = {}
    for key, value in found.items():
        if not is_plain(key, limits):
            if lenient and not is_usable_name("name of a parameter", key, limits.name_bytes):
                continue
            check_name(f"name of a parameter of {what}", key, limits.name_bytes, "name_bytes")
        if value is not None:
            if json_values and type(value) in _CONTAINERS:
                parameters[key] = _json_parameter(key, value, what)
            else:
                parameters[key] = _lenient(value) if lenient else _checked(key, value, what)
        elif not (lenient or json_values) and _is_typed(key):
            raise _no_scalar(key, value, what)
    return parameters


def _json_parameter(key: str, value: Any, what: str) -> JsonParameter:
    try:
        return JsonParameter(orjson.dumps(value).decode())
    except TypeError as error:  # integers of more than 64 bits, lone surrogates
        raise MalformedMessage(f"parameter {key!r} of {what} is not JSON: {error}") from error


def _checked(key: str, value: Any, what: str) -> Parameter:
    """Return the value of a client's parameter."""
    if type(value) is int:
        return check_integer(key, value)
    if type(value) not in _SCALARS:
        raise _no_scalar(key, value, what)
    found: Parameter = value
    return found


def _lenient(value: Any) -> Parameter:
    """Return the value of a server's parameter."""
    if type(value) is int:
        return value if INT64_MIN <= value <= UINT64_MAX else str(value)
    if type(value) is str:
        return replace_surrogates(value)
    if type(value) in _SCALARS:
        found: Parameter = value
        return found
    try:
        return JsonParameter(orjson.dumps(value).decode())
    except TypeError:  # long integers, and text that is not UTF-8, which servers write
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return replace_surrogates(text)


def _no_scalar(key: str, value: Any, what: str) -> MalformedMessage:
    return MalformedMessage(
        f"parameter {key!r} of {what} is {_show(value)}: expected a string, a number, true or false"
    )


def _wrong(what: str, key: str, value: Any, needed: str) -> str:
    if value is None:
        return f"{what} has no {key!r}: expected {needed}"
    return f"{key!r} of {what} is {_show(value)}: expected {needed}"


def _show(value: Any) -> str:
    text = {type(None): "null", list: "a list", dict: "an object"}.get(type(value), repr(value))
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
