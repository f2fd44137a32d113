"""Inferences over gRPC: the fields of a call in a message, and the checks of a dialect.

`scan.py`, `decode.py` and `encode.py` have the bytes of messages, `streaming.py` the messages of
streams.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md,
"8. Inference requests and responses".
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from msgspec.structs import replace  # noqa: TID251  # a reply to a call keeps its origin

from gateway.accelerator import accelerated
from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import REQUEST_ID, ModelRef, Origin, Parameters, unknown_of
from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.data import StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.protocols.oip.dialects import check_version
from gateway.protocols.oip.grpc.context import NAME, NEEDS
from gateway.protocols.oip.grpc.decode import NOWHERE, InferReader, PlainReader, Read
from gateway.protocols.oip.grpc.dialects import GrpcDialect, check_infer, required_model
from gateway.protocols.oip.grpc.encode import (
    RAW_INPUTS,
    RAW_OUTPUTS,
    FastInferEncoder,
    InferEncoder,
    MessageWriter,
)
from gateway.protocols.oip.grpc.management import SERVICE
from gateway.protocols.oip.grpc.streaming import FINAL, STREAM, StreamForm, split_final_mark
from gateway.protocols.oip.outputs import requested_output, with_c_values
from gateway.protocols.oip.parameters import (
    NO_REQUEST_PARAMETERS,
    join_parameters,
    split_parameters,
)
from gateway.protocols.oip.shared_memory import outputs_in_shared_memory
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, Metadata
from gateway.wire.heads.metadata import grpc_context, metadata_with_id
from gateway.wire.http import Buffer, size_of, view_of

INFER: Final = SERVICE + "ModelInfer"
# The lookup of an enumeration's member costs as much as a call.
_OK: Final = GrpcStatus.OK


class Inferences:
    """Reads and writes inferences.

    Args:
        limits: The limits of a message.
        dialect: The dialect of the upstream server.

    Attributes:
        writer: Of responses that are parts of larger messages.
        read_plain: Reads most replies; see `reply_reader`.
        write_plain: Writes most calls, see `call_writer`; None where each needs a check.
    """

    def __init__(self, limits: MessageLimits, dialect: GrpcDialect) -> None:
        self.writer = InferEncoder()
        self._limits = limits
        self._dialect = dialect
        given, factor = limits.request_bytes, dialect.strings
        self._request_bytes = dialect.request_bytes if given is None else given
        self._strings = None if factor is None else int(limits.json_strings * factor)
        self._reader = InferReader(limits)
        self._plain_replies = FastInferEncoder(RAW_OUTPUTS)
        # None where each request needs an id, or checks of its model.
        self._plain_calls: FastInferEncoder | None = None
        if dialect.has_versions and not dialect.needs_id:
            self._plain_calls = FastInferEncoder(
                RAW_INPUTS,
                None if dialect.has_bf16 else Datatype.BF16,
                has_shared=dialect.has_extensions,
            )
        self.write_plain: CallWriter | None = None
        if self._plain_calls is not None and self._request_bytes is None:
            self.write_plain = call_writer(self._plain_calls.write, INFER)
        self._like = InferResponse(
            model=ModelRef(""),
            outputs=(),
            has_nonfinite_words=dialect.has_nonfinite_words,
            has_null_infinities=dialect.has_null_infinities,
            has_half_in_json=dialect.has_half_in_json,
        )
        self.read_plain = reply_reader(self._reader.plain_response, self._like)

    def decode_call(
        self, wire: GrpcRequest, spare_id: str = "", reserves_keys: bool = True
    ) -> InferRequest:
        """Read a client's request; tensors are views into its message.

        Args:
            wire: The request.
            spare_id: Of the call, for a request without an id of the client.
            reserves_keys: Refuse reserved parameters of another type.
        """
        read = self._reader.request(view_of(wire.message))  # as `wire.view`, without its frame
        message, request_id, inputs = read
        unknown = message.unknown
        if not (message.parameters or message.outputs or unknown) and wire.method == INFER:
            return plain_call(wire, read, spare_id)
        reserved = NO_REQUEST_PARAMETERS
        if message.parameters:
            reserved = split_parameters(message.parameters, self._limits, reserved=reserves_keys)
        form = StreamForm(reserved.empty_final) if wire.method == STREAM else None
        outputs: tuple[RequestedOutput, ...] = ()
        if message.outputs:
            outputs = tuple([_requested(*output, self._limits) for output in message.outputs])
        call = InferRequest(
            model=message.model,
            context=grpc_context(wire, NAME, NEEDS, form, spare_id, message.columns is not None),
            inputs=inputs,
            outputs=outputs,
            id=request_id,
            sequence=reserved.sequence,
            priority=reserved.priority,
            timeout_us=reserved.timeout_us,
            parameters=reserved.custom,
        )
        if not unknown:
            return call
        return call.with_context(
            origin=replace(cast("Origin", call.context.origin), unknown=unknown)
        )

    def encode_reply(self, call: InferRequest, reply: InferResponse) -> GrpcResponse:
        """Write the response to *call*; the data of large tensors are not copied."""
        # The response has the caller's id, never one that a server created.
        outputs = with_c_values(call, reply).outputs if call.outputs else reply.outputs
        origin = reply.origin
        unknown = unknown_of(origin, NAME) if origin is not None and origin.unknown else b""
        if not reply.parameters and not unknown:
            plain = self._plain_replies.write(reply.model, call.id, outputs)
            if plain is not None:
                return GrpcResponse(plain)
        written = self.writer.response(reply.model, call.id, reply.parameters, outputs)
        return GrpcResponse([unknown, *written] if unknown else written)

    def encode_call(self, call: InferRequest, spare_id: str) -> Sequence[Buffer]:
        """Write a request to an upstream, all tensors raw.

        Args:
            call: The inference.
            spare_id: For a server that needs an id, where the call has none.

        Raises:
            Unsupported: The dialect cannot carry it.
            InvalidRequest: The server would read the version as another one.
            TooLarge: The server accepts no request of this size.
        """
        model = call.model
        message: Sequence[Buffer] | None = None
        if not (
            self._plain_calls is None
            or model is None
            or (model.version and not (model.version.isascii() and model.version.isdecimal()))
            or call.parameters
            or call.sequence is not None
            or call.priority
            or call.timeout_us is not None
            or call.has_unknown
        ):
            message = self._plain_calls.write(model, call.id, call.inputs, call.outputs)
        if message is None:
            message = self._written(call, spare_id)
        if self._request_bytes is not None:
            self._check_size(call, message, self._request_bytes)
        return message

    def decode_reply(
        self,
        call: InferRequest,
        wire: GrpcResponse,
        view: memoryview,
        stream: bool = False,
        final: bool = True,
    ) -> InferResponse:
        """Read an upstream's response; tensors are views into its message.

        Args:
            call: The request.
            wire: The message, or its envelope.
            view: The response itself.
            stream: It is one of any number.
            final: It is the last one, unless it has a mark.

        Raises:
            MalformedMessage: It cannot be read, or belongs to another call.
        """
        where = outputs_in_shared_memory(call.outputs) if call.outputs else NOWHERE
        message, reply_id, outputs = self._reader.response(view, where)
        if call.id and reply_id and reply_id != call.id and self._dialect.echoes_id:
            raise MalformedMessage(f"response has id {reply_id!r}: the request had {call.id!r}")
        parameters = message.parameters
        if FINAL in parameters:
            is_final, parameters = split_final_mark(parameters)
            final = final and is_final
        if call.outputs and (outputs or not stream):
            outputs = self._selected(call, outputs)
        model = message.model
        if not model.name and call.model is not None:
            model = ModelRef(call.model.name, model.version)
        return self._like.changed(
            model=model,
            outputs=outputs,
            id=call.id,
            parameters=parameters,
            is_final=final,
            origin=Origin(NAME, wire, unknown=message.unknown),
        )

    def _written(self, call: InferRequest, spare_id: str) -> Sequence[Buffer]:
        model = required_model(call)
        check_version(self._dialect, model)
        parameters = join_parameters(call)
        check_infer(self._dialect, call, parameters)
        request_id = call.id
        if not request_id and self._dialect.needs_id:
            request_id = spare_id or "gateway"
        written = self.writer.request(model, request_id, parameters, call.inputs, call.outputs)
        unknown = unknown_of(call.context.origin, NAME)
        return [unknown, *written] if unknown else written

    def _check_size(self, call: InferRequest, message: Sequence[Buffer], most: int) -> None:
        size = size_of(message)
        size += sum(one.nbytes for one in call.inputs if type(one.data) is StreamedData)
        if size > most:
            raise TooLarge(
                f"the request has {size} bytes, {self._dialect.name} accepts at most {most} over "
                "gRPC (request_bytes of the upstream)",
                model=call.model,
                limit="request_bytes",
            )
        if self._strings is not None:
            texts = [one.shape or () for one in call.inputs if one.datatype is Datatype.BYTES]
            count = sum(map(math.prod, texts))
            if count > self._strings:
                raise TooLarge(
                    f"the inputs have {count} BYTES elements, {self._dialect.name} gets at most "
                    f"{self._strings} over gRPC (json_strings of the upstream)",
                    model=call.model,
                    limit="json_strings",
                )

    def _selected(self, call: InferRequest, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Check that every requested output is present; drop others where the server does not."""
        wanted = {output.name for output in call.outputs}
        missing = wanted.difference([tensor.name for tensor in outputs])
        if missing:
            raise MalformedMessage(
                f"response lacks the requested output {min(missing)!r}: "
                f"it has {len(outputs)} outputs"
            )
        if self._dialect.can_select:
            return outputs
        return tuple([tensor for tensor in outputs if tensor.name in wanted])


