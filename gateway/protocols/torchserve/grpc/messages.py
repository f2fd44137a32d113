"""The messages of predictions, whose bodies stay views.

Source: docs/protocols/torchserve.md, "7. gRPC".
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from gateway.wire.protobuf.messages import FieldKind, MessageDescriptor, MessageField


class PredictionsRequest(Struct, frozen=True):
    """A request for predictions.

    Attributes:
        name: Name of the model.
        version: Its version; "" for the default one.
        inputs: The map of inputs.
        sequence: Id of the sequence; "" for none.
    """

    name: str
    version: str
    inputs: Mapping[str, memoryview]
    sequence: str


class RpcStatus(NamedTuple):
    """The error of one message of a session."""

    code: int
    message: str


def _body(prediction: memoryview, _sequence: str, _status: object) -> memoryview:
    return prediction


REQUEST: Final = MessageDescriptor(
    "PredictionsRequest",
    PredictionsRequest,
    [
        MessageField(1, FieldKind.TEXT, "model_name", "model_name"),
        MessageField(2, FieldKind.TEXT, "model_version", "model_version"),
        MessageField(
            3,
            FieldKind.MAP,
            "input",
            "name of an input",
            text_limit="name_bytes",
            most=("inputs", "tensors"),
        ),
        MessageField(4, FieldKind.TEXT, "sequence_id", "sequence_id", text_limit="name_bytes"),
    ],
)
RESPONSE: Final = MessageDescriptor(
    "PredictionResponse",
    _body,
    [
        MessageField(1, FieldKind.VIEW, "prediction"),
        MessageField(2, FieldKind.TEXT, "sequence_id", "sequence_id"),
        MessageField(3, FieldKind.CLOSED, "status"),
    ],
)
STATUS: Final = MessageDescriptor(
    "RpcStatus",
    RpcStatus,
    [
        MessageField(1, FieldKind.INT32, "code"),
        MessageField(2, FieldKind.TEXT, "message", "message"),
    ],
)
