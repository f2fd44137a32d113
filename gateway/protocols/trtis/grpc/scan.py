"""The inference messages of TensorRT v1 over gRPC.

The protobuf library reads the header, which is small; tensors stay views of the message.

Source: docs/protocols/tensorrt-v1.md, "8. Inference over gRPC".
"""

from typing import Final, NamedTuple

from gateway.wire.messages import FieldKind, MessageDescriptor, MessageField


class InferMessage(NamedTuple):
    """The parts of a request.

    Attributes:
        headers: The occurrences of the serialized header.
        raws: Entries of raw_input, in order.
    """

    model_name: str
    model_version: int
    headers: list[memoryview]
    raws: list[memoryview]

    @property
    def meta_data(self) -> bytes:
        """The serialized header."""
        return b"".join(self.headers)


class InferAnswer(NamedTuple):
    """The parts of a response.

    Attributes:
        statuses: The occurrences of the serialized RequestStatus.
        headers: The occurrences of the serialized header.
        raws: Entries of raw_output, in order.
    """

    statuses: list[memoryview]
    headers: list[memoryview]
    raws: list[memoryview]

    @property
    def meta_data(self) -> bytes:
        """The serialized header."""
        return b"".join(self.headers)


REQUEST: Final = MessageDescriptor(
    "InferRequest",
    InferMessage,
    [
        MessageField(1, FieldKind.TEXT, "model_name", "model_name"),
        MessageField(2, FieldKind.INT64, "model_version"),
        MessageField(3, FieldKind.CLOSED, "meta_data"),
        MessageField(4, FieldKind.VIEW, "raw_input", repeated=True),
    ],
)
RESPONSE: Final = MessageDescriptor(
    "InferResponse",
    InferAnswer,
    [
        MessageField(1, FieldKind.CLOSED, "request_status"),
        MessageField(2, FieldKind.CLOSED, "meta_data"),
        MessageField(3, FieldKind.VIEW, "raw_output", repeated=True),
    ],
)
