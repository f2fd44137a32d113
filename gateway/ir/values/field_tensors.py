"""Bytes of a message without a type become tensors: one element, elements, or the JSON in them.

`untyped.py` has the values of JSON.

Source: docs/protocols/torchserve.md, "3. Requests".
"""

import math
from typing import Final

from msgspec.structs import replace  # of data, not of calls

from gateway.ir.errors import InvalidRequest, TooLarge
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.data import ItemsData, JsonLayout, RawData, UntypedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor
from gateway.ir.values.untyped import typed_tensor

_VARIABLE: Final = -1
_ONE: Final = frozenset({1, _VARIABLE})


def field_tensor(data: UntypedData, declared: TensorMetadata) -> Tensor:
    """Return the tensor that a field of a message is, as a model declares it.

    Args:
        data: The field, with its bytes; they are not copied.
        declared: What the model declares; its shape may be unknown.

    Raises:
        InvalidRequest: The bytes are not what the model needs.
        TooLarge: An element of BYTES is too long.
    """
    raw = memoryview(b"") if data.raw is None else data.raw
    if declared.datatype is Datatype.BYTES:
        return element_tensor(data, declared, raw)
    if data.rules.has_elements and declared.datatype is not None:
        shape = _shape_of_bytes(data, declared, declared.datatype, raw.nbytes)
        return Tensor(declared.name, declared.datatype, shape, RawData(raw))
    if isinstance(data.value, memoryview):
        datatype = "of an unknown datatype" if declared.datatype is None else declared.datatype.name
        raise InvalidRequest(
            f"{data.place} is no JSON, and input {declared.name!r} is {datatype}: expected JSON, "
            f"or a form that the configuration declares{setting_of(data)}"
        )
    value = replace(data, layout=JsonLayout.VALUE, raw=None)
    return typed_tensor(declared.name, value, declared)


def element_tensor(data: UntypedData, declared: TensorMetadata, raw: memoryview) -> Tensor:
    """Return bytes as the only element of a tensor of BYTES.

    Raises:
        InvalidRequest: The model needs several elements.
        TooLarge: The element is too long.
    """
    shape = (1,) if declared.shape is None else declared.shape
    if not _ONE.issuperset(shape):
        raise InvalidRequest(
            f"{data.place} is one element, and input {declared.name!r} has the shape "
            f"{list(shape)}: expected JSON with all elements{setting_of(data)}"
        )
    most = data.rules.bytes_element_size
    if raw.nbytes > most:
        raise TooLarge(
            f"{data.place} has {raw.nbytes} bytes, at most {most} are allowed",
            limit="bytes_element_size",
        )
    return Tensor(declared.name, Datatype.BYTES, (1,) * len(shape), ItemsData([raw]))


def setting_of(data: UntypedData) -> str:
    """Return the key that declares the form of a request, for the end of an error."""
    return f" ({data.rules.setting}.request)" if data.rules.setting else ""


def _shape_of_bytes(
    data: UntypedData, declared: TensorMetadata, datatype: Datatype, size: int
) -> Shape:
    """Return the only shape of *size* bytes that a model allows."""
    expected = declared.shape
    text = f"{data.place} has {size} bytes, and input {declared.name!r} is {datatype.name}"
    if expected is None or expected.count(_VARIABLE) > 1:
        shown = "an unknown shape" if expected is None else f"the shape {list(expected)}"
        raise InvalidRequest(
            f"{text} of {shown}: expected at most one variable dimension for bytes of a tensor "
            "(models.NAME.signature)"
        )
    fixed = math.prod([dim for dim in expected if dim != _VARIABLE]) * datatype.size_bytes
    count, rest = divmod(size, fixed) if fixed else (0, size)
    if rest or (_VARIABLE not in expected and count != 1 and size != fixed):
        raise InvalidRequest(f"{text} of the shape {list(expected)}: expected {fixed} bytes")
    return tuple([count if dim == _VARIABLE else dim for dim in expected])
