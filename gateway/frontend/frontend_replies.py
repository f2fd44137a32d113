"""FrontendReplies: encodes the replies and the errors of a frontend."""

import itertools
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from types import CoroutineType
from typing import Any, Final, TypeVar

import structlog

from gateway.api.protocol import Codec, CutThroughCodec, ServerReadingCodec, StreamCodec
from gateway.concurrency.offload import run_bounded_on_loop
from gateway.frontend.carriers import (
    AttachRequestId,
    ReadRequestId,
    metadata_of,
    no_request_id,
    without_request_id,
)
from gateway.ir.calls import (
    Call,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import (
    Client,
    ModelRef,
)
from gateway.ir.errors import (
    GatewayError,
)
from gateway.ir.redaction import without_addresses
from gateway.ir.stream_text import StreamText
from gateway.ir.streams import close_stream
from gateway.ir.unread import failure_of, path_of
from gateway.ir.work import LongWork
from gateway.model_info.decoupled_models import DecoupledModels
from gateway.model_info.known_inputs import KnownInputs
from gateway.model_info.server_dialects import ServerDialects
from gateway.service import Service, bound_call
from gateway.session import SessionReply
from gateway.telemetry.faults import internal_error
from gateway.telemetry.upstream_metrics import ByteCounter
from gateway.wire.decoupled import StreamsDecoupled
from gateway.wire.frontend import ServerFrontend
from gateway.wire.request_id import new_request_ids

_PROBES = frozenset({ServerLiveRequest, ServerReadyRequest, ModelReadyRequest})

log = structlog.get_logger(__name__)

Q = TypeVar("Q")

A = TypeVar("A")

BLOCKED_S: Final = 0.1
"""A request that blocks the event loop for longer is reported."""

OnRejected = Callable[[str, GatewayError], object]
"""Called for a request that reached no service: codec name, error."""


def _ignore(_codec: str, _error: GatewayError) -> None: ...


OnBlocked = Callable[[str, str, float], None]
"""Called for a request that blocked the event loop for long: codec name, model, seconds."""


def _ignore_blocked(_codec: str, _model: str, _seconds: float) -> None: ...


CheckInference = Callable[[Client, ModelRef], None]
"""Raises Forbidden if a client may not make any inference of a model."""


class FrontendReplies(ServerFrontend[Q, A]):
    """The output of a frontend, with its arguments."""

    _choose: Callable[[Call[Any]], Coroutine[Any, Any, A] | None] | None = None
    """Takes calls with one reply over from `handle`; None for the calls that it leaves to it."""

    _check_inference: CheckInference | None = None

    def __init__(
        self,
        codec: Codec[Q, A],
        service: Service,
        *,
        on_rejected: OnRejected = _ignore,
        attach_request_id: AttachRequestId[A] = without_request_id,
        read_request_id: ReadRequestId[Q] = no_request_id,
        message_bytes: ByteCounter | None = None,
        on_blocked: OnBlocked = _ignore_blocked,
    ) -> None:
        self._codec = codec
        # Bound once: looking up a method of an object of any class takes 300 instructions.
        self._decode, self._encode = codec.decode_call, codec.encode_reply
        self._service = bound_call(service)
        self._on_rejected = on_rejected
        self._attach_request_id = attach_request_id
        self._read_request_id = read_request_id
        self._bytes = message_bytes
        self._on_blocked = on_blocked
        # Request ids are unique in a process, and their random part differs between processes.
        self._request_ids = new_request_ids()
        self._sessions = itertools.count(1)
        self._decoupled_models = DecoupledModels(service)
        self._known_inputs = KnownInputs(service)
        self._dialects = ServerDialects(service)
        self._streams_decoupled: StreamsDecoupled | None = None
        if isinstance(codec, StreamsDecoupled):
            self._streams_decoupled = codec
        self._streaming: StreamCodec[Q, A] | None = None
        if isinstance(codec, StreamCodec):
            self._streaming = codec
        self._server_reading: ServerReadingCodec[Q, A] | None = None
        if isinstance(codec, ServerReadingCodec):
            self._server_reading = codec
        self._cut_through: CutThroughCodec[Q, A] | None = None
        if isinstance(codec, CutThroughCodec):
            self._cut_through = codec

    @abstractmethod
    def _write(self, encode: Callable[[Any, Any], A], call: Call[Any], reply: Any) -> Any:
        """Return *reply* as a response, or a coroutine that encodes it on another thread."""

    async def _stream(self, call: StreamInferRequest, wire: Q) -> AsyncGenerator[A, None]:
        if self._bytes is not None:
            self._bytes.count(request=wire)
        async with aclosing(self._replies(call)) as replies:
            async for reply in replies:
                if self._bytes is not None:
                    self._bytes.count(response=reply.wire)
                yield reply.wire

    async def _replies(
        self, call: Call[Any], service: Service | None = None
    ) -> AsyncGenerator[SessionReply[A], None]:
        """Yield the replies to *call*, of *service* or the own one; an error is the last one."""
        if not isinstance(call, StreamInferRequest):
            yield SessionReply(await self._single(call), is_only=True)
            return
        last: InferResponse | None = None
        text = StreamText()
        try:
            items = await (service or self._service)(call)
            try:
                async for item in items:
                    error = failure_of(item)
                    if error is not None and self._is_terminal(call, error, last):
                        raise error
                    if item.is_end_mark and not self._writes_end_mark(call):
                        continue
                    is_text = item.outputs and self._codec.has_only_text(call, item)
                    shown = text.complete(item) if is_text else item
                    response = await self._written_item(call, shown, last)
                    if last is None:
                        response = self._with_request_id(call, response)
                    is_only, last = last is None and item.is_final, item
                    yield SessionReply(response, is_only)
            finally:
                await close_stream(items)
            text.finish()
            end = None if self._streaming is None else self._streaming.encode_end(call, last)
            if end is not None:
                yield SessionReply(
                    end if last is not None else self._with_request_id(call, end), last is None
                )
        except Exception as error:  # noqa: BLE001
            failed = self._failed(call, error, late=last is not None)
            yield SessionReply(
                failed if last is not None else self._with_request_id(call, failed), is_only=True
            )

    async def _written_item(
        self, call: StreamInferRequest, item: InferResponse, last: InferResponse | None
    ) -> A:
        """Return one item of a stream as a response; as an error where it cannot be written.

        Raises:
            GatewayError: The error ends the stream.
        """
        try:
            written = self._write(self._codec.encode_item, call, item)
            response: A = await written if type(written) is CoroutineType else written
        except GatewayError as error:
            if self._is_terminal(call, error, last):
                raise
            error.__traceback__ = None  # its frames hold the item
            failed = InferResponse(
                model=item.model, outputs=(), is_final=item.is_final, error=without_addresses(error)
            )
            response = self._codec.encode_item(call, failed)
        return response

    def _is_terminal(
        self, call: StreamInferRequest, error: GatewayError, last: InferResponse | None
    ) -> bool:
        """Return whether an item that is an error ends the stream, after the item *last*."""
        streaming = self._streaming
        return streaming is None or (last is None and streaming.is_terminal(call, error))

    def _writes_end_mark(self, call: StreamInferRequest) -> bool:
        return self._streaming is not None and self._streaming.writes_end_mark(call)

    async def _single(self, call: Call[Any], service: Service | None = None) -> A:
        try:
            reply = await (service or self._service)(call)
            written = self._write(self._encode, call, reply)
            response = await written if type(written) is CoroutineType else written
        except Exception as error:  # noqa: BLE001
            response = self._failed(call, error)
        return self._with_request_id(call, response)

    def _with_request_id(self, call: Call[Any], response: A) -> A:
        return self._attach_request_id(response, call.context.request_id)

    def _failed(self, call: Call[Any], error: Exception, *, late: bool = False) -> A:
        """Return *error* in the protocol's form; anything but a `GatewayError` is a bug here."""
        model = call.model
        failure = error if isinstance(error, GatewayError) else internal_error(error, model)
        failure = without_addresses(failure)  # the log has them
        if late and self._streaming is not None and isinstance(call, StreamInferRequest):
            return self._streaming.encode_late_error(call, failure)
        return self._codec.encode_error(call, failure)

    def reject(self, error: GatewayError, /) -> A:
        """Return *error* in the protocol's form, for a message that reached no service.

        The response has the request id of *error*, or else a new one.
        """
        error.request_id = error.request_id or next(self._request_ids)
        self._on_rejected(self._codec.name, error)
        return self._attach_request_id(self._codec.encode_error(None, error), error.request_id)

    def note_request(self, wire: Q, error: GatewayError, /) -> None:
        """Note in *error* whatever its form depends on, of a request without its body."""
        error.path = path_of(wire)
        self._codec.note_request(wire, error)

    def _reject_unread(self, wire: Q, error: GatewayError, request_id: str) -> A:
        """Return *error* as the response to the complete message *wire*."""
        return self._reject_wire(wire, error, request_id)

    def _reject_wire(self, wire: Q, error: GatewayError, request_id: str = "") -> A:
        """Return *error* as the response to *wire*, which is not decoded."""
        self._identify(wire, error, request_id)
        response = self.reject(error)
        if self._bytes is not None:
            self._bytes.count(wire, response)
        return response

    def _identify(self, wire: Q, error: GatewayError, request_id: str = "") -> None:
        """Add client and headers of *wire* to *error*, and its request id, or else *request_id*."""
        error.client, error.path = getattr(wire, "client", None), path_of(wire)
        error.metadata = metadata_of(wire)
        error.request_id = self._read_request_id(wire) or request_id or next(self._request_ids)

    def is_probe(self, wire: Q, /) -> bool:
        """Return whether *wire* asks if the server or a model is live or ready."""
        try:
            return type(run_bounded_on_loop(self._decode, wire)) in _PROBES
        except Exception:  # noqa: BLE001  # `handle` raises it again and reports it
            return False

    def reject_message(self, wire: Q, error: GatewayError, /) -> A:
        """Return *error* as the response to *wire*, with the id of *wire* if it has one.

        A client matches the responses of a stream by their ids.
        """
        self._identify(wire, error)
        self._on_rejected(self._codec.name, error)
        call: Call[Any] | None = None
        try:
            call = run_bounded_on_loop(self._decode, wire)
        except LongWork:  # decoding would cost more than the id is worth
            pass
        except GatewayError as unread:
            error.origin = error.origin or unread.origin
        except Exception as bug:  # noqa: BLE001  # it must not hide *error*
            internal_error(bug)
        return self._attach_request_id(self._codec.encode_error(call, error), error.request_id)
