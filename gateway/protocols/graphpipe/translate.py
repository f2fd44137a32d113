"""Calls and replies of the IR to GraphPipe messages and back, for HTTP and byte streams.

GraphPipe responses have no names and list outputs in the order of the request, so the requested
names are kept with the call.  Where a request has "" as a name, which means the output at this
index, all outputs are requested and this one is picked from the reply.

Source: docs/protocols/graphpipe.md, "4. Inference requests", "10. Upstreams".
"""

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gateway import __version__
from gateway.api.protocol import Limitations, unsupported
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from gateway.ir.context import Context, ModelRef, Need, Origin
from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelMetadata, ServerMetadata
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.protocols.graphpipe.config_parameter import read_config, write_config
from gateway.protocols.graphpipe.datatypes import wire_tensors
from gateway.protocols.graphpipe.error_and_metadata import (
    ErrorMessage,
    MetadataMessage,
    metadata_response,
    read_errors,
    read_honest_errors,
    read_metadata,
)
from gateway.protocols.graphpipe.errors import printable, status_of
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage
from gateway.protocols.graphpipe.flatbuffer_writer import infer_request, infer_response
from gateway.protocols.graphpipe.messages import read_infer_request, read_infer_response
from gateway.protocols.graphpipe.options import GraphPipeOptions
from gateway.wire.errors import error_class_of_http, is_error_status
from gateway.wire.http import Buffer

SERVER: Final = "tensor-gateway"

LIMITATIONS: Final = Limitations(
    title="GraphPipe", sequences=True, classes=True, shared_memory=True
)

_NO_SHARED_MEMORY: Final = "GraphPipe has no shared memory"

_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.SUBSTITUTES})

REPLY_NEEDS: Final = frozenset({Need.DATATYPES, Need.SHAPES, Need.OUTPUTS, Need.SUBSTITUTES})
"""What a reply must have: responses have no names, so outputs are matched by index."""

T = TypeVar("T", RequestedOutput, Tensor)


@dataclass(frozen=True, slots=True)
class UpstreamErrorText:
    """The error of an upstream, for a caller of the same protocol.

    Attributes:
        number: HTTP's, or the number in the message; 0 when it was not set.
        text: The text that the upstream sent.
    """

    number: int
    text: str


def needs_of(settings: GraphPipeOptions) -> frozenset[Need]:
    """Return what a request to an upstream must have.

    Outputs are always requested by name, in the configured order or else in the order of the
    upstream's metadata.
    """
    return _NEEDS if settings.outputs else _NEEDS | {Need.OUTPUTS}


def decode_infer(
    message: FlatbufferMessage,
    at: int,
    model: ModelRef,
    context: Callable[[tuple[str, ...]], Context],
    settings: GraphPipeOptions,
) -> InferRequest:
    """Return the inference request whose table is at *at*.

    Args:
        message: A whole request, without the frame of its carrier.
        at: From `open_request`.
        model: From the URL or the listener.
        context: Creates the context from the names of outputs in the message.
        settings: The listener's.

    Raises:
        GatewayError: A part of it is wrong.
    """
    config, tensors, names = read_infer_request(message, at, model, lenient=settings.lenient_names)
    found = read_config(config, message.limits)
    # "" is the output at this index, counted among the outputs of the model.
    requested = (
        () if "" in names else tuple([RequestedOutput(name) for name in dict.fromkeys(names)])
    )
    call = InferRequest(
        model=model,
        context=context(tuple(names)),
        inputs=tensors,
        outputs=requested,
        id=found.id,
        priority=found.priority,
        parameters=found.parameters,
    )
    if found.timeout_s is None:
        return call
    deadline, end = call.context.deadline, time.monotonic() + found.timeout_s
    return call.with_deadline(end if deadline is None else min(deadline, end))


def encode_infer_reply(reply: InferResponse, names: Sequence[str]) -> list[Buffer]:
    """Return the outputs of *reply* that *names* request, in that order, as buffers.

    Raises:
        UpstreamProtocolError: An output is missing.
        InvalidRequest: The request, which names some outputs by index, names one that is not there.
        Unsupported: One has no datatype or shape.
        TooLarge: The message would have 2 GiB or more.
    """
    return infer_response(wire_tensors(_picked(reply, names)))


def encode_metadata(metadata: ModelMetadata) -> bytes:
    """Return *metadata* as a message, with the gateway's own version.

    Raises:
        Unsupported: GraphPipe cannot carry a dimension or a text of it.
    """
    found = MetadataMessage(
        metadata.name,
        __version__,
        SERVER,
        metadata_text(metadata),
        metadata.inputs,
        metadata.outputs,
    )
    try:
        return metadata_response(found)
    except (struct.error, ValueError) as error:  # of the upstream: over 64 bits, a lone surrogate
        raise Unsupported(
            f"the metadata of model {metadata.name!r} cannot be written: {error}"
        ) from error


