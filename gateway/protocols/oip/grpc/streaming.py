"""Messages of ModelStreamInfer: responses or errors in an envelope, and plain responses.

Triton, OVMS and this gateway wrap each response in a ModelStreamInferResponse, so that the error of
one request is a message and the stream continues.  MLServer sends bare ModelInferResponse messages
and ends the stream at the first error.

Source: docs/protocols/open-inference.md, "10. Streams"; the recorded exchanges 165, 185 to 188 and
229.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.ir.calls import InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef, Parameter
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    Unavailable,
    UpstreamError,
)
from gateway.protocols.oip.errors import text_of
from gateway.protocols.oip.grpc.context import NAME
from gateway.protocols.oip.grpc.encode import InferEncoder
from gateway.protocols.oip.grpc.management import SERVICE
from gateway.protocols.oip.outputs import with_c_values
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.errors import GRPC_STATUS
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.protobuf.library import parse
from gateway.wire.protobuf.wire_format import (
    LEN,
    Parts,
    WireError,
    fields,
    put_message,
    put_text,
    tag,
    text,
    varint,
)

STREAM: Final = SERVICE + "ModelStreamInfer"
FINAL: Final = "triton_final_response"

_STATUS_ERRORS: Final = ("triton_grpc_error", "true")
_ERROR, _ANSWER = tag(1, LEN), tag(2, LEN)
_ERROR_KEY, _ANSWER_KEY = varint(_ERROR), varint(_ANSWER)
_MODEL_NAME, _MODEL_VERSION, _ID = tag(1, LEN), tag(2, LEN), tag(3, LEN)
_ENVELOPE_FIELDS = 64
# An error in a stream has no status: these texts of Triton 2.51 identify that of its unary form.
_KINDS: Final[Mapping[str, type[GatewayError]]] = {
    "is not at ready state": NotReady,
    "Request for unknown model": ModelNotFound,
    **dict.fromkeys(
        (
            "missing required input(s)",
            "unexpected inference input",
            "unexpected inference output",
            "unexpected shape for input",
            "unexpected additional input data for model",
            "input byte size mismatch for input",
            "batch size does not match other inputs",
            "has no shape but model requires batch dimension",
            "data-type is '",
            "batch-size must be <=",
            "must specify the START flag",
            "must specify a non-zero or non-empty correlation ID",
        ),
        InvalidRequest,
    ),
    "Exceeds maximum queue size": Unavailable,
    "Request timeout expired": Unavailable,
}


@dataclass(frozen=True, slots=True)
class StreamForm:
    """The form of the items of one request.

    Attributes:
        has_empty_final: An item without outputs marks the end, where no other item did.
    """

    has_empty_final: bool


class StreamReplyEncoder:
    """Writes the messages of a server's stream.

    Args:
        writer: Writes the responses inside.
        error_text_bytes: Longest text of an error.
    """

    def __init__(self, writer: InferEncoder, error_text_bytes: int) -> None:
        self._writer = writer
        self._error_text_bytes = error_text_bytes

    def item(self, call: StreamInferRequest, item: InferResponse) -> GrpcResponse:
        """Write one item; the data of large tensors are not copied."""
        parameters = {**item.parameters, FINAL: item.is_final}
        outputs = with_c_values(call.request, item).outputs
        inner = self._writer.response(item.model, call.request.id, parameters, outputs)
        return GrpcResponse(_envelope(inner))

    def end(self, call: StreamInferRequest, last: InferResponse | None) -> GrpcResponse | None:
        """Write the mark of the end of one request's items, where the client requested it."""
        if not asks_empty_final(call) or (last is not None and last.is_final):
            return None
        model = ModelRef("" if call.model is None else call.model.name)
        return GrpcResponse(
            _envelope(self._writer.response(model, call.request.id, {FINAL: True}, ()))
        )

    def error(
        self, request: StreamInferRequest | GrpcRequest, error: GatewayError, *, final: bool
    ) -> GrpcResponse:
        """Write an error of one request: in a message with its id, or as the end of the stream.

        Args:
            request: The request; its message where it could not be read.
            error: The failure.
            final: Whether no item of the request follows.
        """
        details = text_of(error, self._error_text_bytes)
        if isinstance(request, GrpcRequest):
            metadata = request.metadata
            found, request_id = named_in(request.view)
            model = found.name
        else:
            metadata = request.context.metadata
            model = "" if request.model is None else request.model.name
            request_id = request.request.id
        if _STATUS_ERRORS in metadata:
            return GrpcResponse(status=status_of(error), details=details)
        head = bytearray()
        put_text(head, _ERROR_KEY, details)
        inner = self._writer.response(ModelRef(model), request_id, {FINAL: final}, ())
        return GrpcResponse(_envelope(inner, head))


def asks_empty_final(call: StreamInferRequest) -> bool:
    """Return whether the client wants a mark at the end of its items."""
    origin = call.context.origin
    return (
        origin is not None and isinstance(origin.form, StreamForm) and origin.form.has_empty_final
    )


def stream_message(error: GatewayError) -> GrpcRequest | None:
    """Return the message of a stream that *error* is about, where it could not be read."""
    origin = error.origin
    if origin is None or origin.codec != NAME or not isinstance(origin.wire, GrpcRequest):
        return None
    return origin.wire if origin.wire.method == STREAM else None


def status_of(error: GatewayError) -> GrpcStatus:
    """Return the status of *error*: that of an upstream, where it has one."""
    origin = error.origin
    if origin is not None and origin.codec == NAME and isinstance(origin.wire, GrpcResponse):
        return origin.wire.status or GRPC_STATUS[error.code]
    return GRPC_STATUS[error.code]


def open_envelope(view: memoryview) -> tuple[str, memoryview]:
    """Return the error text, "" for none, and the response in a ModelStreamInferResponse.

    Raises:
        MalformedMessage: The bytes are not such a message.
    """
    try:
        found = fields(view, _ENVELOPE_FIELDS)
        errors = [text(value, "error_message") for key, value in found if key == _ERROR]
        answers = [value for key, value in found if key == _ANSWER]
    except WireError:
        answers = errors = []
    if len(answers) == 1 and len(errors) <= 1:
        return (errors or [""])[0], answers[0]
    message = parse(view, pb.ModelStreamInferResponse)  # the library merges repeated fields
    return message.error_message, memoryview(message.infer_response.SerializeToString())


def error_of_text(message: str, model: ModelRef | None) -> GatewayError:
    """Return the error of a message, which has a text and no status."""
    for words, kind in _KINDS.items():
        if words in message:
            return kind(message, model=model)
    return UpstreamError(message, model=model)


def split_final_mark(parameters: Mapping[str, Parameter]) -> tuple[bool, dict[str, Parameter]]:
    """Remove the mark of the last item from a response's parameters; without one it is not marked.

    A server without the mark sends one response (an error before the model ran, for example).
    """
    rest = dict(parameters)
    return rest.pop(FINAL, True) is not False, rest


def _envelope(inner: Parts, head: bytearray | None = None) -> Parts:
    parts: Parts = [bytearray() if head is None else head]
    put_message(parts, _ANSWER_KEY, inner)
    return parts


def named_in(view: memoryview) -> tuple[ModelRef, str]:
    """Return the model and the id of a message that could not be read otherwise."""
    model = version = request_id = ""
    try:
        for key, value in fields(view):
            if key == _MODEL_NAME:
                model = text(value, "model_name")
            elif key == _MODEL_VERSION:
                version = text(value, "model_version")
            elif key == _ID:
                request_id = text(value, "id")
    except WireError:
        pass  # the message is incomplete
    return ModelRef(model, version), request_id
