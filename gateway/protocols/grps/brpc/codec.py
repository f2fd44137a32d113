"""The grps brpc codec: a table of functions between baidu_std frames and calls.

A failure is in the Status of a message and the call has error_code 0, as over gRPC.  Only a request
that does not reach a service (unknown service or method, unreadable message, overload) has an error
code; its response has no message.  Attachments are skipped, and sent only with requests that are
sent on.

The ids of traces in brpc have 64 bits: the second half of those of W3C.  There is no field for the
state of a trace, nor for its sampling: brpc sends ids only of calls that it samples.

Source: docs/protocols/grps.md, "6. Status and errors", "12. brpc frames"; brpc, "rpcz"; W3C Trace
Context, "Interoperating with existing systems which use shorter identifiers".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace  # noqa: TID251  # of a frame, not of a call

from gateway.api.protocol import Codec
from gateway.ir import errors
from gateway.ir.calls import Call, StreamInferRequest
from gateway.ir.context import Context, Metadata, Origin
from gateway.ir.limits import MessageLimits
from gateway.ir.work import inflated
from gateway.protocols.grps import methods
from gateway.protocols.grps.brpc.compression import (
    NAMES,
    NONE,
    NUMBERS,
    compress,
    decompress,
    most_elements,
)
from gateway.protocols.grps.brpc.framing import frame_bytes, split_frame, words
from gateway.protocols.grps.content import ReplyFormat
from gateway.protocols.grps.errors import (
    NoMethod,
    NoService,
    Unreadable,
    brpc_code_of,
    ends_call,
    error_class_of_brpc,
)
from gateway.protocols.grps.messages import GrpsMessage
from gateway.protocols.grps.options import read_options
from gateway.protocols.grps.protobuf.message import read_message, write_message
from gateway.schema import grps_pb2 as pb
from gateway.schema.baidu_std_pb2 import RpcMeta, RpcRequestMeta, RpcResponseMeta
from gateway.wire.errors import clip, passed_failure, strip_traceback
from gateway.wire.heads.request_id import valid_request_id
from gateway.wire.http import Buffer
from gateway.wire.protobuf.plain import is_plain_message, with_texts
from gateway.wire.stream import Frame

NAME: Final = "grps.brpc"
SERVICE: Final = "grps.protos.v1.GrpsBrpcService"
SHORT_SERVICE: Final = "GrpsBrpcService"

METHODS: Final = tuple(
    [method for method in methods.METHODS if method != methods.PREDICT_STREAMING]
)

_MODEL: Final = pb.GrpsMessage.DESCRIPTOR.fields_by_name["model"].number
_SHOWN: Final = 128
_HEADER: Final = "traceparent"
_FORM: Final = re.compile(r"00-[0-9a-f]{16}([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f][13579bdf]")
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class UpstreamErrorText:
    """Error code and text of an upstream, for a caller of this protocol."""

    code: int
    text: str


class BrpcMessages:
    """How frames pass: with the bytes of their message, and metadata of our own.

    Args:
        limits: The limits of a message.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._most = limits.message_bytes

    def is_plain(self, wire: Frame, /) -> bool:
        """Return whether all readers of a message read the same."""
        try:
            return is_plain_message(
                self.decompressed(*split_frame(wire.view)), pb.GrpsMessage.DESCRIPTOR
            )
        except Unreadable:
            return False

    def passed(self, reply: Origin, /) -> Frame:
        """Return the response of a server as the client gets it, but for its correlation.

        It has no attachment: clients of grps expect none.
        """
        meta, rest = split_frame(reply.wire.view)
        found = RpcMeta(response=RpcResponseMeta(error_code=0), compress_type=meta.compress_type)
        return Frame(frame_bytes(found.SerializeToString(), [message_in(meta, rest)]))

    def decompressed(self, meta: RpcMeta, rest: memoryview) -> memoryview:
        """Return the message before the attachment. Raises Unreadable where there is none."""
        return decompress(meta.compress_type, message_in(meta, rest), self._most)


def message_in(meta: RpcMeta, rest: memoryview) -> memoryview:
    """Return the compressed message, which precedes the attachment.

    Raises:
        Unreadable: The attachment has an impossible size.
    """
    attached = meta.attachment_size
    if not 0 <= attached <= len(rest):
        raise Unreadable(f"attachment_size={attached} is larger than request_size={len(rest)}")
    return rest[: len(rest) - attached]


