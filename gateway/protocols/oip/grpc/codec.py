"""The Open Inference gRPC codec: a table of functions between gRPC messages and calls.

`infer.py` has inferences, `streaming.py` the messages of streams, `management.py` and
`extensions.py` the other calls, and `dialects.py` the differences between servers.

Each message of a stream is a call of its own, and each such call to an upstream has a stream of its
own, with one message.  The end of that stream is the end of the responses, also for a server
without a mark on the last one (MLServer), or a model without responses.  A call can be cancelled or
fail alone, and responses need no ids.  `gateway.session` keeps the order within a sequence, which
one stream to the server would keep.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md, "7. gRPC methods" and
"10. Streams".
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from gateway.api.protocol import (
    CutThroughCodec,
    Handling,
    ServerReadingCodec,
    StreamCodec,
    read_response,
)
from gateway.ir import errors
from gateway.ir.bodies.streamed_inputs import can_cut_through, streaming_body_of
from gateway.ir.bodies.streaming_body import InterleavedBody
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    ServerMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.limits import MessageLimits, is_usable_name
from gateway.protocols.oip.dialects import MOST_LENIENT, check_version
from gateway.protocols.oip.errors import grpc_error_class, text_of
from gateway.protocols.oip.extension_policy import (
    advertised_extensions,
    apply_policy,
    check_asked,
    require_enabled,
)
from gateway.protocols.oip.grpc import management
from gateway.protocols.oip.grpc.call_messages import CallMessages
from gateway.protocols.oip.grpc.context import NAME, NEEDS, context_of
from gateway.protocols.oip.grpc.dialects import DIALECTS, READERS, GrpcDialect
from gateway.protocols.oip.grpc.encode import between
from gateway.protocols.oip.grpc.extensions import CALL_READERS, EXTENSIONS
from gateway.protocols.oip.grpc.infer import INFER, Inferences
from gateway.protocols.oip.grpc.management import SERVICE
from gateway.protocols.oip.grpc.numpy_contents import rewritten
from gateway.protocols.oip.grpc.streaming import (
    STREAM,
    StreamReplyEncoder,
    asks_empty_final,
    error_of_text,
    named_in,
    open_envelope,
    stream_message,
)
from gateway.protocols.oip.options import UNKNOWN, check_options, read_extensions
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.errors import clip, strip_traceback, unknown_method
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.heads.metadata import unary_request
from gateway.wire.protobuf.library import methods_of, serialized_files
from gateway.wire.status_errors import StatusErrorForm

# Statuses of servers for a model that is not ready: Triton responds with OK and false, KServe
# with NOT_FOUND, MLServer with UNKNOWN; other statuses are failures.
NOT_READY: Final = frozenset(
    {
        GrpcStatus.UNKNOWN,
        GrpcStatus.INVALID_ARGUMENT,
        GrpcStatus.NOT_FOUND,
        GrpcStatus.FAILED_PRECONDITION,
        GrpcStatus.UNAVAILABLE,
    }
)


ERRORS: Final = StatusErrorForm(codec=NAME, error_class=grpc_error_class, text=text_of)

R = TypeVar("R")

# The lookup of an enumeration's member costs as much as a call.
_OK = GrpcStatus.OK

# Every method of the service, so that the gateway's own error refuses it.
METHODS: Final = methods_of(pb.DESCRIPTOR)
file_descriptors: Final = partial(serialized_files, pb.DESCRIPTOR)


class GrpcCodec(
    StreamCodec[GrpcRequest, GrpcResponse],
    ServerReadingCodec[GrpcRequest, GrpcResponse],
    CutThroughCodec[GrpcRequest, GrpcResponse],
):
    """Reads and writes the messages of `inference.GRPCInferenceService`.

    Args:
        limits: The limits of a message.
        options: "dialect": the kind of an upstream, one of `DIALECTS`; "auto" and none mean
            "triton", which is enough to read a server's name.

    Raises:
        ValueError: There is no such dialect.
    """

    name = NAME
    needs = NEEDS
    most_lenient = MOST_LENIENT

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        checked = check_options(options)
        dialect = checked.get("dialect", "auto")
        found = DIALECTS["triton" if dialect in ("auto", UNKNOWN) else dialect]
        self._limits = limits
        self._dialect = found
        self.only_known_models = found.keeps_names
        self.dialect = found.name
        self._extensions = read_extensions(checked)
        self._infer = infer = Inferences(limits, found)
        self._read_plain, self._write_plain = infer.read_plain, infer.write_plain
        self._streams = StreamReplyEncoder(infer.writer, limits.error_text_bytes)
        calls = {
            kind: _handling(messages, found, limits)
            for kind, messages in {**management.MESSAGES, **EXTENSIONS}.items()
        }
        write_server = partial(_write_reply, management.MESSAGES[ServerMetadataRequest])
        self.calls = {
            InferRequest: Handling(
                lambda call: unary_request(
                    call, INFER, infer.encode_call(call, call.context.request_id)
                ),
                lambda call, wire: infer.decode_reply(call, wire, wire.view),
                infer.encode_reply,
            ),
            StreamInferRequest: Handling(partial(_write_stream, infer, found)),
            **calls,
            ServerMetadataRequest: replace(
                calls[ServerMetadataRequest],
                encode_reply=lambda call, reply: write_server(
                    call, advertised_extensions(reply, self._extensions)
                ),
            ),
            ModelReadyRequest: replace(
                calls[ModelReadyRequest],
                by_status=lambda wire: False if wire.status in NOT_READY else None,
            ),
        }

    def decode_call(self, wire: GrpcRequest, request_id: str = "", /) -> Call[Any]:
        """Read a client's request; tensors are views into its message.

        An inference without an id has *request_id*.
        """
        if wire.method == INFER:
            return self._infer.decode_call(wire, request_id)
        if wire.method == STREAM:
            return _decode_stream(self._infer, wire)
        view = wire.view
        found = CALL_READERS.get(wire.method)
        if found is not None:
            kind, read = found
            require_enabled(kind, self._extensions)
            management.check_size(wire.method, view, self._limits)
            return apply_policy(
                read(view, context_of(wire), self._limits), self._extensions, self._limits
            )
        plain = management.CALL_READERS.get(wire.method)
        if plain is None:
            raise unknown_method(wire.method)
        management.check_size(wire.method, view, self._limits)
        return apply_policy(
            plain(view, context_of(wire), self._limits), self._extensions, self._limits
        )

    def inferred_model(self, wire: GrpcRequest, /) -> ModelRef | None:
        """Return the model of an inference request; None for any other."""
        if wire.method not in (INFER, STREAM):
            return None
        model, limits = named_in(wire.view)[0], self._limits
        is_usable = is_usable_name("model name", model.name, limits.model_name_bytes)
        if not is_usable or not is_usable_name("model version", model.version, limits.name_bytes):
            return None
        return model

    def decode_for_server(
        self, wire: GrpcRequest, dialect: str, request_id: str = "", /
    ) -> Call[Any] | None:
        """Read an inference request as a server of *dialect* reads it; None if it is as strict."""
        server = READERS.get(dialect)
        if server is None or not server.reads_as_numpy:
            return None
        message = rewritten(wire.view, any_field=server.reads_any_contents)
        strict = GrpcRequest(
            wire.method, (message,), wire.metadata, wire.deadline, client=wire.client
        )
        request = self._infer.decode_call(strict, request_id, reserves_keys=False)
        if wire.method == INFER:
            return request
        return StreamInferRequest(model=request.model, context=request.context, request=request)

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> GrpcResponse:
        """Write one item of a stream, with its mark on the last one."""
        if item.error is not None:
            return self._streams.error(call, item.error, final=item.is_final)
        return self._streams.item(call, item)

    def is_terminal(self, _call: StreamInferRequest, _error: errors.GatewayError, /) -> bool:
        """Return False: the error of a message is a message, and the stream goes on."""
        return False

    def writes_end_mark(self, call: StreamInferRequest, /) -> bool:
        """Return whether the client requested the mark, which is a message without outputs."""
        return asks_empty_final(call)

    def encode_end(
        self, call: StreamInferRequest, last: InferResponse | None, /
    ) -> GrpcResponse | None:
        """Mark the end of a stream, where the client requested that."""
        return self._streams.end(call, last)

    def encode_late_error(
        self, call: StreamInferRequest, error: errors.GatewayError, /
    ) -> GrpcResponse:
        """Write an error that ends the items of one request; the stream continues."""
        return self._streams.error(call, error, final=True)

    def encode_error(self, call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as status and details; those of an upstream are unchanged.

        An error of a stream's request is a message without a status, which would end other
        requests.
        """
        if isinstance(error, errors.UnknownToServer) and isinstance(call, ModelReadyRequest):
            return self.encode_reply(call, False)  # as Triton: its clients would raise an error
        request = call if isinstance(call, StreamInferRequest) else stream_message(error)
        if request is not None:
            return self._streams.error(request, error, final=True)
        return ERRORS.write(error, self._limits)

    def encode_call(self, call: Call[Any], /) -> GrpcRequest:
        """Write a request to an upstream, all tensors raw.

        Raises:
            Unsupported: The dialect cannot carry it.
            TooLarge: The server accepts no request of this size.
        """
        plain = None if self._write_plain is None else self._write_plain(call)
        return super().encode_call(call) if plain is None else plain

    def encode_cut_through(self, call: Call[Any], /) -> GrpcRequest | None:
        """Write a request that ends in inputs which have not arrived; None where it cannot."""
        rest = streaming_body_of(call)
        if rest is None or not can_cut_through(call):
            return None
        wire = self.encode_call(call)
        inserts = between(call.inputs)  # each tensor has a field of its own
        if inserts:
            rest = InterleavedBody(rest, inserts)
        return GrpcRequest(wire.method, wire.message, wire.metadata, wire.deadline, rest)

    def decode_reply(self, call: Call[R], wire: GrpcResponse, /) -> R:
        """Read an upstream's response to *call*; tensors are views into its message.

        Raises:
            GatewayError: The error in the upstream's status.
            MalformedMessage: The response cannot be read, or belongs to another call.
        """
        plain = self._read_plain(call, wire)
        if plain is not None:
            # An InferRequest's R is InferResponse: the type system cannot follow that.
            return cast("R", plain)
        return super().decode_reply(call, wire)

    def error_in(self, call: Call[Any], wire: GrpcResponse, /) -> errors.GatewayError | None:
        """Return the error of an upstream's status; None for a success."""
        return ERRORS.read(call.model, wire)

    def decode_item(self, call: StreamInferRequest, wire: GrpcResponse, /) -> InferResponse:
        """Read one item of an upstream's stream; raises as `decode_reply`.

        An error that does not end the items of the request is an item with that error.
        """
        if wire.status is not _OK:
            raise cast("errors.GatewayError", self.error_in(call, wire))
        reply: InferResponse
        read = partial(_read_item, self._infer, self._dialect)
        error_text, reply = read_response(read, call, wire)
        if not error_text:
            return reply
        text = clip(strip_traceback(error_text), self._limits.error_text_bytes)
        if reply.is_final:
            raise error_of_text(text, call.model)
        return reply.changed(outputs=(), error=error_of_text(text, call.model))


