"""Reads tensor elements from JSON lists; `write.py` writes them.

`data` is flat, or nested exactly as the shape.  Elements are read strictly: integers for
integers, true and false for BOOL, numbers for floats, strings (UTF-8) for BYTES.  Nothing is
rounded to an integer, wrapped or guessed.  Three exceptions hold for responses of servers: `null`
is NaN, FP16 may be numbers, and elements of BYTES may be other values (MLServer).

Source: Open Inference Protocol, "Tensor Data"; docs/protocols/open-inference.md,
"3. Tensors as JSON".
"""

import math
import struct
from collections.abc import Callable
from typing import Any, Final

import orjson
import simdjson

from gateway.accelerator import accelerated
from gateway.ir.errors import InvalidTensor, TooLarge
from gateway.ir.limits import MessageLimits, check_bytes_elements
from gateway.ir.tensors.data import ArrayData, ItemsData, JsonItemsData, RawData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.items import ItemViews, text_items
from gateway.ir.tensors.tensor import Shape
from gateway.ir.values.nearest import may_lie_between
from gateway.ir.values.number_lists import CODES, buffer_of, is_nested, narrowed, packer, unnested
from gateway.ir.work import LIST, PARSED_NUMBER, charge
from gateway.protocols.oip.datatypes import NOT_IN_JSON
from gateway.protocols.oip.json.numpy_elements import ConvertedData, json_items
from gateway.wire.json.values import plain_value

_INTEGERS = frozenset({int})
_NUMBERS = frozenset({int, float})
_BOOLS = frozenset({bool})
_STRINGS = frozenset({str})
_KINDS: Final = {
    datatype: _INTEGERS if datatype.is_integer else _NUMBERS if datatype.is_float else _BOOLS
    for datatype in CODES
} | {Datatype.BYTES: _STRINGS}
_PLAIN: Final = frozenset(_KINDS) - NOT_IN_JSON
_WORDS: Final = {
    _INTEGERS: "an integer",
    _NUMBERS: "a number",
    _BOOLS: "true or false",
    _STRINGS: "a string",
}
_SHOWN = 40