class BrpcCodec(Codec[Frame, Frame]):
    """Reads and writes the frames of `grps.protos.v1.GrpsBrpcService`.

    Args:
        limits: The limits of a message.
        options: The checked options of its listener or upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = methods.NEEDS

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        self._limits = limits
        self._settings = read_options(options)
        self.whole = "" if self._settings.changes_messages else NAME
        self.messages: BrpcMessages = BrpcMessages(limits)
        self._compress = NUMBERS[self._settings.compress]
        carrier = methods.GrpsCarrier(NAME, self._ask, self._message_of, _response_to)
        self.calls = methods.handlings(carrier, self._settings, limits)
        del self.calls[StreamInferRequest]

    def decode_call(self, wire: Frame, _request_id: str = "", /) -> Call[Any]:
        """Read a client's frame; float tensors and bytes are views of it unless compressed.

        Raises:
            NoService: The service does not exist.
            NoMethod: The service has no such method.
            Unreadable: The bytes are not a message, or its attachment or compression is impossible.
            GatewayError: The message is wrong, or exceeds a limit.
        """
        meta, rest = split_frame(wire.view)
        method = _method_of(meta.request)
        message = self._message(meta, rest)
        request_id = valid_request_id(words(meta.request.request_id))
        form = ReplyFormat(message.form, key=message.model)
        whole = self.whole if method == methods.PREDICT else ""
        origin = Origin(NAME, wire, form, whole=whole)
        metadata = trace_headers(meta.request) if meta.request.trace_id else ()
        context = Context(
            NAME,
            metadata,
            request_id,
            wire.deadline,
            None,
            methods.REPLY_NEEDS,
            origin,
            wire.client,
        )
        return methods.decode_method(method, message, context, self._settings, self._limits)

    def send_on(self, call: Call[Any], message: Origin, /) -> Frame:
        """Write a client's message to a server, with the target's model and compression."""
        meta, rest = split_frame(message.wire.view)
        key, attached = methods.model_key(call.model, self._settings), meta.attachment_size
        number = self._compress or meta.compress_type
        parts: list[Buffer] = [rest]
        if key != message.form.key or number != meta.compress_type:
            plain = self.messages.decompressed(meta, rest)
            parts = _compressed(number, with_texts(plain, {_MODEL: key}))
            parts.append(rest[len(rest) - attached :])
        return _request(call, methods.PREDICT, number, parts, attached)

    def pass_on(self, call: Call[Any], reply: Origin, /) -> Frame:
        """Write the response of a server to the client."""
        return replace(self.messages.passed(reply), correlation=_correlation(call))

    def encode_error(self, call: Call[Any] | None, error: errors.GatewayError, /) -> Frame:
        """Write *error* as a message whose Status is FAILURE, or as an error code.

        Never raises.
        """
        correlation = None if call is None else _correlation(call)
        error_text = None if error.origin is None else error.origin.form
        if isinstance(error_text, UpstreamErrorText):
            return _refusal(error_text, correlation)
        passed = None if call is None else passed_failure(call, error, self._limits)
        # A compressed text may hold a traceback.
        if call and passed and split_frame(passed.wire.view)[0].compress_type == NONE:
            return self.pass_on(call, passed)
        # Before a service was called: a server that shuts down sends ELOGOFF, and clients may retry
        # with another server.
        stopping = call is None and error.code is errors.ErrorCode.UNAVAILABLE
        if not (stopping or ends_call(error, unread=call is None)):
            return _response(methods.failure_of(error, self._limits), correlation)
        code = brpc_code_of(error)
        text = clip(f"[E{code}]{error.message}", self._limits.error_text_bytes)
        return _refusal(UpstreamErrorText(code, text), correlation)

    def _ask(self, call: Call[Any], method: str, message: GrpsMessage) -> Frame:
        parts = _compressed(self._compress, write_message(message))
        return _request(call, method, self._compress, parts)

    def _message_of(self, call: Call[Any], wire: Frame) -> GrpsMessage:
        """Read the message of an upstream's response.

        Raises:
            GatewayError: The error in its error code.
            Unreadable, TooLarge: The response cannot be used.
        """
        meta, rest = split_frame(wire.view)
        response = meta.response
        if not response.error_code:
            return self._message(meta, rest)
        text = clip(strip_traceback(words(response.error_text)), self._limits.error_text_bytes)
        text = text or f"upstream responded with the code {response.error_code}"
        origin = Origin(NAME, wire, UpstreamErrorText(response.error_code, text))
        kind = error_class_of_brpc(response.error_code)
        raise kind(text, model=call.model, origin=origin)

    def _message(self, meta: RpcMeta, rest: memoryview) -> GrpsMessage:
        """Read the message of a frame, which precedes the attachment.

        Raises:
            Unreadable: It cannot be found, decompressed or read.
            GatewayError: The message is wrong, or exceeds a limit.
        """
        data = message_in(meta, rest)
        if meta.content_type:
            raise self._unparsed(meta, rest, f"content_type {meta.content_type} is not protobuf")
        try:
            plain = decompress(meta.compress_type, data, self._limits.message_bytes)
            if meta.compress_type == NONE:
                return read_message(plain, self._limits)
            return inflated(most_elements(data), read_message, plain, self._limits)
        except Unreadable as error:
            raise self._unparsed(meta, rest, error.message) from error

    def _unparsed(self, meta: RpcMeta, rest: memoryview, why: str) -> Unreadable:
        kind = NAMES.get(meta.compress_type, "unknown")
        return Unreadable(
            f"Fail to parse request message, CompressType={kind}, request_size={len(rest)}: {why}"
        )


def _method_of(request: RpcRequestMeta) -> str:
    """Return the called method.

    Raises:
        NoService: No service has this short name.
        NoMethod: The method does not exist, or no service has this full name.
    """
    service = clip(words(request.service_name), _SHOWN)
    method = clip(words(request.method_name), _SHOWN)
    if "." not in service and service != SHORT_SERVICE:
        raise NoService(f"Fail to find service={service}")
    if service not in (SERVICE, SHORT_SERVICE) or method not in METHODS:
        raise NoMethod(f"Fail to find method={service}/{method}")
    return method


def _compressed(number: int, parts: Sequence[Buffer]) -> list[Buffer]:
    return list(parts) if number == NONE else [compress(number, b"".join(parts))]


def _request(
    call: Call[Any], method: str, number: int, parts: list[Buffer], attached: int = 0
) -> Frame:
    """Return a request to an upstream.

    Args:
        call: What is sent.
        method: The method.
        number: How the message is compressed.
        parts: The compressed message, and an attachment.
        attached: The size of the attachment.
    """
    request = RpcRequestMeta(service_name=SERVICE, method_name=method)
    if call.context.request_id:
        request.request_id = call.context.request_id
    if call.context.metadata:
        write_trace(request, call.context.metadata)
    meta = RpcMeta(request=request, compress_type=number)
    if attached:
        meta.attachment_size = attached
    payload = frame_bytes(meta.SerializeToString(), parts)
    return Frame(payload, None, call.context.deadline)


def _response(message: GrpsMessage, correlation: int | None) -> Frame:
    return Frame(frame_bytes(_OK_META, list(write_message(message))), correlation)


def _response_to(call: Call[Any], message: GrpsMessage) -> Frame:
    return _response(message, _correlation(call))


def _refusal(error_text: UpstreamErrorText, correlation: int | None) -> Frame:
    response = RpcResponseMeta(error_code=error_text.code, error_text=error_text.text)
    meta = RpcMeta(response=response, compress_type=NONE)
    return Frame(frame_bytes(meta.SerializeToString(), []), correlation)


def _correlation(call: Call[Any]) -> int | None:
    origin = call.context.origin
    if origin is not None and isinstance(origin.wire, Frame):
        return origin.wire.correlation
    return None


_OK_META: Final = RpcMeta(
    response=RpcResponseMeta(error_code=0), compress_type=NONE
).SerializeToString()


def trace_headers(request: RpcRequestMeta) -> Metadata:
    """Return the header for the ids in *request*; none if an id is absent."""
    if not request.trace_id or not request.span_id:
        return ()
    return ((_HEADER, f"00-{request.trace_id % _WRAP:032x}-{request.span_id % _WRAP:016x}-01"),)


def write_trace(request: RpcRequestMeta, metadata: Metadata) -> None:
    """Write the ids in *metadata*, if it has those of a sampled trace, into *request*."""
    for name, value in metadata:
        found = _FORM.fullmatch(value) if name == _HEADER else None
        if found is not None:
            request.trace_id, request.span_id = (_signed(digits) for digits in found.groups())
            return


def _signed(digits: str) -> int:
    """Return 16 hexadecimal digits as an int64."""
    number = int(digits, 16)
    return number - _WRAP if number >= _SIGN else number
