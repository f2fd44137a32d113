"""The GraphPipe codec for byte streams (TCP and unix sockets), and their framing.

The specification allows sockets and defines no framing.  The gateway uses the size-prefixed form of
flatbuffers: 4 bytes of size, little-endian, then the message.  Responses have the order of their
requests.  A stream has no address, so it serves one model; and no status, so every error is an
InferResponse with an error.

Source: docs/protocols/graphpipe.md, "8. Byte streams".
"""

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from gateway.api.protocol import Codec, Handling
from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import (
    GatewayError,
    MalformedMessage,
    NotFound,
    TooLarge,
    Unsupported,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.graphpipe import translate
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage
from gateway.protocols.graphpipe.flatbuffer_writer import (
    MAX_MESSAGE_BYTES,
    METADATA_REQUEST,
    error_response,
)
from gateway.protocols.graphpipe.messages import open_request
from gateway.protocols.graphpipe.options import read_options
from gateway.wire.errors import passed_failure
from gateway.wire.http import Buffer
from gateway.wire.stream import Frame

NAME: Final = "graphpipe.stream"

_SIZE: Final = Struct("<I")
_SMALLEST: Final = 8
_BEGUN: Final = 256  # sizes that are multiples of this begin with a zero
_METADATA_CALLS: Final = (
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)


class SizePrefixFramer:
    """Cuts a byte stream into messages by the size before each; the same on both sides.

    Args:
        limits: `message_bytes` is the most a frame may declare.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._most = min(limits.message_bytes, MAX_MESSAGE_BYTES)
        self._held = bytearray()
        self._wanted = 0
        self._fault: GatewayError | None = None
        self._has_begun = False

    @property
    def wanted(self) -> int:
        """Bytes of the incomplete frame, its size included; 0 between frames."""
        return self._wanted

    @property
    def held(self) -> int:
        """Bytes of it that have come."""
        return len(self._held)

    @property
    def fault(self) -> GatewayError | None:
        """The error after which nothing more can be read; None for none."""
        return self._fault

    def receive(self, data: bytes, /) -> list[Frame]:
        """Return the frames that *data* completes; b"" is the end of the stream.

        A frame that arrives in one piece is a view of it.  Other frames are collected as they
        arrive; no memory is allocated for their declared size.

        Raises:
            MalformedMessage: The stream ends inside a frame, or a size is impossible.
            TooLarge: A frame declares more than the limit.
        """
        if self._fault is not None:
            raise self._fault
        if not data:
            if self._wanted:
                raise MalformedMessage(
                    f"stream ended after {len(self._held)} of {self._wanted} bytes of a frame"
                )
            return []
        if not self._wanted:
            return self._cut(data)
        self._held += data
        if len(self._held) < self._wanted:
            return []
        return self._cut(self._held)

    def send(self, frame: Frame, /) -> list[Buffer]:
        """Return the buffers that carry *frame*; the payload is not copied.

        Raises:
            TooLarge: It has 2 GiB or more.
        """
        size = sum([memoryview(part).nbytes for part in frame.payload])
        if size > MAX_MESSAGE_BYTES:
            raise TooLarge(
                f"GraphPipe message has {size} bytes, at most {MAX_MESSAGE_BYTES} are possible",
                limit="message_bytes",
            )
        if not self._has_begun:
            return [_SIZE.pack(size), *frame.payload]
        self._has_begun = False
        padding = bytes(-size % _BEGUN)
        return [_SIZE.pack(size + len(padding))[1:], *frame.payload, padding]

    def incomplete(self) -> Frame | None:
        """Return a frame without a payload, as soon as the size is known."""
        return Frame(()) if self._wanted else None

    def begin(self) -> bytes:
        """Return a zero, the first byte of the next frame's size.

        The message is padded with zeros to a size that begins with it; readers of flatbuffers
        ignore them.
        """
        if self._has_begun:
            return b""
        self._has_begun = True
        return b"\0"

    def _cut(self, data: bytes | bytearray) -> list[Frame]:
        frames: list[Frame] = []
        start, end = 0, len(data)
        wanted = _SIZE.size
        while end - start >= _SIZE.size:
            try:
                wanted = _SIZE.size + self._checked(data, start)
            except GatewayError as fault:
                self._fault = fault
                if not frames:
                    raise
                break  # the frames before the error are returned
            if end - start < wanted:
                break
            view = memoryview(data).toreadonly()
            frames.append(Frame((view[start + _SIZE.size : start + wanted],)))
            start += wanted
            wanted = _SIZE.size
        self._wanted = wanted if start < end else 0
        if start or data is not self._held:  # frames are views of the old buffer: use a new one
            self._held = bytearray(data[start:]) if start else bytearray(data)
        return frames

    def _checked(self, data: bytes | bytearray, start: int) -> int:
        size: int = _SIZE.unpack_from(data, start)[0]
        if size < _SMALLEST:
            raise MalformedMessage(
                f"frame declares {size} bytes: the shortest GraphPipe message has {_SMALLEST}"
            )
        if size > self._most:
            word = data[start : start + _SIZE.size]
            if word.isascii() and word.decode().isprintable():
                raise MalformedMessage(
                    f"frame begins with {word.decode()!r}, which is text, such as HTTP: expected "
                    "the size of a GraphPipe message, 4 bytes, little-endian"
                )
            raise TooLarge(
                f"frame declares {size} bytes, at most {self._most} are allowed",
                limit="message_bytes",
            )
        return size


class FlatbufferFrames:
    """How messages pass: positions in a buffer leave readers no choice, and all were checked."""

    def is_plain(self, _wire: Frame, /) -> bool:
        """Return True: all readers of a request read the same."""
        return True

    def passed(self, reply: Origin, /) -> Frame:
        """Return the response of a server as the client gets it."""
        return Frame(reply.wire.payload)


class GraphPipeStreamCodec(Codec[Frame, Frame]):
    """GraphPipe over byte streams, in both directions.

    Args:
        limits: The limits of a message.
        options: The checked options; those of a listener have `default_model`.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    limitations = translate.LIMITATIONS
    messages = FlatbufferFrames()

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._settings = read_options(options or {})
        self.needs = translate.needs_of(self._settings)
        self.whole = "" if self._settings.changes_messages else NAME
        self._read = read = translate.reply_reader(NAME, self._settings, limits, self.whole)
        self.calls = {
            **dict.fromkeys(_METADATA_CALLS, Handling(_question, read)),
            InferRequest: Handling(
                lambda call: Frame(
                    translate.encode_infer(call, self._settings), None, call.context.deadline
                ),
                self._read_inference,
                lambda call, reply: Frame(
                    translate.encode_infer_reply(reply, _requested_names(call))
                ),
            ),
            ModelMetadataRequest: Handling(
                _question, read, lambda _call, reply: Frame((translate.encode_metadata(reply),))
            ),
            ServerLiveRequest: Handling(_question, by_status=lambda _wire: True),
        }

    def decode_call(self, wire: Frame, _request_id: str = "", /) -> Call[Any]:
        """Read a client's message; inputs are views of it.

        Raises:
            InvalidRequest: The message is wrong.
            NotFound: The listener has no default model.
            TooLarge: A limit is exceeded.
        """
        message = FlatbufferMessage(wire.view, self._limits)
        at = open_request(message)
        model = self._settings.default_model
        if model is None:
            raise NotFound(
                "a GraphPipe stream names no model: expected a default model (default_model)"
            )
        if at is None:
            return ModelMetadataRequest(model=model, context=_context(wire, model, self.whole))
        return translate.decode_infer(
            message, at, model, lambda names: _context(wire, names, self.whole), self._settings
        )

    def send_on(self, call: Call[Any], message: Origin, /) -> Frame:
        """Write a client's message to a server.

        Raises:
            Unsupported: It asks for metadata of a model that has another name here.
        """
        if isinstance(message.form, ModelRef) and call.model != message.form:
            raise Unsupported("metadata have the name of the model", model=call.model)
        return Frame(message.wire.payload, None, call.context.deadline)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> Frame:
        """Write *error* as an InferResponse, also for a metadata request. Never raises."""
        passed = None if call is None else passed_failure(call, error, self._limits)
        if passed is not None:
            return self.messages.passed(passed)
        number, text = translate.error_message(error, NAME, self._limits)
        return Frame((error_response(number, text),))

    def _read_inference(self, call: InferRequest, wire: Frame) -> Any:
        names = _requested_names(call)
        if self.sends_on(call) and len(set(names)) < len(names):  # the server repeats them
            call = call.changed(outputs=())
        return self._read(call, wire)


def _question(call: Call[Any]) -> Frame:
    return Frame((METADATA_REQUEST,), None, call.context.deadline)


def _context(wire: Frame, form: tuple[str, ...] | ModelRef, whole: str) -> Context:
    """Return the context of a message, with its names of outputs, or the model that it asks for."""
    origin = Origin(NAME, wire, form, whole=whole)
    return Context(NAME, (), "", wire.deadline, None, translate.REPLY_NEEDS, origin, wire.client)


def _requested_names(call: InferRequest) -> tuple[str, ...]:
    origin = call.context.origin
    if origin is not None and origin.codec == NAME and isinstance(origin.form, tuple):
        return origin.form
    return tuple([output.name for output in call.outputs])
