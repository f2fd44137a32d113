"""Calls and replies of the IR as GraphPipe messages and back, whatever carries them.

GraphPipe matches outputs by place and names none, so what was asked for is kept with the call.
Where a message says only "the output at this place", all outputs are asked for and it is picked
from the answer.

Source: docs/protocols/graphpipe.md, "4. Inference requests", "10. Upstreams".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gateway import __version__
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelMetadata, ServerMetadata
from gateway.ir.tensor import RequestedOutput, Tensor
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

_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.SUBSTITUTES})

REPLY_NEEDS: Final = frozenset({Need.DATATYPES, Need.SHAPES, Need.OUTPUTS, Need.SUBSTITUTES})
"""What an answer cannot be written without: it has no names, so outputs go by place."""

T = TypeVar("T", RequestedOutput, Tensor)


@dataclass(frozen=True, slots=True)
class UpstreamErrorText:
    """What an upstream said of its error, for a caller of this protocol.

    Attributes:
        number: HTTP's, or the number in the message; 0 when it was not set.
        text: In its own words.
    """

    number: int
    text: str


def needs_of(settings: GraphPipeOptions) -> frozenset[Need]:
    """Return what a request to an upstream cannot be written without.

    Outputs are asked for by name, always: in the order that is configured, or else that of the
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
    """Return the inference request whose table stands at *at*.

    Args:
        message: Given to `open_request`.
        at: From `open_request`.
        model: The model it is for.
        context: Makes the context, given the names of outputs as they are in the message.
        settings: The listener's.

    Raises:
        GatewayError: It cannot be used.
    """
    config, tensors, names = read_infer_request(message, at, lenient=settings.lenient_names)
    said = read_config(config, message.limits)
    # "" is the output at this place, and the place counts among the model's own.
    asked = () if "" in names else tuple([RequestedOutput(name) for name in dict.fromkeys(names)])
    return InferRequest(
        model=model,
        context=context(tuple(names)),
        inputs=tensors,
        outputs=asked,
        id=said.id,
        priority=said.priority,
        timeout_us=said.timeout_us,
        parameters=said.parameters,
    )


def encode_infer_reply(reply: InferResponse, names: Sequence[str]) -> list[Buffer]:
    """Return the outputs of *reply* that were asked for by *names*, in that order, as buffers.

    Raises:
        UpstreamProtocolError: One is not there.
        Unsupported: One has no datatype or shape.
        TooLarge: The message would have 2 GiB or more.
    """
    return infer_response(wire_tensors(_picked(reply, names)))


def encode_metadata(metadata: ModelMetadata) -> bytes:
    """Return *metadata* as a message; the version in it is the gateway's own."""
    return metadata_response(
        MetadataMessage(
            metadata.name,
            __version__,
            SERVER,
            metadata_text(metadata),
            metadata.inputs,
            metadata.outputs,
        )
    )


def metadata_text(metadata: ModelMetadata) -> str:
    """Return what GraphPipe has no field for, as the description of a model."""
    parts = [metadata.platform] if metadata.platform else []
    if metadata.versions:
        parts.append(f"versions {', '.join(metadata.versions)}")
    return "; ".join(parts)


def error_message(error: GatewayError, codec: str, limits: MessageLimits) -> ErrorMessage:
    """Return the number and text of *error*; what an upstream of the same *codec* said stays."""
    number, text = status_of(error), error.message
    origin = error.origin
    if origin is not None and origin.codec == codec and isinstance(origin.form, UpstreamErrorText):
        text = origin.form.text
        if is_error_status(origin.form.number):
            number = origin.form.number
    return ErrorMessage(number, printable(text, limits.error_text_bytes))


def encode_infer(call: InferRequest, settings: GraphPipeOptions) -> list[Buffer]:
    """Return *call* as buffers; outputs are asked for in the upstream's order where it is known.

    Raises:
        Unsupported: It asks for what GraphPipe cannot carry.
        InvalidRequest: It has an input or output that the upstream is known not to have.
    """
    _check_plain(call)
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
    return infer_request(config, names if any(names) else (), wire_tensors(inputs), outputs)


def asked_names(call: InferRequest, settings: GraphPipeOptions) -> Sequence[str]:
    """Return the names of the outputs an upstream is asked for."""
    return settings.outputs or [output.name for output in call.outputs]


