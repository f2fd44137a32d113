"""grps: a request through the gateway over gRPC and over brpc, as its clients send it."""

import socket
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.messages import Arrays, Case, Message
from gateway.schema.baidu_std_pb2 import RpcMeta
from gateway.schema.grps_pb2 import GrpsMessage

METHOD = "/grps.protos.v1.GrpsService/Predict"

_BRPC_SERVICE = "grps.protos.v1.GrpsBrpcService"
_HEADER = struct.Struct(">4sII")
_MAGIC = b"PRPC"
_FIELDS = {
    "int32": ("DT_INT32", "flat_int32"),
    "float32": ("DT_FLOAT32", "flat_float32"),
}
_ANSWERS = {4: ("<i4", "flat_int32"), 7: ("<f4", "flat_float32")}


def grpc_request(case: Case) -> Message:
    """Encode a GrpsMessage with named tensors."""
    message = GrpsMessage(model=case.model)
    for name, array in case.inputs.items():
        dtype, member = _FIELDS[array.dtype.name]
        tensor = message.gtensors.tensors.add(name=name, dtype=dtype, shape=array.shape)
        getattr(tensor, member).extend(array.reshape(-1).tolist())
    return Message(message.SerializeToString())


def brpc_request(case: Case) -> Message:
    """Encode its frame as the C++ client does: not compressed, numbered."""
    meta = RpcMeta(compress_type=0, correlation_id=1)
    meta.request.service_name = _BRPC_SERVICE
    meta.request.method_name = "Predict"
    head, body = meta.SerializeToString(), grpc_request(case).body
    return Message(_HEADER.pack(_MAGIC, len(head) + len(body), len(head)) + head + body)


def read_grpc(message: Message) -> Arrays:
    """Return the outputs of a GrpsMessage.

    Raises:
        RuntimeError: It reports a failure.
    """
    answer = GrpsMessage.FromString(message.body)
    if answer.status.status != answer.status.SUCCESS:
        raise RuntimeError(f"answered with status {answer.status.code}: {answer.status.msg[:300]}")
    return {tensor.name: _array(tensor) for tensor in answer.gtensors.tensors}


def read_brpc(message: Message) -> Arrays:
    """Return the outputs of a frame.

    Raises:
        RuntimeError: It has an error code, or reports a failure.
    """
    _, _, size = _HEADER.unpack_from(message.body)
    start = _HEADER.size + size
    meta = RpcMeta.FromString(message.body[_HEADER.size : start])
    if meta.response.error_code:
        raise RuntimeError(f"answered with {meta.response.error_code}: {meta.response.error_text}")
    return read_grpc(Message(message.body[start:]))


def ask_brpc(port: int, frame: bytes, timeout_s: float) -> bytes:
    """Send a frame and return the frame of the response."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as sock:
        sock.sendall(frame)
        answer = bytearray()
        while (needed := bytes_of_frame(answer)) == 0 or len(answer) < needed:
            piece = sock.recv(1 << 20)
            if not piece:
                raise RuntimeError(f"the connection ended after {len(answer)} bytes of an answer")
            answer += piece
    return bytes(answer)


def bytes_of_frame(start: bytes | bytearray) -> int:
    """Return the size of the frame that begins like this, or 0 before its header is complete."""
    return 0 if len(start) < _HEADER.size else _HEADER.size + _HEADER.unpack_from(start)[1]


def _array(tensor: Any) -> npt.NDArray[Any]:
    dtype, member = _ANSWERS[tensor.dtype]
    return np.array(getattr(tensor, member), dtype).reshape(tuple(tensor.shape))