def metadata_text(metadata: ModelMetadata) -> str:
    """Return properties without a field in GraphPipe, as the description of a model."""
    parts = [metadata.platform] if metadata.platform else []
    if metadata.versions:
        parts.append(f"versions {', '.join(metadata.versions)}")
    return "; ".join(parts)


def error_message(error: GatewayError, codec: str, limits: MessageLimits) -> ErrorMessage:
    """Return number and text of *error*; those of an upstream of the same *codec* are unchanged."""
    number, text = status_of(error), error.message
    origin = error.origin
    if origin is not None and origin.codec == codec and isinstance(origin.form, UpstreamErrorText):
        text = origin.form.text
        if is_error_status(origin.form.number):
            number = origin.form.number
    return ErrorMessage(number, printable(text, limits.error_text_bytes))


def encode_infer(call: InferRequest, settings: GraphPipeOptions) -> list[Buffer]:
    """Return *call* as buffers, with outputs in the upstream's order where it is known.

    Raises:
        Unsupported: GraphPipe cannot carry it.
        InvalidRequest: The upstream is known to lack one of its inputs or outputs.
    """
    inputs = call.inputs
    if settings.inputs:
        inputs = _ordered(inputs, settings.inputs, "input")
    names = [tensor.name for tensor in inputs]
    outputs = asked_names(call, settings)
    if settings.outputs:
        _ordered(call.outputs, settings.outputs, "output")
    if settings.config is not None:
        config = settings.config.encode()
    else:
        config = write_config(call.parameters)
    try:
        tensors = wire_tensors(inputs)
    except InvalidTensor:
        if call.shares_memory:
            raise Unsupported(_NO_SHARED_MEMORY, model=call.model) from None
        raise
    return infer_request(config, names if any(names) else (), tensors, outputs)


def asked_names(call: InferRequest, settings: GraphPipeOptions) -> Sequence[str]:
    """Return the names of the outputs that an upstream is asked for."""
    return settings.outputs or [output.name for output in call.outputs]


def decode_infer_reply(
    call: InferRequest, message: FlatbufferMessage, settings: GraphPipeOptions
) -> InferResponse:
    """Return the reply to *call*, its data views of *message*.

    Raises:
        UpstreamFault: It contains an error.
        GatewayError: It cannot be used.
    """
    names = asked_names(call, settings)
    outputs, errors_at = read_infer_response(message, names, settings.drop_outputs)
    if errors_at:
        errors = (read_honest_errors if outputs else read_errors)(message, errors_at)
        if errors:
            raise UpstreamFault(*errors[0])
    if not outputs:
        raise MalformedMessage("InferResponse has neither outputs nor errors")
    if settings.outputs and call.outputs:
        outputs = _ordered(outputs, [output.name for output in call.outputs], "output", pick=True)
    return InferResponse(model=call.model or ModelRef(""), outputs=outputs, id=call.id)


_NOT_READY: Final = frozenset({ErrorCode.NOT_READY, ErrorCode.UNAVAILABLE, ErrorCode.OVERLOADED})