def decode_infer_reply(
    call: InferRequest, message: FlatbufferMessage, settings: GraphPipeOptions
) -> InferResponse:
    """Return the answer to *call*, its data views of *message*.

    Raises:
        UpstreamFault: It holds an error.
        GatewayError: It cannot be used.
    """
    names = asked_names(call, settings)
    outputs, errors_at = read_infer_response(message, names, settings.drop_outputs)
    if errors_at:
        errors = (read_honest_errors if outputs else read_errors)(message, errors_at)
        if errors:
            raise UpstreamFault(*errors[0])
    if not outputs:
        raise MalformedMessage("an InferResponse with neither outputs nor errors")
    if settings.outputs and call.outputs:
        outputs = _ordered(outputs, [output.name for output in call.outputs], "output", pick=True)
    return InferResponse(model=call.model or ModelRef(""), outputs=outputs, id=call.id)


class UpstreamFault(Exception):  # the codec turns it into an error with an origin
    """An answer that holds an error; never leaves the codec."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.said = UpstreamErrorText(number, text)
        self.kind = error_class_of_http(number)


def decode_metadata(message: FlatbufferMessage) -> MetadataMessage:
    """Return the metadata that *message* is.

    Raises:
        UpstreamFault: It holds an error: servers cannot say otherwise why there is no metadata.
        GatewayError: It cannot be used.
    """
    found = read_metadata(message)
    if found is not None:
        return found
    _, errors_at = read_infer_response(message, (), 0)
    errors = read_errors(message, errors_at) if errors_at else []
    if errors:
        raise UpstreamFault(*errors[0])
    raise MalformedMessage("a metadata answer with neither inputs nor outputs")


def model_metadata(found: MetadataMessage, model: ModelRef | None) -> ModelMetadata:
    """Return what a metadata answer tells of *model*.

    The name is the one it was asked by, for a server may give a file's or a URL's.
    """
    name = found.name if model is None else model.name
    return ModelMetadata(
        name=name, platform=found.server, inputs=found.inputs, outputs=found.outputs
    )


def server_metadata(found: MetadataMessage) -> ServerMetadata:
    """Return what a metadata answer tells of its server."""
    return ServerMetadata(found.server, found.version)


def _picked(reply: InferResponse, names: Sequence[str]) -> Sequence[Tensor]:
    """Return the outputs that *names* ask for, in their order; all when there are no names."""
    outputs = reply.outputs
    if not names:
        return outputs
    if not any(tensor.name for tensor in outputs):
        distinct = list(dict.fromkeys(names)) if all(names) else list(names)
        if len(distinct) > len(outputs):
            raise _missing(reply, distinct[len(outputs)])
        return [outputs[distinct.index(name) if name else at] for at, name in enumerate(names)]
    known = {tensor.name: tensor for tensor in outputs}
    picked = []
    for place, name in enumerate(names):
        found = known.get(name) if name else outputs[place] if place < len(outputs) else None
        if found is None:
            raise _missing(reply, name or f"number {place}")
        picked.append(found)
    return picked


def _missing(reply: InferResponse, name: str) -> UpstreamProtocolError:
    there = ", ".join(repr(tensor.name) for tensor in reply.outputs) or "none"
    return UpstreamProtocolError(
        f"the answer lacks the output {name!r} that was asked for, there is: {there}",
        model=reply.model,
    )


def _ordered(
    found: Sequence[T], names: Sequence[str], kind: str, *, pick: bool = False
) -> tuple[T, ...]:
    """Return *found* in the order of *names*; those without a name stay where they are.

    Args:
        found: Tensors or requested outputs.
        names: All there are, or those to pick.
        kind: For errors.
        pick: Leave out what *names* does not have, and refuse what *found* does not have.
    """
    known: dict[str, Any] = {item.name: item for item in found}
    have, wanted = (known, names) if pick else (names, known)
    for name in wanted:
        if name and name not in have:
            there = ", ".join(map(repr, have))
            raise InvalidRequest(f"the upstream has no {kind} {name!r}, it has {there}")
    if "" in known:
        return tuple(found)
    return tuple([known[name] for name in names if name in known])


def _check_plain(call: InferRequest) -> None:
    if call.sequence is not None:
        raise Unsupported("GraphPipe has no sequences", model=call.model)
    for output in call.outputs:
        if output.classes:
            raise Unsupported(
                f"output {output.name!r} is asked for with {output.classes} classes: GraphPipe has "
                "no classification",
                model=call.model,
            )