class ElementReader:
    """Reads the `data` members of one message.

    Args:
        kind: "input" or "output", for errors.
        limits: `bytes_element_size` is enforced.
        lenient: Apply the exceptions for servers.

    Attributes:
        reread: Returns the `data` of the tensor at an index, its decimals as `ir.nearest.to_odd`
            returns them.
    """

    reread: Callable[[int], Any]

    def __init__(self, kind: str, limits: MessageLimits, *, lenient: bool) -> None:
        self._kind = kind
        self._limits = limits
        self._is_lenient = lenient
        self._arrays = 0
        self._lists = 0
        self._proxies: list[tuple[str, Shape, Any]] = []

    def read(
        self, name: str, datatype: Datatype, shape: Shape, data: Any, index: int
    ) -> TensorData:
        """Read one tensor's elements.

        Args:
            name: The tensor's.
            datatype: The datatype that the elements have.
            shape: Already checked by `check_shape`.
            data: A list, a simdjson Array, or converted elements.
            index: The position of the tensor in the message.

        Raises:
            InvalidTensor: An element, the count or the nesting is wrong.
            TooLarge: An element of BYTES exceeds the limit.
        """
        if type(data) is list and datatype in _PLAIN and _is_flat(data, shape):
            return self._pack(name, datatype, shape, data, index)
        if isinstance(data, ConvertedData):
            return data
        if datatype in NOT_IN_JSON and not (self._is_lenient and datatype is Datatype.FP16):
            raise InvalidTensor(
                f"{self._kind} {name!r} is {datatype.name}, which JSON cannot represent: "
                "send it as binary tensor data (parameter 'binary_data_size' and header "
                "'Inference-Header-Content-Length') or over gRPC"
            )
        if type(data) is list:
            return self._pack(name, datatype, shape, self._flatten(name, shape, data), index)
        if type(data) is simdjson.Array:
            return self._read_proxy(name, datatype, shape, data, index)
        raise InvalidTensor(
            f"{self._kind} {name!r} has data {_show(data)}: expected a list of elements"
        )

    def check_brackets(self, count: int | None) -> None:
        """Check that no proxy contained a list in place of an element.

        `as_buffer` flattens such lists silently.  They change the number of opening brackets in
        the text.  Once all lists are known, *count* is that number without those outside of
        data.  Brackets in strings make the check slower, not wrong.

        Raises:
            InvalidTensor: A proxy did.
        """
        if count is not None and count != self._arrays:
            for name, shape, data in self._proxies:
                flat = self._flatten(name, shape, plain_value(data))
                if list in set(map(type, flat)):
                    raise self._ragged(name, shape)

    def _flatten(self, name: str, shape: Shape, data: list[Any]) -> list[Any]:
        flat = data
        if data and type(data[0]) is list:
            found = unnested(data, shape)
            if found is None:
                raise self._ragged(name, shape)
            flat = found
        count = math.prod(shape)
        if len(flat) != count:
            raise self._miscounted(name, shape, len(flat))
        return flat

    def _pack(
        self, name: str, datatype: Datatype, shape: Shape, flat: list[Any], index: int
    ) -> TensorData:
        if not _KINDS[datatype].issuperset(map(type, flat)):
            if datatype is Datatype.BYTES and self._is_lenient:
                return self._json_items(name, flat)
            flat = self._coerced(name, datatype, flat)
        if datatype is Datatype.BYTES:
            return ItemsData(self._encoded(name, flat))
        try:
            if datatype.is_float and may_lie_between(flat, datatype):
                again = self._flatten(name, shape, self.reread(index))
                flat = [math.nan if value is None else value for value in again]
            return RawData(memoryview(packer(datatype, len(flat))(*flat)))
        except (struct.error, OverflowError):
            raise self._out_of_range(name, datatype, flat) from None

    def _json_items(self, name: str, flat: list[Any]) -> JsonItemsData:
        charge(len(flat))
        index = next((at for at, value in enumerate(flat) if type(value) is list), None)
        try:
            if index is None:
                return json_items(flat)
        except TypeError as error:  # text that is not UTF-8
            raise InvalidTensor(
                f"{self._kind} {name!r} has an element that is not JSON: {error}"
            ) from error
        raise InvalidTensor(
            f"{self._kind} {name!r} has a list at index {index}: expected a string for BYTES"
        )

    def _coerced(self, name: str, datatype: Datatype, flat: list[Any]) -> list[Any]:
        """Return *flat* with null as NaN where that is allowed; raises for the first wrong one."""
        allowed = _KINDS[datatype]
        if self._is_lenient and datatype.is_float:
            flat = [math.nan if value is None else value for value in flat]
        for index, value in enumerate(flat):
            if type(value) not in allowed:
                raise InvalidTensor(
                    f"{self._kind} {name!r} has {_show(value)} at index {index}: "
                    f"expected {_WORDS[allowed]} for {datatype.name}"
                )
        return flat

    def _encoded(self, name: str, flat: list[str]) -> list[bytes] | ItemViews:
        # Lone surrogates are bytes of a server that were not UTF-8; a request has none.
        try:
            items = text_items(flat, "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidTensor(f"{self._kind} {name!r} has text that is not Unicode") from error
        most = self._limits.bytes_element_size
        for index, item in enumerate(items):
            if len(item) > most:
                raise TooLarge(
                    f"{self._kind} {name!r} has {len(item)} bytes at index {index}, "
                    f"at most {most} are allowed",
                    limit="bytes_element_size",
                )
        return items

    def _read_proxy(
        self, name: str, datatype: Datatype, shape: Shape, data: Any, index: int
    ) -> TensorData:
        self._check_nesting(name, shape, data)
        self._proxies.append((name, shape, data))
        if datatype.is_integer or datatype.is_float:
            charge(math.prod(shape) * PARSED_NUMBER, 0)
            values = buffer_of(data, datatype)
            if values is not None:
                if values.size != math.prod(shape):
                    raise self._miscounted(name, shape, values.size)
                narrow = narrowed(values, datatype)
                if narrow is not None and not may_lie_between(values, datatype):
                    return ArrayData(narrow.reshape(shape))
        # Text, or a wrong element: find it.
        charge(math.prod(shape))
        return self._pack(
            name,
            datatype,
            shape,
            self._flatten(name, shape, plain_value(data)),
            index,
        )

    def _check_nesting(self, name: str, shape: Shape, data: Any) -> None:
        self._arrays += 1
        size = len(data)
        if not size or type(data[0]) is not simdjson.Array:
            if size != math.prod(shape):
                raise self._miscounted(name, shape, size)
            return
        if not shape or size != shape[0]:
            raise self._ragged(name, shape)
        # Each list costs a step, so they are counted first: correct nesting has this number.
        lists, rows = 0, 1
        for dim in shape[:-1]:
            rows *= dim
            lists += rows
        self._lists += lists
        check_bytes_elements(self._lists, self._limits)
        charge(lists * LIST)
        if not is_nested(data, shape[1:]):
            raise self._ragged(name, shape)
        self._arrays += lists

    def _ragged(self, name: str, shape: Shape) -> InvalidTensor:
        return InvalidTensor(
            f"{self._kind} {name!r} has data nested differently from its shape {list(shape)}: "
            "expected a flat list, or lists nested exactly as the shape"
        )

    def _miscounted(self, name: str, shape: Shape, found: int) -> InvalidTensor:
        return InvalidTensor(
            f"{self._kind} {name!r} has {found} elements in data: "
            f"expected {math.prod(shape)} for shape {list(shape)}"
        )

    def _out_of_range(self, name: str, datatype: Datatype, flat: list[Any]) -> InvalidTensor:
        one = f"<{CODES[datatype]}"
        for index, value in enumerate(flat):
            try:
                struct.pack(one, value)
            except (struct.error, OverflowError):
                return InvalidTensor(
                    f"{self._kind} {name!r} has {_show(value)} at index {index}: "
                    f"out of the range of {datatype.name}"
                )
        raise AssertionError(flat)  # pragma: no cover  # each element alone fits, then all do


@accelerated
def number_packer(code: str, count: int) -> Callable[[bytes], bytes]:
    """Return a function that packs *count* numbers in a JSON list into their wire form.

    It raises ValueError, struct.error or OverflowError for another list.

    Args:
        code: The code of the numbers, one of `CODES`.
        count: How many numbers there are.
    """
    # struct counts the numbers and checks their range; it accepts no text and no list.
    pack = struct.Struct(f"<{count}{code}").pack
    return lambda text: _packed(pack, code, orjson.loads(text))


def nested_packer(code: str, shape: Shape) -> Callable[[bytes], bytes]:
    """Return a function as `number_packer`, for lists nested exactly as *shape*."""
    pack = struct.Struct(f"<{math.prod(shape)}{code}").pack
    return lambda text: _packed(pack, code, unnested(orjson.loads(text), shape) or [])


def _packed(pack: Callable[..., bytes], code: str, flat: list[Any]) -> bytes:
    """Pack numbers; raises ValueError where only their text tells what is nearest to them."""
    found = pack(*flat)
    if code == "f" and may_lie_between(flat, Datatype.FP32):
        raise ValueError(flat)
    return found


def _is_flat(data: list[Any], shape: Shape) -> bool:
    """Return whether *data* has the elements of *shape* and does not begin with a list."""
    return len(data) == math.prod(shape) and not (data and type(data[0]) is list)


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | simdjson.Array):
        return "a list"
    if isinstance(value, dict | simdjson.Object):
        return "an object"
    text = f"{value!r}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
