"""The messages of Predict: found by a scan, so that tensors stay views, and written in parts.

Source: docs/protocols/tensorflow-serving.md, "5. Tensors over gRPC".
"""

from collections.abc import Sequence
from typing import Final

from gateway.ir.expected_inputs import compare_inputs, is_comparing
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.tensor import Tensor
from gateway.protocols.tfs.models import CalledModel, Spec
from gateway.wire.protobuf import (
    LEN,
    VARINT,
    FieldCounter,
    Parts,
    fields,
    int64,
    map_entry,
    put_bytes,
    put_text,
    put_varint,
    tag,
    text,
    varint,
)
from gateway.wire.tensor_protos import TensorProtoReader, put_tensor

_FIRST, _SECOND, _THIRD, _FOURTH = (tag(number, LEN) for number in (1, 2, 3, 4))
_NUMBER: Final = tag(1, VARINT)
_NAME, _VERSION, _SIGNATURE, _LABEL = map(varint, (_FIRST, _SECOND, _THIRD, _FOURTH))
_VALUE: Final = varint(_NUMBER)

# The two messages have tensors and model in different order.
REQUEST_SPEC, REQUEST_TENSORS = _FIRST, _SECOND
REPLY_SPEC, REPLY_TENSORS = _SECOND, _FIRST


class Message:
    """A PredictRequest or PredictResponse, whose tensors are not read yet.

    Args:
        view: The message.
        spec: Tag of the model.
        tensors: Tag of the map of tensors.
        limits: The limits of a message.

    Attributes:
        spec: The model.
        filter: The names in `output_filter`.

    Raises:
        WireError: The bytes are not a message.
        InvalidRequest, TooLarge: A name is not allowed, or a limit is exceeded.
    """

    def __init__(self, view: memoryview, spec: int, tensors: int, limits: MessageLimits) -> None:
        self._limits = limits
        self._counter = FieldCounter()
        specs: list[memoryview] = []
        entries: dict[str, memoryview] = {}
        names: list[str] = []
        for key, value in fields(view, counter=self._counter):
            if key == spec:
                specs.append(value)
            elif key == tensors:
                name, tensor = map_entry(value, "tensor name")
                check_name("tensor name", name, limits.name_bytes, "name_bytes")
                entries[name] = tensor
            elif key == _THIRD and tensors == REQUEST_TENSORS:
                names.append(text(value, "output_filter"))
        check_count("tensors", len(entries), limits.tensors, "tensors")
        check_count("requested outputs", len(names), limits.outputs, "outputs")
        for name in names:
            check_name("output name", name, limits.name_bytes, "name_bytes")
        self.spec = read_spec(specs)
        self.filter: Sequence[str] = names
        self._entries = entries

    def tensors(self, called: CalledModel | None = None) -> tuple[Tensor, ...]:
        """Read the tensors; *called* is the model of a request, whose inputs they are.

        Raises:
            GatewayError: One of them cannot be used.
            WireError: One is not a message.
        """
        if called is not None and is_comparing():
            own = called.signature.inputs
            compare_inputs(called.model, [own.get(name, name) for name in self._entries])
        reader = TensorProtoReader(self._limits, self._counter)
        return tuple([reader.read(name, view) for name, view in self._entries.items()])


def read_spec(views: Sequence[memoryview]) -> Spec:
    """Read a ModelSpec in parts, the last of each field counts.

    Raises:
        WireError: It is no such message.
    """
    name = label = signature = ""
    version = 0
    for view in views:
        for key, value in fields(view, 64):
            if key == _FIRST:
                name = text(value, "model name")
            elif key == _SECOND:
                numbers = [found for inner, found in fields(value, 64) if inner == _NUMBER]
                version, label = int64(numbers[-1]) if numbers else 0, ""
            elif key == _FOURTH:
                version, label = 0, text(value, "version label")
            elif key == _THIRD:
                signature = text(value, "signature name")
    return Spec(name, version, label, signature)


def spec_message(name: str, version: int, signature: str = "") -> bytes:
    """Return a ModelSpec; version 0 and signature "" are left out.

    Raises:
        WireError: A name has lone surrogates.
    """
    head = bytearray()
    put_text(head, _NAME, name)
    if version:
        number = bytearray()
        put_varint(number, _VALUE, version)
        put_bytes(head, _VERSION, number)
    if signature:
        put_text(head, _SIGNATURE, signature)
    return bytes(head)


def write_request(spec: bytes, tensors: Sequence[Tensor], outputs: Sequence[str]) -> Parts:
    """Return a PredictRequest in parts.

    Raises:
        GatewayError: A tensor cannot be written.
        WireError: A name has lone surrogates.
    """
    head = bytearray()
    put_bytes(head, varint(REQUEST_SPEC), spec)
    parts: Parts = [head]
    for tensor in tensors:
        put_tensor(parts, varint(REQUEST_TENSORS), tensor.name, tensor)
    tail = bytearray()
    for name in outputs:
        put_text(tail, varint(_THIRD), name)
    if tail:
        parts.append(tail)
    return parts


def write_reply(spec: bytes, tensors: Sequence[Tensor]) -> Parts:
    """Return a PredictResponse in parts.

    Raises:
        GatewayError: A tensor cannot be written.
        WireError: A name has lone surrogates.
    """
    parts: Parts = [bytearray()]
    for tensor in tensors:
        put_tensor(parts, varint(REPLY_TENSORS), tensor.name, tensor)
    tail = bytearray()
    put_bytes(tail, varint(REPLY_SPEC), spec)
    parts.append(tail)
    return parts