def _handling(messages: CallMessages, dialect: GrpcDialect, limits: MessageLimits) -> Handling:
    return Handling(
        partial(_write_call, messages, dialect),
        lambda call, wire: messages.read_reply(call, wire.view, limits),
        partial(_write_reply, messages),
    )


def _write_call(messages: CallMessages, dialect: GrpcDialect, call: Call[Any]) -> GrpcRequest:
    if call.model is not None:
        check_version(dialect, call.model)
    check_asked(call, dialect)
    method, message = messages.write_call(call, dialect)
    return unary_request(call, SERVICE + method, (message.SerializeToString(),))


def _write_reply(messages: CallMessages, call: Call[Any], reply: object) -> GrpcResponse:
    return GrpcResponse((messages.write_reply(call, reply).SerializeToString(),))


def _decode_stream(infer: Inferences, wire: GrpcRequest) -> StreamInferRequest:
    try:
        request = infer.decode_call(wire)
    except errors.GatewayError as error:
        # There is no call with the id of the error's message.
        error.origin = error.origin or Origin(NAME, wire)
        raise
    return StreamInferRequest(model=request.model, context=request.context, request=request)


def _write_stream(infer: Inferences, dialect: GrpcDialect, call: StreamInferRequest) -> GrpcRequest:
    if call.model is not None:
        check_version(dialect, call.model)
    if not dialect.has_streams:
        raise errors.Unsupported(f"the dialect {dialect.name!r} has no streams")
    message = infer.encode_call(call.request, call.context.request_id)
    return unary_request(call, STREAM, message)


def _read_item(
    infer: Inferences, dialect: GrpcDialect, call: StreamInferRequest, wire: GrpcResponse
) -> tuple[str, InferResponse]:
    read, view = partial(infer.decode_reply, call.request, wire, stream=True), wire.view
    if dialect.has_plain_streams:
        return "", read(view, final=False)
    error_text, answer = open_envelope(view)
    return error_text, read(answer)
