"""Frontend: decodes requests, calls a service and encodes its replies.

This is the only place where errors become responses.  It knows no protocol and no socket.
"""

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import Any, TypeVar, cast

import structlog

from gateway.api.protocol import Codec, CutThroughCodec, StreamCodec
from gateway.api.tap import Tap
from gateway.concurrency.offload import ON_LOOP, off_loop, run_bounded_on_loop
from gateway.frontend.call_reader import (
    BLOCKED_S,
    CallReader,
    CheckInference,
    OnBlocked,
    unread_error,
)
from gateway.frontend.carriers import (
    AttachHeaders,
    ReadRequestId,
    metadata_of,
    no_request_id,
    without_headers,
)
from gateway.frontend.tapped import TapStep
from gateway.ir.bodies.stream_text import StreamText
from gateway.ir.bodies.streams import HeldReply, close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
    sequence_of,
)
from gateway.ir.errors import (
    GatewayError,
)
from gateway.ir.redaction import without_addresses
from gateway.ir.unread import failure_of, path_of
from gateway.ir.work import BOUND, LongWork
from gateway.model_info.server_lookups import DecoupledModels
from gateway.service import Service, bound_call
from gateway.session import Session, SessionCall, SessionReply
from gateway.telemetry.faults import internal_error
from gateway.telemetry.upstream_metrics import ByteCounter
from gateway.wire.decoupled import StreamsDecoupled
from gateway.wire.frontend import ServerFrontend, SessionLimits
from gateway.wire.heads.request_id import new_request_ids
from gateway.wire.http import wire_bytes

Q = TypeVar("Q")
A = TypeVar("A")
C = TypeVar("C", bound=Call[Any] | None)

_PROBES = frozenset({ServerLiveRequest, ServerReadyRequest, ModelReadyRequest})

log = structlog.get_logger(__name__)

OnRejected = Callable[[str, GatewayError], object]
"""Called for a request that reached no service: codec name, error."""


def _ignore(_codec: str, _error: GatewayError) -> None: ...


def _ignore_blocked(_codec: str, _model: str, _seconds: float) -> None: ...


