"""Names of datatypes in Open Inference, and the gRPC contents field of each."""

from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.datatypes import Datatype

_BY_NAME = {datatype.value: datatype for datatype in Datatype}

# Field of InferTensorContents; FP16 and BF16 have none and are always raw.
CONTENTS_FIELD: dict[Datatype, int] = {
    Datatype.BOOL: 1,
    Datatype.INT8: 2,
    Datatype.INT16: 2,
    Datatype.INT32: 2,
    Datatype.INT64: 3,
    Datatype.UINT8: 4,
    Datatype.UINT16: 4,
    Datatype.UINT32: 4,
    Datatype.UINT64: 5,
    Datatype.FP32: 6,
    Datatype.FP64: 7,
    Datatype.BYTES: 8,
}

CONTENTS_NAMES = {
    1: "bool_contents",
    2: "int_contents",
    3: "int64_contents",
    4: "uint_contents",
    5: "uint64_contents",
    6: "fp32_contents",
    7: "fp64_contents",
    8: "bytes_contents",
}

# Datatypes that JSON cannot represent: binary tensors or gRPC carry them.
NOT_IN_JSON = frozenset({Datatype.FP16, Datatype.BF16})


def parse_datatype(tensor: str, text: str) -> Datatype:
    """Return the datatype with the name *text*, for the tensor called *tensor*.

    Raises:
        InvalidTensor: The datatype does not exist.
    """
    found = _BY_NAME.get(text)
    if found is None:
        raise InvalidTensor(
            f"tensor {tensor!r} has datatype {text[:32]!r}: expected one of {', '.join(_BY_NAME)}"
        )
    return found
