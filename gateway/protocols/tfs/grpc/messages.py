"""The messages of Predict, Classify and Regress, whose tensors and examples stay views.

Source: docs/protocols/tensorflow-serving.md, "5. Tensors over gRPC".
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from gateway.ir.limits import MessageLimits, check_name
from gateway.ir.tensors.tensor import Tensor
from gateway.protocols.tfs.models import Spec
from gateway.wire.http import Buffer
from gateway.wire.protobuf.messages import FieldKind, MessageDescriptor, MessageField, message_field
from gateway.wire.protobuf.plain import without_field
from gateway.wire.protobuf.tensor_protos import TensorProtoReader, tensor_message
from gateway.wire.protobuf.wire_format import (
    LEN,
    FieldCounter,
    Parts,
    fields,
    put_bytes,
    tag,
    varint,
)


class PredictMessage(Struct, frozen=True):
    """A PredictRequest or PredictResponse, whose tensors are not read yet.

    Attributes:
        spec: The model.
        tensors: The messages of the tensors, by their names.
        filter: The names in `output_filter`.
    """

    spec: Spec
    tensors: Mapping[str, memoryview]
    filter: Sequence[str] = ()


class ExamplesMessage(Struct, frozen=True):
    """A ClassificationRequest or RegressionRequest.

    Attributes:
        spec: The model.
        inputs: The occurrences of its input.
    """

    spec: Spec
    inputs: Sequence[memoryview]


def _spec(name: str, version: int | None, label: str | None, signature: str) -> Spec:
    return Spec(name, version or 0, label or "", signature)


_INT64_VALUE: Final = MessageDescriptor(
    "Int64Value", int, [MessageField(1, FieldKind.INT64, "value")], limit=64
)
_MODEL_SPEC: Final = MessageDescriptor(
    "ModelSpec",
    _spec,
    [
        MessageField(1, FieldKind.TEXT, "name", "model name"),
        message_field(2, _INT64_VALUE, "version", choice="version_choice"),
        MessageField(4, FieldKind.TEXT, "label", "version label", choice="version_choice"),
        MessageField(3, FieldKind.TEXT, "signature", "signature name"),
    ],
    limit=64,
)
_TENSORS: Final = MessageField(
    2, FieldKind.MAP, "tensors", "tensor name", text_limit="name_bytes", most=("tensors", "tensors")
)


REQUEST: Final = MessageDescriptor(
    "PredictRequest",
    PredictMessage,
    [
        message_field(1, _MODEL_SPEC, "spec"),
        _TENSORS,
        MessageField(
            3,
            FieldKind.TEXT,
            "filter",
            "output_filter",
            repeated=True,
            most=("requested outputs", "outputs"),
        ),
    ],
)
# The two messages have tensors and model in different order.
RESPONSE: Final = MessageDescriptor(
    "PredictResponse",
    PredictMessage,
    [message_field(2, _MODEL_SPEC, "spec"), _TENSORS._replace(number=1)],
)
EXAMPLES: Final = MessageDescriptor(
    "ClassificationRequest",
    ExamplesMessage,
    [message_field(1, _MODEL_SPEC, "spec"), MessageField(2, FieldKind.CLOSED, "inputs")],
)


def read_filter(message: PredictMessage, limits: MessageLimits) -> Sequence[str]:
    """Return the names of the requested outputs.

    Raises:
        InvalidRequest, TooLarge: A name is not allowed.
    """
    for name in message.filter:
        check_name("output name", name, limits.name_bytes, "name_bytes")
    return message.filter


def with_model(view: memoryview, name: str, version: int | None) -> list[Buffer]:
    """Return a plain request with another model, in parts; only the model is copied.

    Args:
        view: The message.
        name: The name of the model.
        version: The version instead of that or of the label in the message, 0 for none; None for
            the same.

    Raises:
        WireError: The name has lone surrogates.
    """
    specs = [found for key, found in fields(view) if key == tag(1, LEN)]
    rest = [specs[0]] if specs else []
    for each in (1,) if version is None else (1, 2, 4):  # its name, version and label
        rest = [piece for part in rest for piece in without_field(part, each)]
    head = bytearray()
    put_bytes(head, varint(tag(1, LEN)), b"".join((spec_message(name, version or 0), *rest)))
    return [head, *without_field(view, 1)]


def read_tensors(
    message: PredictMessage, limits: MessageLimits, counter: FieldCounter
) -> tuple[Tensor, ...]:
    """Return the tensors of a message, of which *counter* has counted the other fields.

    Raises:
        GatewayError: One of them cannot be used.
        WireError: One is not a message.
    """
    reader = TensorProtoReader(limits, counter)
    return tuple([reader.read(name, view) for name, view in message.tensors.items()])


@lru_cache(256)
def spec_message(name: str, version: int, signature: str = "") -> bytes:
    """Return a ModelSpec; version 0 and signature "" are left out.

    Raises:
        WireError: A name has lone surrogates.
    """
    number = _INT64_VALUE.write(value=version) if version else None
    return b"".join(_MODEL_SPEC.write(name=name, version=number, signature=signature))


def tensor_entries(
    tensors: Sequence[Tensor], *, is_content: bool = True
) -> Iterable[tuple[str, Parts]]:
    """Yield the entries of a map of tensors, whose numbers are content or in their typed field.

    Raises:
        GatewayError: A tensor cannot be written.
    """
    for tensor in tensors:
        yield tensor.name, tensor_message(tensor.name, tensor, is_content=is_content)
