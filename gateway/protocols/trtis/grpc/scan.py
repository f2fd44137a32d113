"""Scans inference messages of TensorRT v1 over gRPC, field by field.

The protobuf library reads the header, which is small; tensors stay views of the message.  Unknown
fields are skipped.  Of a single field that occurs twice the last counts, and headers that occur
twice are merged, as protobuf defines.

Source: Protocol Buffers, "Encoding"; docs/protocols/tensorrt-v1.md, "8. Inference over gRPC".
"""

from dataclasses import dataclass

from gateway.ir.errors import MalformedMessage
from gateway.wire.protobuf import LEN, VARINT, WireError, fields, int64, tag, text

_MODEL_NAME, _MODEL_VERSION = tag(1, LEN), tag(2, VARINT)
_REQUEST_META, _RAW_INPUT = tag(3, LEN), tag(4, LEN)
_STATUS, _RESPONSE_META, _RAW_OUTPUT = tag(1, LEN), tag(2, LEN), tag(3, LEN)


@dataclass(slots=True)
class InferMessage:
    """The parts of a request.

    Attributes:
        meta_data: The serialized header.
        raws: Entries of raw_input, in order.
    """

    model_name: str
    model_version: int
    meta_data: bytes
    raws: list[memoryview]


@dataclass(slots=True)
class InferAnswer:
    """The parts of a response.

    Attributes:
        status: The serialized RequestStatus.
        meta_data: The serialized header.
        raws: Entries of raw_output, in order.
    """

    status: bytes
    meta_data: bytes
    raws: list[memoryview]


def scan_request(view: memoryview) -> InferMessage:
    """Find the parts of an InferRequest.

    Raises:
        MalformedMessage: The bytes are not an InferRequest.
    """
    name, version = "", 0
    headers: list[memoryview] = []
    raws: list[memoryview] = []
    try:
        for key, value in fields(view):
            if key == _RAW_INPUT:
                raws.append(value)
            elif key == _REQUEST_META:
                headers.append(value)
            elif key == _MODEL_NAME:
                name = text(value, "model_name")
            elif key == _MODEL_VERSION:
                version = int64(value)
    except WireError as error:
        raise MalformedMessage(f"message is not an InferRequest: {error}") from error
    return InferMessage(name, version, b"".join(headers), raws)


def scan_response(view: memoryview) -> InferAnswer:
    """Find the parts of an InferResponse.

    Raises:
        MalformedMessage: The bytes are not an InferResponse.
    """
    statuses: list[memoryview] = []
    headers: list[memoryview] = []
    raws: list[memoryview] = []
    try:
        for key, value in fields(view):
            if key == _RAW_OUTPUT:
                raws.append(value)
            elif key == _RESPONSE_META:
                headers.append(value)
            elif key == _STATUS:
                statuses.append(value)
    except WireError as error:
        raise MalformedMessage(f"message is not an InferResponse: {error}") from error
    return InferAnswer(b"".join(statuses), b"".join(headers), raws)
