"""Datatypes of TensorFlow: their numbers, and the typed fields of a TensorProto.

Source: docs/protocols/tensorflow-serving.md, "3. Datatypes".
"""

from typing import Final

from gateway.ir.datatypes import Datatype
from gateway.ir.errors import Unsupported
from gateway.schema import tensorflow_messages_pb2 as pb

NUMBERS: Final[dict[Datatype, int]] = {
    Datatype.FP32: pb.DT_FLOAT,
    Datatype.FP64: pb.DT_DOUBLE,
    Datatype.INT32: pb.DT_INT32,
    Datatype.UINT8: pb.DT_UINT8,
    Datatype.INT16: pb.DT_INT16,
    Datatype.INT8: pb.DT_INT8,
    Datatype.BYTES: pb.DT_STRING,
    Datatype.INT64: pb.DT_INT64,
    Datatype.BOOL: pb.DT_BOOL,
    Datatype.BF16: pb.DT_BFLOAT16,
    Datatype.UINT16: pb.DT_UINT16,
    Datatype.FP16: pb.DT_HALF,
    Datatype.UINT32: pb.DT_UINT32,
    Datatype.UINT64: pb.DT_UINT64,
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
_NAMES: Final[dict[int, str]] = {
    value.number: value.name for value in pb.DESCRIPTOR.enum_types_by_name["DataType"].values
}


_NUMBERS: Final[dict[str, int]] = {name: number for number, name in _NAMES.items()}


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