class Frontend(ServerFrontend[Q, A]):
    """The server side of one codec.

    Args:
        codec: Decodes requests and encodes replies.
        service: Handles calls.
        on_rejected: Called for each request that is rejected before it reaches *service*.
        attach_headers: Adds the request id and notes to a response; of a stream, to the first.
        read_request_id: Reads the request id of a request that is rejected.
        message_bytes: Counts the bytes of requests and responses; None to count none.
        on_blocked: Called for each request whose decoding or encoding blocked the event loop for
            more than 100 ms.
        tap: Receives the calls, their replies and the messages of both; None for no tap.

    Attributes:
        codec: Decodes requests and encodes replies.
        service: Handles the calls that begin now; see `replace_service`.
    """

    def __init__(  # noqa: PLR0913  # most by name
        self,
        codec: Codec[Q, A],
        service: Service,
        *,
        on_rejected: OnRejected = _ignore,
        attach_headers: AttachHeaders[A] = without_headers,
        read_request_id: ReadRequestId[Q] = no_request_id,
        message_bytes: ByteCounter | None = None,
        on_blocked: OnBlocked = _ignore_blocked,
        tap: Tap | None = None,
    ) -> None:
        self.codec = codec
        # Bound once: looking up a method of an object of any class takes 300 instructions.
        self._decode, self._encode = codec.decode_call, codec.encode_reply
        self.service = bound_call(service)
        self._on_rejected = on_rejected
        self._attach_headers = attach_headers
        self._read_request_id = read_request_id
        self._bytes = message_bytes
        self._reader = CallReader(codec, service, on_blocked)
        self._read = self._reader.read
        self._tap = None if tap is None else TapStep(tap, codec)
        # Request ids are unique in a process, and their random part differs between processes.
        self._request_ids = new_request_ids()
        self._sessions = itertools.count(1)
        self._decoupled_models = DecoupledModels(service)
        self._streams_decoupled: StreamsDecoupled | None = None
        if isinstance(codec, StreamsDecoupled):
            self._streams_decoupled = codec
        self._streaming: StreamCodec[Q, A] | None = None
        if isinstance(codec, StreamCodec):
            self._streaming = codec
        self._cut_through: CutThroughCodec[Q, A] | None = None
        if isinstance(codec, CutThroughCodec):
            self._cut_through = codec

    def replace_service(
        self,
        service: Service,
        check_inference: CheckInference | None = None,
        attach_headers: AttachHeaders[A] | None = None,
    ) -> None:
        """Send all calls that begin from now on to *service*, and keep nothing of the other one.

        Args:
            service: Handles calls.
            check_inference: Asked before the gateway itself asks about the model of a request;
                None if each client may use every model.
            attach_headers: Adds the request id and notes to the response; None for those as before.
        """
        if attach_headers is not None:
            self._attach_headers = attach_headers
        self.service = bound_call(service)
        self._decoupled_models = DecoupledModels(service)
        self._reader.replace_service(service, check_inference)

    async def __call__(self, wire: Q, /) -> AsyncGenerator[A, None]:
        """Yield the response to *wire*, or the responses of a stream. Raises no `GatewayError`."""
        handled = await self.handle(wire)
        if not isinstance(handled, AsyncGenerator):
            yield handled
            return
        async with aclosing(handled) as responses:
            async for response in responses:
                yield response

    async def handle(self, wire: Q, /) -> A | AsyncGenerator[A, None]:
        """Return the only response to *wire*, or a generator where it streams."""
        # This repeats `_decoded` and `_single`: their call frames would be a part of every request.
        request_id = next(self._request_ids)
        try:
            decoded = self._read(self._decode, wire, request_id)
            call: Call[Any] = await decoded if type(decoded) is CoroutineType else decoded
        except Exception as error:  # noqa: BLE001
            reread = await self._reader.read_for_server(wire, unread_error(error), request_id)
            if isinstance(reread, GatewayError):
                return self._reject_wire(wire, reread, request_id, is_whole=True)
            call = reread
        found = call.context.request_id
        if not found:
            call = call.with_context(request_id=request_id)
        if self._streams_decoupled is not None and type(call) is InferRequest:
            call = await self._as_stream(call, self._streams_decoupled)
        if type(call) is StreamInferRequest:
            return self._stream(call, wire)
        tap = self._tap
        if tap is not None and (exchange := tap.begin(call)) is not None:
            response = await tap.record(exchange, self._single, self.service)
            if self._bytes is not None:
                self._bytes.count(wire, response)
            return response
        service, attach_headers = self.service, self._attach_headers
        try:
            written = self._write(self._encode, call, await service(call))
            response = await written if type(written) is CoroutineType else written
        except Exception as error:  # noqa: BLE001
            response = self._failed(call, error)
        if self._bytes is not None:
            self._bytes.received += wire_bytes(wire)
            self._bytes.sent += wire_bytes(response)
        return attach_headers(response, found or request_id)

    def early_bytes(self, wire: Q, /) -> int | None:
        """Return how many bytes of a body `handle_early` needs; None for the whole body."""
        return None if self._cut_through is None else self._cut_through.early_bytes(wire)

    async def handle_early(
        self, wire: Q, whole: Callable[[], Awaitable[Q]], /
    ) -> A | AsyncGenerator[A, None]:
        """Return what `handle` returns, for a request of which `early_bytes` have arrived."""
        assert self._cut_through is not None  # noqa: S101  # `early_bytes` returned a number
        early = self._cut_through.decode_early
        call = await self._decoded(wire, lambda wire, _request_id: early(wire))
        if isinstance(call, GatewayError):
            return self._reject_wire(wire, call)
        if call is not None:
            response = await self._single(call)
            if self._bytes is not None:
                self._bytes.count(wire, response)
            return response
        try:
            wire = await whole()
        except GatewayError as error:
            return self._reject_wire(wire, error)
        return await self.handle(wire)

    async def session(
        self, wires: AsyncIterator[Q], limits: SessionLimits[Q, A], /
    ) -> AsyncGenerator[A, None]:
        """Yield the responses to the messages of one bidirectional stream.

        Several calls run at a time.  The generator ends after the last response to the last
        message.  Closing it cancels the calls.  Raises no `GatewayError`.

        Args:
            wires: The messages of the stream, read no faster than *limits* allows.
            limits: The limits of the transport.
        """
        number = next(self._sessions)
        session: Session[A] = Session(limits.max_calls)
        calls = (await self._session_call(wire, limits, number) async for wire in wires)
        async with aclosing(calls), aclosing(session.run(calls)) as responses:
            async for response in responses:
                if self._bytes is not None:
                    self._bytes.count(response=response)
                yield response

    def is_probe(self, wire: Q, /) -> bool:
        """Return whether *wire* asks if the server or a model is live or ready."""
        try:
            return type(run_bounded_on_loop(self._decode, wire)) in _PROBES
        except Exception:  # noqa: BLE001  # `handle` raises it again and reports it
            return False

    def reject(self, error: GatewayError, /) -> A:
        """Return *error* in the protocol's form, for a message that reached no service.

        The response has the request id of *error*, or else a new one.
        """
        error.request_id = error.request_id or next(self._request_ids)
        self._on_rejected(self.codec.name, error)
        return self._attach_headers(self.codec.encode_error(None, error), error.request_id)

    def note_request(self, wire: Q, error: GatewayError, /) -> None:
        """Note in *error* whatever its form depends on, of a request without its body."""
        error.path = path_of(wire)
        self.codec.note_request(wire, error)

    def reject_message(self, wire: Q, error: GatewayError, /) -> A:
        """Return *error* as the response to *wire*, with the id of *wire* if it has one.

        A client matches the responses of a stream by their ids.
        """
        self._identify(wire, error)
        self._on_rejected(self.codec.name, error)
        call: Call[Any] | None = None
        try:
            call = run_bounded_on_loop(self._decode, wire)
        except LongWork:  # decoding would cost more than the id is worth
            pass
        except GatewayError as unread:
            error.origin = error.origin or unread.origin
        except Exception as bug:  # noqa: BLE001  # it must not hide *error*
            internal_error(bug)
        return self._attach_headers(self.codec.encode_error(call, error), error.request_id)

    async def _as_stream(self, call: InferRequest, codec: StreamsDecoupled) -> Call[Any]:
        """Return *call* as a stream, if its model is decoupled and its caller takes them."""
        stream = codec.stream_of(call)
        if stream is None:
            return call
        found = self._decoupled_models.is_decoupled(stream)
        is_decoupled = found if isinstance(found, bool) else await found
        return stream if is_decoupled else call

    async def _decoded(self, wire: Q, decode: Callable[[Q, str], C]) -> C | GatewayError:
        """Return *wire* as a call, or the error that *decode* raises."""
        call: C | GatewayError = await self._reader.decoded(decode, wire, "")
        if isinstance(call, GatewayError):
            call = cast("C | GatewayError", await self._reader.read_for_server(wire, call, ""))
            if isinstance(call, GatewayError):
                return call
        if call is None or call.context.request_id:
            return call
        return call.with_context(request_id=next(self._request_ids))

    def _write(self, encode: Callable[[Any, Any], A], call: Call[Any], reply: Any) -> Any:
        """Return *reply* as a response, or a coroutine that encodes it on another thread."""
        started = monotonic()
        BOUND.allowance = ON_LOOP
        try:
            return encode(call, reply)
        except LongWork:
            return off_loop(encode, call, reply)
        finally:
            BOUND.allowance = None
            if monotonic() - started > BLOCKED_S:
                self._reader.report_blocked(started, call)

    async def _session_call(
        self, wire: Q, limits: SessionLimits[Q, A], session: int
    ) -> SessionCall[A]:
        if self._bytes is not None:
            self._bytes.count(request=wire)
        call = await self._decoded(wire, self._decode)
        if isinstance(call, GatewayError):
            return SessionCall(partial(self._rejected_only, wire, call))
        call = call.with_context(session=session)
        sequence = sequence_of(call)
        order_key = None if sequence is None else (call.model, sequence.id)
        start = partial(self._session_replies, call, wire, limits)
        hold = partial(self._held, call, limits)
        if type(call) is not StreamInferRequest:
            return SessionCall(start, order_key, hold=hold)
        decoupled = partial(self._decoupled_models.is_decoupled, call)
        return SessionCall(start, order_key, decoupled, hold)

    async def _rejected_only(
        self, wire: Q, error: GatewayError
    ) -> AsyncGenerator[SessionReply[A], None]:
        self._identify(wire, error)
        response = self.reject(error)
        if self._tap is not None:
            self._tap.rejected(wire, error, response)
        yield SessionReply(response, is_only=True)

    async def _session_replies(
        self, call: Call[Any], wire: Q, limits: SessionLimits[Q, A]
    ) -> AsyncGenerator[SessionReply[A], None]:
        """Yield the replies to one message of a session, within the limits of its transport."""
        try:
            if isinstance(call, StreamInferRequest):
                async with limits.admit(wire), aclosing(self._replies(call)) as replies:
                    async for reply in replies:
                        limits.check_response(reply.wire)
                        yield reply
                return
            async with limits.admit(wire):
                response = await self._single(call)
            limits.check_response(response)
            yield SessionReply(response, is_only=True)
        except GatewayError as error:
            yield SessionReply(self._refused(call, error), is_only=True)

    def _held(
        self, call: Call[Any], limits: SessionLimits[Q, A], response: A
    ) -> tuple[A, HeldReply | None]:
        """Return *response* and its reservation while it waits, or an error without one."""
        try:
            return response, limits.hold(response)
        except GatewayError as error:
            return self._refused(call, error), None

    def _refused(self, call: Call[Any], error: GatewayError) -> A:
        """Return *error* of the limits of a session: those of the call are responses already."""
        error.client, error.request_id = call.context.client, call.context.request_id
        self._on_rejected(self.codec.name, error)
        return self._with_request_id(call, self._failed(call, error))

    async def _stream(self, call: StreamInferRequest, wire: Q) -> AsyncGenerator[A, None]:
        if self._bytes is not None:
            self._bytes.count(request=wire)
        async with aclosing(self._replies(call)) as replies:
            async for reply in replies:
                if self._bytes is not None:
                    self._bytes.count(response=reply.wire)
                yield reply.wire

    def _replies(self, call: StreamInferRequest) -> AsyncGenerator[SessionReply[A], None]:
        """Return the replies to *call*, which the tap receives, too."""
        if self._tap is None:
            return self._replies_of(call, self.service)
        return self._tap.record_stream(call, self._replies_of, self.service)

    async def _replies_of(
        self, call: StreamInferRequest, service: Service
    ) -> AsyncGenerator[SessionReply[A], None]:
        """Yield the replies to *call* of *service*; an error is the last one."""
        last: InferResponse | None = None
        text, streaming = StreamText(), self._streaming
        try:
            items = await service(call)
            try:
                async for item in items:
                    error = failure_of(item)
                    if error is not None and self._is_terminal(call, error, last):
                        raise error
                    if item.is_end_mark and (
                        streaming is None or not streaming.writes_end_mark(call)
                    ):
                        continue
                    is_text = item.outputs and self.codec.has_only_text(call, item)
                    shown = text.complete(item) if is_text else item
                    response = await self._written_item(call, shown, last)
                    if last is None:
                        response = self._with_request_id(call, response)
                    is_only, last = last is None and item.is_final, item
                    yield SessionReply(response, is_only)
            finally:
                await close_stream(items)
            text.finish()
            end = None if streaming is None else streaming.encode_end(call, last)
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
            written = self._write(self.codec.encode_item, call, item)
            response: A = await written if type(written) is CoroutineType else written
        except GatewayError as error:
            if self._is_terminal(call, error, last):
                raise
            error.__traceback__ = None  # its frames hold the item
            failed = InferResponse(
                model=item.model, outputs=(), is_final=item.is_final, error=without_addresses(error)
            )
            response = self.codec.encode_item(call, failed)
        return response

    def _is_terminal(
        self, call: StreamInferRequest, error: GatewayError, last: InferResponse | None
    ) -> bool:
        """Return whether an item that is an error ends the stream, after the item *last*."""
        streaming = self._streaming
        return streaming is None or (last is None and streaming.is_terminal(call, error))

    async def _single(self, call: Call[Any], service: Service | None = None) -> A:
        """Return the response to *call*: of *service*, or of the own one, observed by the tap."""
        tap = self._tap if service is None else None
        if tap is not None and (exchange := tap.begin(call)) is not None:
            return await tap.record(exchange, self._single, self.service)
        try:
            reply = await (service or self.service)(call)
            written = self._write(self._encode, call, reply)
            response = await written if type(written) is CoroutineType else written
        except Exception as error:  # noqa: BLE001
            response = self._failed(call, error)
        return self._with_request_id(call, response)

    def _with_request_id(self, call: Call[Any], response: A) -> A:
        return self._attach_headers(response, call.context.request_id)

    def _failed(self, call: Call[Any], error: Exception, *, late: bool = False) -> A:
        """Return *error* in the protocol's form; anything but a `GatewayError` is a bug here."""
        model = call.model
        failure = error if isinstance(error, GatewayError) else internal_error(error, model)
        failure = without_addresses(failure)  # the log has them
        if late and self._streaming is not None and isinstance(call, StreamInferRequest):
            return self._streaming.encode_late_error(call, failure)
        return self.codec.encode_error(call, failure)

    def _reject_wire(
        self, wire: Q, error: GatewayError, request_id: str = "", *, is_whole: bool = False
    ) -> A:
        """Return *error* as the response to *wire*, which is not decoded."""
        self._identify(wire, error, request_id)
        response = self.reject(error)
        if is_whole and self._tap is not None:
            self._tap.rejected(wire, error, response)
        if self._bytes is not None:
            self._bytes.count(wire, response)
        return response

    def _identify(self, wire: Q, error: GatewayError, request_id: str = "") -> None:
        """Add client and headers of *wire* to *error*, and its request id, or else *request_id*."""
        error.client, error.path = getattr(wire, "client", None), path_of(wire)
        error.metadata = metadata_of(wire)
        error.request_id = self._read_request_id(wire) or request_id or next(self._request_ids)
