"""Numbers of datatypes in TensorRT v1, which has no BF16."""

from gateway.ir.errors import Unsupported
from gateway.ir.tensors.datatypes import Datatype
from gateway.schema import tensorrt_v1_pb2 as pb

NUMBERS: dict[Datatype, pb.DataType] = {
    Datatype.BOOL: pb.TYPE_BOOL,
    Datatype.UINT8: pb.TYPE_UINT8,
    Datatype.UINT16: pb.TYPE_UINT16,
    Datatype.UINT32: pb.TYPE_UINT32,
    Datatype.UINT64: pb.TYPE_UINT64,
    Datatype.INT8: pb.TYPE_INT8,
    Datatype.INT16: pb.TYPE_INT16,
    Datatype.INT32: pb.TYPE_INT32,
    Datatype.INT64: pb.TYPE_INT64,
    Datatype.FP16: pb.TYPE_FP16,
    Datatype.FP32: pb.TYPE_FP32,
    Datatype.FP64: pb.TYPE_FP64,
    Datatype.BYTES: pb.TYPE_STRING,
}

# Of a response: a number that is missing here is an unknown datatype.
DATATYPES: dict[int, Datatype] = {number: datatype for datatype, number in NUMBERS.items()}


def check_carried(kind: str, name: str, datatype: Datatype) -> None:
    """Refuse a datatype without a number in TensorRT v1.

    Raises:
        Unsupported: With the tensor and its datatype.
    """
    if datatype not in NUMBERS:
        raise Unsupported(f"{kind} {name!r} is {datatype.name}, which TensorRT v1 cannot represent")
