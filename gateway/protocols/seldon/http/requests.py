"""Reads the payload of a message of JSON: one array, a text, bytes, or any JSON value.

Answers of servers have the same form.

Source: docs/protocols/seldon.md, "3. Messages".
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from google.protobuf.json_format import ParseDict, ParseError
from msgspec.structs import replace  # noqa: TID251  # of data, not of calls

from gateway.ir.errors import InvalidRequest, MalformedMessage, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_shape
from gateway.ir.tensors.data import JsonLayout, UntypedData
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.values.doubles import MOST_EXACT
from gateway.ir.values.exact_values import whole_number
from gateway.ir.values.nearest import loads_to_odd
from gateway.ir.values.number_lists import nested_shape
from gateway.ir.work import FIELD, OBJECT_BYTE, charge
from gateway.protocols.seldon.declarations import INPUTS, TEXT, SeldonForm
from gateway.protocols.seldon.messages import Payload, PayloadKind, element_tensor
from gateway.protocols.seldon.options import ValueRules
from gateway.schema import tensorflow_messages_pb2 as pb
from gateway.wire.protobuf.tensor_protos import TensorProtoReader
from gateway.wire.protobuf.wire_format import FieldCounter, WireError
from gateway.wire.rows.read import RowsDocument, RowsReader, is_list, object_members
from gateway.wire.rows.tables import show

_DATA: Final = "data"
_NDARRAY, _TENSOR, _TFTENSOR = "data.ndarray", "data.tensor.values", "data.tftensor"
_INT32_END: Final = 1 << 31
_NUMBERS: Final = frozenset({int, float})


class PayloadReader:
    """Reads the payload of one message.

    Args:
        document: The message.
        limits: The limits of a message.
        rules: What its values may be.
        declared: What the configuration declares of the model.
    """

    def __init__(
        self,
        document: RowsDocument,
        limits: MessageLimits,
        rules: ValueRules,
        declared: SeldonForm,
    ) -> None:
        self._document = document
        self._limits = limits
        self._rules = rules
        self._declared = declared

    def read(self) -> Payload:
        """Return the payload, of several members the first: data, jsonData, strData, binData.

        Raises:
            InvalidRequest: There is none, or it is wrong.
            TooLarge: A limit is exceeded.
        """
        members = self._document.members
        if _DATA in members:
            return self._data(members[_DATA])
        if "jsonData" in members:
            return self._json()
        if "strData" in members:
            return self._text("strData", members["strData"])
        if "binData" in members:
            return self._bytes(members["binData"])
        raise MalformedMessage(
            "the message has no payload: expected data, jsonData, strData or binData"
        )

    def _data(self, value: Any) -> Payload:
        data = object_members(value, _DATA, self._limits)
        names = data.get("names")
        if names is not None and not is_list(names):
            raise InvalidRequest(f"data.names is {show(names)}: expected a list of names")
        if "tensor" in data:
            return Payload(PayloadKind.TENSOR, (self._tensor(data),))
        if "ndarray" in data:
            found = data["ndarray"]
            if not is_list(found):
                raise InvalidRequest(f"{_NDARRAY} is {show(found)}: expected a list")
            return Payload(PayloadKind.NDARRAY, (self._array(_NDARRAY, found, data, "ndarray"),))
        if "tftensor" in data:
            return Payload(PayloadKind.TFTENSOR, (self._tftensor(data["tftensor"]),))
        empty = UntypedData([], JsonLayout.VALUE, _DATA, self._rules.ndarray)
        return Payload(PayloadKind.NDARRAY, (Tensor("", None, None, empty),))

    def _array(self, place: str, value: Any, beside: dict[str, Any], own: str) -> Tensor:
        """Read a list; *beside* has it under the key *own*, and other members of the message."""
        rules = self._rules.tensor if place == _TENSOR else self._rules.ndarray
        others = {name: each for name, each in beside.items() if name != own}
        more = {name: each for name, each in self._document.members.items() if name != _DATA}
        # The reader counts brackets of all members, so that it finds lists in place of numbers.
        members = {place: value, "data.": others, "": more}
        text, reread = self._document.text, self._document.reread  # not the parser's memory
        read = partial(_read_again, text, reread, place, own)
        document = RowsDocument(members, text, read)
        (tensor,) = RowsReader(document, self._limits, rules).columns(place)
        return self._exact(tensor, value, rules)

    def _exact(self, tensor: Tensor, value: Any, rules: Any) -> Tensor:
        """Return Python's numbers where integers of an array of floats may have lost digits.

        An array that is too long for Python's numbers is read as floats only.
        """
        data = tensor.data
        if not isinstance(data, UntypedData) or not isinstance(data.value, np.ndarray):
            return tensor
        array = data.value
        if array.dtype.kind != "f" or not (np.abs(array) >= MOST_EXACT).any():
            return tensor
        numbers: Any = array
        if array.size > self._limits.bytes_elements:
            rules = self._rules.floats
        else:
            charge(data.size_bytes * OBJECT_BYTE)
            numbers = value.as_list()
        return Tensor("", None, None, replace(data, value=numbers, rules=rules, first_fraction=0))

    def _tensor(self, data: dict[str, Any]) -> Tensor:
        tensor = object_members(data["tensor"], "data.tensor", self._limits)
        values = tensor.get("values")
        if values is not None and not is_list(values):
            raise InvalidRequest(f"{_TENSOR} is {show(values)}: expected a list of numbers")
        shape = self._shape(tensor.get("shape"))
        others = {name: each for name, each in tensor.items() if name != "values"}
        beside = {**others, **{name: each for name, each in data.items() if name != "tensor"}}
        beside["values"] = values
        found = self._array(_TENSOR, [] if values is None else values, beside, "values").data
        assert isinstance(found, UntypedData)  # noqa: S101  # so the reader makes it
        if len(nested_shape(found.value)) != 1:
            raise InvalidRequest(f"{_TENSOR}[0] is a list: expected a number")
        if type(found.value) is list and not _NUMBERS.issuperset(map(type, found.value)):
            at = next(at for at, each in enumerate(found.value) if type(each) not in _NUMBERS)
            raise InvalidRequest(f"{_TENSOR}[{at}] is {show(found.value[at])}: expected a number")
        check_numbers(shape, len(found.value), self._limits)
        return Tensor("", None, None, replace(found, shape=shape))

    def _shape(self, value: Any) -> tuple[int, ...]:
        if value is None or not is_list(value):
            raise InvalidRequest(f"data.tensor.shape is {show(value)}: expected a list of sizes")
        check_count("sizes in data.tensor.shape", len(value), self._limits.rank, "rank")
        shape = tuple(map(whole_number, value))
        for at, size in enumerate(shape):
            if type(size) is not int or not 0 <= size < _INT32_END:
                raise InvalidRequest(
                    f"data.tensor.shape[{at}] is {show(size)}: expected a size of 32 bits, which "
                    "is not negative"
                )
        return shape

    def _tftensor(self, value: Any) -> Tensor:
        view = self._document.text
        charge(len(view) * OBJECT_BYTE * 4)
        object_members(value, _TFTENSOR, self._limits)
        document = RowsDocument({_TFTENSOR: value}, view).plain(_TFTENSOR)
        shape = document.get("tensorShape", document.get("tensor_shape"))
        dims = shape.get("dim") if type(shape) is dict else None
        if type(dims) is list:  # the library takes 6 us for each
            check_count(f"dimensions of {_TFTENSOR}", len(dims), self._limits.rank, "rank")
        try:
            message = ParseDict(document, pb.TensorProto()).SerializeToString()
        except (ParseError, ValueError, TypeError, OverflowError) as error:
            raise InvalidRequest(f"{_TFTENSOR} is no TensorProto: {error}") from error
        return read_tensor_proto(memoryview(message), self._limits)

    def _json(self) -> Payload:
        value, form = self._document.members["jsonData"], self._declared.json
        if form == INPUTS:
            if is_list(value) or isinstance(value, str | int | float | bool):
                raise InvalidRequest(
                    f"jsonData is {show(value)}: expected an object of inputs "
                    "(models.NAME.protocols.seldon.json)"
                )
            reader = RowsReader(self._document, self._limits, self._rules.ndarray)
            return Payload(PayloadKind.JSON, reader.columns("jsonData"))
        if form != TEXT:
            if isinstance(value, str):
                return self._text("jsonData", value)
            raise InvalidRequest(
                f"jsonData is {show(value)}, and the model takes none: expected data, or "
                "models.NAME.protocols.seldon.json"
            )
        charge(len(self._document.text) * OBJECT_BYTE)
        plain = self._document.plain("jsonData")
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        return Payload(PayloadKind.JSON, (self._element("jsonData", text),))

    def _text(self, member: str, value: Any) -> Payload:
        if not isinstance(value, str):
            raise InvalidRequest(f"{member} is {show(value)}: expected text")
        return Payload(PayloadKind.TEXT, (self._element(member, value),))

    def _bytes(self, value: Any) -> Payload:
        if not isinstance(value, str):
            raise InvalidRequest(f"binData is {show(value)}: expected base64 text")
        return Payload(PayloadKind.BYTES, (self._element("binData", {"b64": value}),))

    def _element(self, member: str, value: Any) -> Tensor:
        return element_tensor(member, value, self._rules.element, len(self._document.text))


def _read_again(
    text: memoryview,
    reread: Callable[[], Mapping[str, Any]] | None,
    place: str,
    own: str,
) -> Mapping[str, Any]:
    """Return the list *own* of `data` by its place, see `UntypedData.reread`."""
    members = loads_to_odd(text) if reread is None else reread()
    data = members[_DATA]
    return {place: data[own] if own == "ndarray" else data["tensor"][own]}


def check_numbers(shape: tuple[int, ...], found: int, limits: MessageLimits) -> None:
    """Check that a tensor has as many numbers as its shape.

    Raises:
        InvalidRequest: It has another number of them.
        TooLarge: A limit is exceeded.
    """
    needed = math.prod(shape)
    if found != needed:
        raise InvalidRequest(
            f"{_TENSOR} has {found} numbers, data.tensor.shape {list(shape)} needs {needed}"
        )
    check_shape("data.tensor", None, shape, limits)


def read_tensor_proto(view: memoryview, limits: MessageLimits) -> Tensor:
    """Return the tensor of a TensorProto, without a name.

    Raises:
        MalformedMessage: The bytes are not a message.
        GatewayError: The tensor cannot be used.
    """
    charge(FIELD)
    try:
        return TensorProtoReader(limits, FieldCounter()).read(_TFTENSOR, view).renamed("")
    except WireError as error:
        raise MalformedMessage(f"{_TFTENSOR} cannot be read: {error}") from error
    except Unsupported as error:  # a datatype that no model has: a fault of the message
        raise InvalidRequest(error.message) from error