class UpstreamFault(Exception):  # the codec converts it into an error with an origin
    """The error in a response; never leaves the codec."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.error = UpstreamErrorText(number, text)

    def reply(self, call: Call[Any], origin: Origin) -> bool:
        """Return False for a model or server that is not ready, else raise the error of *call*."""
        if type(call) in _READY and is_not_ready(self.error.number):
            return False
        raise self.error_of(call, origin) from None

    def error_of(self, call: Call[Any], origin: Origin) -> GatewayError:
        """Return the error of *call*."""
        kind = error_class_of_http(self.error.number)
        if kind is NotFound and call.model is not None:
            kind = ModelNotFound
        return kind(self.error.text, model=call.model, origin=origin)


def is_not_ready(status: int) -> bool:
    """Return whether an error with this number says that a model or server is not ready."""
    return error_class_of_http(status).code in _NOT_READY


def reply_reader(
    codec: str, settings: GraphPipeOptions, limits: MessageLimits, whole: str
) -> Callable[[Call[Any], Any], Any]:
    """Return the function that reads an upstream's response to a call.

    It raises a GatewayError for a response that cannot be used, or with an error.

    Args:
        codec: The name of the codec, which has no replies to other calls than those in `_READERS`.
        settings: The options of the upstream.
        limits: The limits of a message.
        whole: The form of messages that pass as they came.
    """

    def read(call: Call[Any], wire: Any) -> Any:
        try:
            message = FlatbufferMessage(wire.view, limits)
            read_message = _READERS.get(type(call))
            if read_message is None:
                raise unsupported(call, codec)
            return read_message(call, message, settings)
        except UpstreamFault as fault:
            return fault.reply(call, Origin(codec, wire, fault.error, whole=whole))

    return read


def _is_ready(_call: Call[bool], message: FlatbufferMessage, _settings: GraphPipeOptions) -> bool:
    decode_metadata(message)  # raises an error
    return True


_READY: Final = frozenset({ModelReadyRequest, ServerReadyRequest})
_READERS: Final[
    Mapping[type[Call[Any]], Callable[[Any, FlatbufferMessage, GraphPipeOptions], Any]]
] = {
    InferRequest: decode_infer_reply,
    ModelMetadataRequest: lambda call, message, _settings: model_metadata(
        decode_metadata(message), call.model
    ),
    ServerMetadataRequest: lambda _call, message, _settings: _server_metadata(
        decode_metadata(message)
    ),
    ModelReadyRequest: _is_ready,
    ServerReadyRequest: _is_ready,
}


def decode_metadata(message: FlatbufferMessage) -> MetadataMessage:
    """Return *message* as metadata.

    Raises:
        UpstreamFault: It contains an error, such as that there is no metadata.
        GatewayError: It cannot be used.
    """
    found = read_metadata(message)
    if found is not None:
        return found
    _, errors_at = read_infer_response(message, (), 0)
    errors = read_errors(message, errors_at) if errors_at else []
    if errors:
        raise UpstreamFault(*errors[0])
    raise MalformedMessage("metadata response has neither inputs nor outputs")


def _server_metadata(found: MetadataMessage) -> ServerMetadata:
    return ServerMetadata(found.server, found.version)


def model_metadata(found: MetadataMessage, model: ModelRef | None) -> ModelMetadata:
    """Return the metadata of *model* in a metadata response.

    Its name is that of the request, because a server may send the name of a file or a URL.
    """
    name = found.name if model is None else model.name
    return ModelMetadata(
        name=name, platform=found.server, inputs=found.inputs, outputs=found.outputs
    )


def _picked(reply: InferResponse, names: Sequence[str]) -> Sequence[Tensor]:
    """Return the outputs that *names* request, in their order; all when there are no names."""
    outputs = reply.outputs
    if not names:
        return outputs
    if not any(tensor.name for tensor in outputs):
        distinct = list(dict.fromkeys(names)) if all(names) else list(names)
        if len(distinct) > len(outputs):
            raise _missing(reply, len(outputs), distinct)
        return [outputs[distinct.index(name) if name else at] for at, name in enumerate(names)]
    by_name = {tensor.name: tensor for tensor in outputs}
    picked = []
    for place, name in enumerate(names):
        found = by_name.get(name) if name else outputs[place] if place < len(outputs) else None
        if found is None:
            raise _missing(reply, place, names)
        picked.append(found)
    return picked


def _missing(reply: InferResponse, place: int, names: Sequence[str]) -> GatewayError:
    """Return the error for the output at *place* of *names*, which *reply* lacks."""
    there = ", ".join(repr(tensor.name) for tensor in reply.outputs) or "none"
    if all(names):
        return UpstreamProtocolError(
            f"response lacks the requested output {names[place]!r}: found {there}",
            model=reply.model,
        )
    # All outputs were requested, so the model has no others.
    name = repr(names[place]) if names[place] else f"number {place}"
    return InvalidRequest(
        f"the model has no output {name}, the response has {there}", model=reply.model
    )


def _ordered(
    found: Sequence[T], names: Sequence[str], kind: str, *, pick: bool = False
) -> tuple[T, ...]:
    """Return *found* in the order of *names*; those without a name keep their order.

    Args:
        found: Tensors or requested outputs.
        names: All that exist, or those to pick.
        kind: For errors.
        pick: Drop those not in *names*, and refuse *names* that *found* lacks.
    """
    by_name: dict[str, Any] = {item.name: item for item in found}
    have, wanted = (by_name, names) if pick else (names, by_name)
    for name in wanted:
        if name and name not in have:
            there = ", ".join(map(repr, have))
            raise InvalidRequest(f"the upstream has no {kind} {name!r}, it has {there}")
    if "" in by_name:
        return tuple(found)
    return tuple([by_name[name] for name in names if name in by_name])
