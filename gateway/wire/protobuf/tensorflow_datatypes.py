"""Datatypes of TensorFlow: their numbers, and the typed fields of a TensorProto.

Source: docs/protocols/tensorflow-serving.md, "3. Datatypes".
"""

from typing import Final

from gateway.ir.errors import Unsupported
from gateway.ir.tensors.datatypes import Datatype

_NAMES: Final[dict[int, str]] = dict(
    enumerate(
        (
            "DT_INVALID",
            "DT_FLOAT",
            "DT_DOUBLE",
            "DT_INT32",
            "DT_UINT8",
            "DT_INT16",
            "DT_INT8",
            "DT_STRING",
            "DT_COMPLEX64",
            "DT_INT64",
            "DT_BOOL",
            "DT_QINT8",
            "DT_QUINT8",
            "DT_QINT32",
            "DT_BFLOAT16",
            "DT_QINT16",
            "DT_QUINT16",
            "DT_UINT16",
            "DT_COMPLEX128",
            "DT_HALF",
            "DT_RESOURCE",
            "DT_VARIANT",
            "DT_UINT32",
            "DT_UINT64",
        )
    )
)
_NUMBERS: Final[dict[str, int]] = {name: number for number, name in _NAMES.items()}

NUMBERS: Final[dict[Datatype, int]] = {
    Datatype.FP32: _NUMBERS["DT_FLOAT"],
    Datatype.FP64: _NUMBERS["DT_DOUBLE"],
    Datatype.INT32: _NUMBERS["DT_INT32"],
    Datatype.UINT8: _NUMBERS["DT_UINT8"],
    Datatype.INT16: _NUMBERS["DT_INT16"],
    Datatype.INT8: _NUMBERS["DT_INT8"],
    Datatype.BYTES: _NUMBERS["DT_STRING"],
    Datatype.INT64: _NUMBERS["DT_INT64"],
    Datatype.BOOL: _NUMBERS["DT_BOOL"],
    Datatype.BF16: _NUMBERS["DT_BFLOAT16"],
    Datatype.UINT16: _NUMBERS["DT_UINT16"],
    Datatype.FP16: _NUMBERS["DT_HALF"],
    Datatype.UINT32: _NUMBERS["DT_UINT32"],
    Datatype.UINT64: _NUMBERS["DT_UINT64"],
}
DATATYPES: Final[dict[int, Datatype]] = {number: datatype for datatype, number in NUMBERS.items()}

VALUE_FIELDS: Final[dict[Datatype, int]] = {
    Datatype.FP32: 5,
    Datatype.FP64: 6,
    Datatype.INT32: 7,
    Datatype.UINT8: 7,
    Datatype.INT16: 7,
    Datatype.INT8: 7,
    Datatype.UINT16: 7,
    Datatype.BYTES: 8,
    Datatype.INT64: 10,
    Datatype.BOOL: 11,
    Datatype.BF16: 13,
    Datatype.FP16: 13,
    Datatype.UINT32: 16,
    Datatype.UINT64: 17,
}
"""The number of the typed field that holds the elements."""

_REFERENCES: Final = 100


def name_of(number: int) -> str:
    """Return the name of a datatype, for errors and for JSON."""
    if number > _REFERENCES and number - _REFERENCES in _NAMES:
        return f"{_NAMES[number - _REFERENCES]}_REF"
    return _NAMES.get(number, str(number))


def number_of_name(name: str) -> int:
    """Return the number of a datatype that JSON names; 0 for a name that does not exist."""
    return _NUMBERS.get(name, 0)


def datatype_of(name: str, number: int) -> Datatype:
    """Return the datatype of a tensor.

    Raises:
        Unsupported: It has none that tensors of models have.
    """
    found = DATATYPES.get(number)
    if found is None:
        raise Unsupported(
            f"tensor {name!r} is {name_of(number)}: expected one of "
            f"{', '.join(_NAMES[each] for each in DATATYPES)}"
        )
    return found