ReplyReader = Callable[[Call[Any], GrpcResponse], InferResponse | None]


@accelerated
def reply_reader(read: PlainReader, like: InferResponse) -> ReplyReader:
    """Return a function that reads most replies: all outputs of an inference, and nothing else.

    It returns None for another one, which `Inferences.decode_reply` reads.

    Args:
        read: Reads most messages.
        like: What the replies of a server have in common.
    """

    def read_reply(call: Call[Any], wire: GrpcResponse, /) -> InferResponse | None:
        parts = wire.message
        if type(call) is not InferRequest or call.outputs or wire.status is not _OK:
            return None
        if type(parts) is not tuple or len(parts) != 1 or type(parts[0]) is not memoryview:
            return None
        found = read(parts[0])
        if found is None or found[0].parameters or not found[0].model.name:
            return None
        message, reply_id, outputs = found
        if reply_id and call.id and reply_id != call.id:
            return None
        origin = Origin(NAME, wire)
        return replace(like, model=message.model, outputs=outputs, id=call.id, origin=origin)

    return read_reply


CallWriter = Callable[[Call[Any]], GrpcRequest | None]


@accelerated
def call_writer(write: MessageWriter, method: str) -> CallWriter:
    """Return a function that writes most calls: tensors, outputs by name, and nothing else.

    It returns None for another one, which `Inferences.encode_call` writes.

    Args:
        write: Writes most messages.
        method: The method of requests.
    """

    def write_call(call: Call[Any], /) -> GrpcRequest | None:
        model = call.model
        if type(call) is not InferRequest or model is None or call.parameters:
            return None
        if call.sequence is not None or call.priority or call.timeout_us is not None:
            return None
        context = call.context
        if context.origin is not None and context.origin.unknown:
            return None
        if model.version and not (model.version.isascii() and model.version.isdecimal()):
            return None
        message = write(model, call.id, call.inputs, call.outputs)
        if message is None:
            return None
        fields: Metadata = ()
        if context.metadata:
            fields = metadata_with_id(context.metadata, context.request_id)
        elif context.request_id:  # as `grpc_metadata`, without its frame
            fields = ((REQUEST_ID, context.request_id),)
        return GrpcRequest(method, message, fields, context.deadline)

    return write_call


@accelerated
def plain_call(wire: GrpcRequest, read: Read, spare_id: str) -> InferRequest:
    """Return the call of a request that has nothing but tensors.

    Args:
        wire: The request.
        read: Its message.
        spare_id: Of the call, for a request without an id of the client.
    """
    message, request_id, inputs = read
    has_bytes = message.columns is not None
    context = grpc_context(wire, NAME, NEEDS, None, spare_id, has_bytes)
    return InferRequest(model=message.model, context=context, inputs=inputs, id=request_id)


def _requested(name: str, parameters: Parameters, limits: MessageLimits) -> RequestedOutput:
    if not parameters:
        return RequestedOutput(name)
    return requested_output(name, parameters, limits, least_classes=1)
