"""What a protocol loses of a call and of its reply, by name."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.api.protocol import Codec
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
    words_of,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensor import RequestedOutput, Tensor, as_raw
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.stream import Frame


def arrived(wire: Any) -> Any:
    """Return a message as the other end of a connection has it: in one piece."""
    if isinstance(wire, Frame):
        return replace(wire, payload=(memoryview(b"".join(wire.payload)),))
    if isinstance(wire, GrpcRequest | GrpcResponse):
        return replace(wire, message=(memoryview(b"".join(wire.message)),))
    return replace(wire, body=(memoryview(b"".join(wire.body)),))


def carried_parts(
    client: Codec[Any, Any], listener: Codec[Any, Any], call: InferRequest, metadata: ModelMetadata
) -> Iterator[str]:
    """Yield the parts of calls that *client* writes and *listener* reads.

    Args:
        client: Writes requests.
        listener: Reads them.
        call: A call of the model that *client* can write.
        metadata: The model.
    """
    for name, field, value in _parts(call, metadata):
        with suppress(GatewayError):
            received = listener.decode_call(
                arrived(client.encode_call(call.changed(**{field: value})))
            )
            if _has(received, field, value):
                yield name
    for question in (
        ModelMetadataRequest(model=call.model),
        ModelReadyRequest(model=call.model),
        RepositoryIndexRequest(),
    ):
        with suppress(GatewayError):
            client.encode_call(question)
            yield words_of(question)
    if metadata.decoupled:
        with suppress(GatewayError):
            client.encode_call(StreamInferRequest(model=call.model, request=call))
            yield "streams of replies"


def _parts(call: InferRequest, metadata: ModelMetadata) -> Iterator[tuple[str, str, Any]]:
    """Yield the parts that a call may have, with the fields of `InferRequest` that hold them."""
    yield "request id", "id", "7"
    yield "request parameters", "parameters", {"certify": "1"}
    if call.inputs:
        first, *others = call.inputs
        named = Tensor(first.name, first.datatype, first.shape, first.data, {"certify": "1"})
        yield "parameters of inputs", "inputs", (named, *others)
    if call.sequence is not None:
        yield "sequence", "sequence", call.sequence
    if metadata.versions:
        yield "version", "model", ModelRef(metadata.name, metadata.versions[-1])
    if len(metadata.outputs) > 1:
        yield "choice of outputs", "outputs", (RequestedOutput(metadata.outputs[-1].name),)
    if metadata.outputs:
        yield "classes", "outputs", (RequestedOutput(metadata.outputs[0].name, classes=1),)
    yield "priority", "priority", 1
    yield "queue timeout", "timeout_us", 1_000_000


def _has(received: Any, field: str, value: Any) -> bool:
    found: Any = getattr(received, field, None)
    if field == "inputs":
        return any(dict(each.parameters) == dict(value[0].parameters) for each in found or ())
    if field == "model" and found is not None:  # some protocols have one text for both
        return found in (value, ModelRef(f"{value.name}-{value.version}"))
    return bool(found == value)


def lost_of_inputs(inputs: Sequence[Tensor]) -> Iterator[str]:
    """Yield what a request does not say of its inputs."""
    if not all(each.name for each in inputs):
        yield "names of inputs"
    if any(each.datatype is None for each in inputs):
        yield "datatypes of inputs"


def lost_of_reply(
    direct: InferResponse, raw: InferResponse, reply: InferResponse, *, has_values: bool
) -> Iterator[str]:
    """Yield what a reply lacks of the direct one.

    Args:
        direct: The direct reply.
        raw: What a client reads of the message.
        reply: The message completed by the metadata of the model.
        has_values: Whether a second direct reply has the same values.
    """
    names = [each.name for each in direct.outputs]
    written = [each.name for each in raw.outputs]
    if not set(written) <= set(names):
        yield "names of outputs"
    elif written != [name for name in names if name in written]:
        yield "order of outputs"
    if any(each.datatype is None for each in raw.outputs):
        yield "datatypes of outputs"
    if direct.model.version and not raw.model.version:
        yield "version of the reply"
    if not direct.parameters.keys() <= raw.parameters.keys():
        yield "parameters of the reply"
    for each in direct.outputs:
        place = _place_of(each, reply.outputs)
        if place is None:
            yield f"output {each.name}"
        else:
            yield from _lost_of_output(each, raw.outputs[place], reply.outputs[place], has_values)


def _place_of(expected: Tensor, found: Sequence[Tensor]) -> int | None:
    """Return the place of an output: by its name, or else by its type where names are lost."""
    kinds = [(each.name, each.datatype) for each in found]
    if (expected.name, expected.datatype) in kinds:
        return kinds.index((expected.name, expected.datatype))
    types = [(each.datatype, each.shape) for each in found]
    wanted = (expected.datatype, expected.shape)
    return types.index(wanted) if wanted in types else None


def _lost_of_output(
    expected: Tensor, raw: Tensor, found: Tensor, has_values: bool
) -> Iterator[str]:
    if raw.datatype not in (None, expected.datatype):
        yield f"datatype of output {expected.name}: {_name(raw)} for {_name(expected)}"
    if found.shape != expected.shape:
        yield f"shape of output {expected.name}: {_shape(found)} for {_shape(expected)}"
    if has_values and as_raw(found) != as_raw(expected):
        yield f"values of output {expected.name}"


def _name(tensor: Tensor) -> str:
    return "?" if tensor.datatype is None else tensor.datatype.name


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape or ()))
