"""Translates single messages and recorded calls from one protocol to another, without a server.

It uses the codecs and the layers of an upstream. What a protocol omits, such as datatypes, comes
from signatures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

from gateway.api.protocol import Codec
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import ERROR_CLASSES, GatewayError, Unavailable, Unsupported
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, items_tensor, raw_tensor
from gateway.service import Service
from gateway.shadow.records.records import RecordedCall

TENSORS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
"""What a tensor needs in a file that is no message of a protocol."""

CompleteLayers = Callable[[Service, frozenset[Need]], Service]
"""Returns the layers of an upstream around a server, whose codec needs this."""

Signatures = Callable[[str], ModelMetadata | None]
"""Returns the metadata of a model by its name; None if they are unknown."""

Reply = InferResponse | GatewayError


class _Complete(Exception):
    """Ends a call at the place where an upstream would encode it."""

    def __init__(self, call: InferRequest) -> None:
        super().__init__()
        self.call = call


@dataclass(frozen=True, slots=True)
class Converter:
    """Translates calls and replies.

    Attributes:
        layers: Complete calls and replies.
        signatures: What protocols omit.
        target: The codec that writes; None for tensors that no codec writes.
    """

    layers: CompleteLayers
    signatures: Signatures
    target: Codec[Any, Any] | None = None

    async def complete(self, call: Call[Any]) -> InferRequest:
        """Return an inference with all that the target needs.

        Raises:
            GatewayError: It is no inference, or the signature lacks what it needs.
        """
        request = _inference_of(call)

        async def end(inner: Call[Any]) -> Any:
            if isinstance(inner, InferRequest):
                raise _Complete(inner)
            return self._metadata(inner)

        needs = TENSORS if self.target is None else self.target.needs
        try:
            await self.layers(end, needs)(request.changed(context=call.context))
        except _Complete as found:
            return found.call
        raise Unsupported(f"{type(call).__name__} cannot be converted")

    async def request(self, call: Call[Any]) -> Any:
        """Return the request of the target's protocol; a stream only where the protocol has them.

        Raises:
            GatewayError: The target has no message for the call.
        """
        request = await self.complete(call)
        codec = self._codec
        if isinstance(call, StreamInferRequest):
            stream = StreamInferRequest(
                model=request.model, context=request.context, request=request
            )
            try:
                return codec.encode_call(stream)
            except Unsupported:
                pass  # a single reply may be all that the stream has
        return codec.encode_call(request)

    async def reply(
        self,
        call: Call[Any],
        model: ModelRef | None,
        answer: Callable[[InferRequest], Reply],
        needs: frozenset[Need] = frozenset(),
    ) -> Reply:
        """Return the reply to a call, as its caller needs it.

        Args:
            call: The reply that the target's codec decoded.
            model: Its model, which a message of the target may not name.
            answer: Returns the server's reply to the call.
            needs: Those of the codec that wrote the reply.

        Raises:
            GatewayError: The signature lacks what the reply needs.
        """
        request = _inference_of(call)

        async def server(request: Call[Any]) -> Any:
            if not isinstance(request, InferRequest):
                return self._metadata(request)
            found = answer(request)
            if isinstance(found, GatewayError):
                raise _ServerError(found)
            return found

        try:
            service = self.layers(server, needs)
            return await service(request.changed(model=model, context=call.context))
        except _ServerError as end:
            return end.error

    async def responses(
        self, call: Call[Any], model: ModelRef | None, replies: Sequence[Reply]
    ) -> list[Any]:
        """Return the responses of the target's protocol to a call.

        Raises:
            Unsupported: The protocol has no stream for so many replies.
        """
        codec = self._codec
        if not isinstance(call, StreamInferRequest) and len(replies) != 1:
            raise Unsupported(f"{len(replies)} replies: {codec.name} has no such stream")
        written = []
        for each in replies:
            found = await self.reply(call, model, partial(_always, each))
            if isinstance(found, GatewayError):
                written.append(codec.encode_error(call, found))
            elif isinstance(call, StreamInferRequest):
                written.append(codec.encode_item(call, found))
            else:
                written.append(codec.encode_reply(call, found))
        return written

    @property
    def _codec(self) -> Codec[Any, Any]:
        assert self.target is not None  # noqa: S101  # tensors are no message
        return self.target

    def _metadata(self, call: Call[Any]) -> ModelMetadata:
        found = self.signatures("" if call.model is None else call.model.name)
        if found is None or not isinstance(call, ModelMetadataRequest):
            raise Unavailable(
                "the signature of the model is unknown; expected its inputs and outputs "
                "(--signature FILE)",
                model=call.model,
            )
        return found


def _inference_of(call: Call[Any]) -> InferRequest:
    request = inference_of(call)
    if request is None:
        raise Unsupported(f"{type(call).__name__} is not an inference; expected one")
    return request


def _always(reply: Reply, _call: InferRequest) -> Reply:
    return reply


class _ServerError(Exception):
    """Carries the error that a server replied with past the layers, which would change it."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__()
        self.error = error


def example_request(model: ModelRef, metadata: ModelMetadata | None) -> InferRequest:
    """Return a request with inputs of zeros, to which a reply without its request belongs.

    Args:
        model: The model.
        metadata: Its signature; without one the request has no inputs.
    """
    inputs: list[Tensor] = []
    for each in () if metadata is None else metadata.inputs:
        datatype = each.datatype or Datatype.FP32
        shape = tuple(max(1, size) for size in each.shape or ())
        count = prod(shape)
        if datatype is Datatype.BYTES:
            inputs.append(items_tensor(each.name, shape, [b""] * count))
        else:
            zeros = memoryview(bytes(count * datatype.size_bytes))
            inputs.append(raw_tensor(each.name, datatype, shape, zeros))
    return InferRequest(model=model, inputs=tuple(inputs))


def recorded_call(record: RecordedCall) -> Call[Any]:
    """Return a recorded call as it was.

    Raises:
        GatewayError: It was not recorded whole, or is malformed.
    """
    if record.missing:
        raise Unsupported(record.missing)
    request = record.request()
    if record.call.kind != StreamInferRequest.__name__:
        return request
    return StreamInferRequest(model=request.model, context=request.context, request=request)


def recorded_replies(record: RecordedCall) -> list[Reply]:
    """Return the recorded replies of a call, and the error that ended it.

    Raises:
        GatewayError: The outputs were not recorded, or are malformed.
    """
    outputs = record.outputs()
    if outputs is None:
        raise Unsupported("outputs not recorded")
    model = ModelRef(record.call.model, record.call.version)
    found: list[Reply] = [InferResponse(model=model, outputs=each) for each in outputs]
    if record.error_code is not None:
        text = record.call.error or record.error_code.value
        found.append(ERROR_CLASSES[record.error_code](text))
    return found
