"""Sends the recorded messages themselves, byte for byte, to a server of the same protocol."""

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeVar, cast

from gateway.api.protocol import Codec, FramingCodec, ResponseSplitter
from gateway.ir.calls import Call, InferResponse, StreamInferRequest, inference_of
from gateway.ir.context import Metadata, Origin
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    TooLarge,
    Unsupported,
)
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.data import UntypedData
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.values.untyped import typed_tensor
from gateway.migration.compare.replies import Result
from gateway.migration.replay.wire_messages import request_of
from gateway.shadow.records.records import INVALID_VALUES, RecordedCall
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")


class _WholeMessages:
    """The splitter of a protocol whose transport delivers whole messages."""

    def receive(self, part: A, /) -> Sequence[A]:
        return (part,)

    def end(self) -> Sequence[Any]:
        return ()


class RecordedRequests(FramingCodec[Any, Any]):
    """A codec that sends the recorded message of a call, and else does what the inner one does.

    Args:
        inner: The codec of the protocol.
        headers: Headers or metadata that each message gets, in place of those of the same name.
    """

    def __init__(self, inner: Codec[Any, Any], headers: Metadata = ()) -> None:
        self._inner = inner
        self._headers = headers
        self.name = inner.name
        self.needs = inner.needs

    def splitter(self) -> ResponseSplitter[Any]:
        """Return the inner splitter, or one for whole messages."""
        inner = self._inner
        return inner.splitter() if isinstance(inner, FramingCodec) else _WholeMessages()

    def decode_call(self, wire: Any, request_id: str = "", /) -> Call[Any]:
        """Read a request."""
        return self._inner.decode_call(wire, request_id)

    def encode_reply(self, call: Call[R], reply: R, /) -> Any:
        """Write a response."""
        return self._inner.encode_reply(call, reply)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> Any:
        """Write an error."""
        return self._inner.encode_error(call, error)

    def encode_call(self, call: Call[Any], /) -> Any:
        """Return the recorded message of *call*; a question of the gateway has none."""
        origin = call.context.origin
        if origin is None or inference_of(call) is None:
            return self._inner.encode_call(call)
        return _with_headers(origin.wire, self._headers) if self._headers else origin.wire

    def decode_reply(self, call: Call[R], wire: Any, /) -> R:
        """Read the response to *call*."""
        return self._inner.decode_reply(call, wire)

    def is_item(self, call: StreamInferRequest, wire: Any, /) -> bool:
        """Return whether one response of a stream is an item."""
        return self._inner.is_item(call, wire)

    def decode_item(self, call: StreamInferRequest, wire: Any, /) -> InferResponse:
        """Read one response of a stream."""
        return self._inner.decode_item(call, wire)


def _with_headers(wire: Any, headers: Metadata) -> Any:
    """Return a message with other headers; a frame of a stream has none."""
    names = {name for name, _ in headers}
    if isinstance(wire, HttpRequest):
        kept = [pair for pair in wire.headers.pairs if pair[0].lower() not in names]
        found = Headers([*kept, *cast("list[tuple[str, str]]", headers)])
        return HttpRequest(wire.method, wire.path, wire.query, found, wire.body)
    if isinstance(wire, GrpcRequest):
        others = [pair for pair in wire.metadata if pair[0] not in names]
        return GrpcRequest(wire.method, wire.message, (*others, *headers))
    return wire


def recorded_message(record: RecordedCall, codec: Codec[Any, Any]) -> Call[Any]:
    """Return a recorded call as *codec* reads its message, which is its origin.

    Raises:
        GatewayError: The message is of another protocol, not recorded, or malformed.
    """
    message = recorded_request(record, codec)
    call = codec.decode_call(message)
    found = call.context.origin
    origin = Origin(codec.name, message, None if found is None else found.form)
    return call.with_context(origin=origin, request_id=record.call.request_id)


def recorded_request(record: RecordedCall, codec: Codec[Any, Any]) -> Any:
    """Return the recorded message of a call.

    Raises:
        GatewayError: It is of another protocol than *codec*, not recorded, or malformed.
    """
    if record.call.protocol != codec.name:
        raise Unsupported(f"recorded over {record.call.protocol}; the server is {codec.name}")
    row = next((each for each in record.wire if each.side == "request"), None)
    if row is None:
        raise Unsupported("message not recorded (capture: {wire: true, payload: full})")
    try:
        return request_of(json.loads(row.head), row.body)
    except INVALID_VALUES as error:
        raise MalformedMessage(f"recorded call {record.id} is malformed: {error}") from error


def with_recorded_types(new: Result, old: Result) -> Result:
    """Return *new* with names, datatypes and shapes that only the recorded reply has."""
    pairs = zip_longest(new.items, old.items[: len(new.items)], fillvalue=())
    items = [tuple(_all_typed(outputs, known)) for outputs, known in pairs]
    return Result(tuple(items), new.error, new.is_refused)


def _all_typed(outputs: Sequence[Tensor], known: Sequence[Tensor]) -> Iterator[Tensor]:
    by_name = {each.name: each for each in known}
    for each, at_place in zip_longest(outputs, known[: len(outputs)]):
        yield _typed(each, by_name.get(each.name) or at_place)


def _typed(new: Tensor, old: Tensor | None) -> Tensor:
    if old is None or (new.name and new.datatype is not None and new.shape is not None):
        return new
    if type(new.data) is UntypedData:
        return _typed_json(new.name or old.name, new, new.data, old)
    datatype = old.datatype if new.datatype is None else new.datatype
    shape = old.shape if new.shape is None else new.shape
    return Tensor(new.name or old.name, datatype, shape, new.data, new.parameters)


def _typed_json(name: str, new: Tensor, data: UntypedData, old: Tensor) -> Tensor:
    """Return JSON as a tensor of the recorded datatype; as it is where it has other values."""
    try:
        return typed_tensor(name, data, TensorMetadata(name, old.datatype, None))
    except (InvalidRequest, TooLarge):
        return new
