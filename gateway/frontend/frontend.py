"""Frontend: decodes requests, calls a service and encodes its replies.

This is the only place where errors become responses.  It knows no protocol and no socket.
"""

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import Any, Final, TypeVar, cast

import structlog
from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.api.protocol import Codec, CutThroughCodec, ServerReadingCodec, StreamCodec
from gateway.concurrency.offload import ON_LOOP, off_loop, run_bounded, run_bounded_on_loop
from gateway.frontend.carriers import (
    AttachHeaders,
    ReadRequestId,
    client_of,
    metadata_of,
    no_request_id,
    without_headers,
)
from gateway.ir.bodies.stream_text import StreamText
from gateway.ir.bodies.streams import HeldReply, close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerSwitchRequest,
    StreamInferRequest,
    sequence_of,
)
from gateway.ir.context import (
    GATEWAY_CLIENT,
    Client,
    Context,
    ModelRef,
)
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    Unsupported,
    VersionNotFound,
)
from gateway.ir.redaction import without_addresses
from gateway.ir.tensors.expected_inputs import UncheckedInputs, with_expected_inputs
from gateway.ir.unread import failure_of, path_of
from gateway.ir.work import BOUND, LongWork, inflated
from gateway.model_info.known_inputs import KnownInputs
from gateway.model_info.server_lookups import DecoupledModels, ServerDialects
from gateway.service import Service, bound_call
from gateway.session import Session, SessionCall, SessionReply
from gateway.telemetry.faults import internal_error
from gateway.telemetry.upstream_metrics import ByteCounter
from gateway.wire.decoupled import StreamsDecoupled
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.frontend import ServerFrontend, SessionLimits
from gateway.wire.heads.request_id import new_request_ids
from gateway.wire.http import HttpRequest, wire_bytes

Q = TypeVar("Q")
A = TypeVar("A")
C = TypeVar("C", bound=Call[Any] | None)

# What a server of the same form may take, for it knows more forms, values and versions.
_UNREAD = (InvalidRequest, Unsupported, VersionNotFound)

_PROBES = frozenset({ServerLiveRequest, ServerReadyRequest, ModelReadyRequest})

log = structlog.get_logger(__name__)

_BLOCKED_S: Final = 0.1
"""A request that blocks the event loop for longer is reported."""

OnRejected = Callable[[str, GatewayError], object]
"""Called for a request that reached no service: codec name, error."""


def _ignore(_codec: str, _error: GatewayError) -> None: ...


OnBlocked = Callable[[str, str, float], None]
"""Called for a request that blocked the event loop for long: codec name, model, seconds."""


def _ignore_blocked(_codec: str, _model: str, _seconds: float) -> None: ...


CheckInference = Callable[[Client, ModelRef], None]
"""Raises Forbidden if a client may not make any inference of a model."""


class Frontend(ServerFrontend[Q, A]):
    """The server side of one codec.

    Args:
        codec: Decodes requests and encodes replies.
        service: Handles calls.
        on_rejected: Called for each request that is rejected before it reaches *service*.
        attach_headers: Adds the request id and notes to a response; of a stream, to the first one.
        read_request_id: Reads the request id of a request that is rejected.
        message_bytes: Counts the bytes of requests and responses; None to count none.
        on_blocked: Called for each request whose decoding or encoding blocked the event loop for
            more than 100 ms.

    Attributes:
        codec: Decodes requests and encodes replies.
        service: Handles the calls that begin now; see `replace_service`.
    """

    _choose: Callable[[Call[Any]], Coroutine[Any, Any, A] | None] | None = None
    """Takes calls with one reply over from `handle`; None for the calls that it leaves to it."""

    _check_inference: CheckInference | None = None

    def __init__(
        self,
        codec: Codec[Q, A],
        service: Service,
        *,
        on_rejected: OnRejected = _ignore,
        attach_headers: AttachHeaders[A] = without_headers,
        read_request_id: ReadRequestId[Q] = no_request_id,
        message_bytes: ByteCounter | None = None,
        on_blocked: OnBlocked = _ignore_blocked,
    ) -> None:
        self.codec = codec
        # Bound once: looking up a method of an object of any class takes 300 instructions.
        self._decode, self._encode = codec.decode_call, codec.encode_reply
        self.service = bound_call(service)
        self._on_rejected = on_rejected
        self._attach_headers = attach_headers
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
        self._check_inference = check_inference
        self._decoupled_models = DecoupledModels(service)
        self._known_inputs = KnownInputs(service)
        self._dialects = ServerDialects(service)

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
            reread = await self._decoded_for_server(wire, _unread(error), request_id)
            if isinstance(reread, GatewayError):
                return self._reject_unread(wire, reread, request_id)
            call = reread
        found = call.context.request_id
        if not found:
            call = call.with_context(request_id=request_id)
        if self._streams_decoupled is not None and type(call) is InferRequest:
            call = await self._as_stream(call, self._streams_decoupled)
        if type(call) is StreamInferRequest:
            return self._stream(call, wire)
        if self._choose is not None and (chosen := self._choose(call)) is not None:
            response = await chosen
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
        try:
            decoded = self._read(decode, wire, "")
            call: C = await decoded if type(decoded) is CoroutineType else decoded
        except Exception as error:  # noqa: BLE001
            reread = await self._decoded_for_server(wire, _unread(error), "")
            if isinstance(reread, GatewayError):
                return reread
            call = cast("C", reread)
        if call is None or call.context.request_id:
            return call
        return call.with_context(request_id=next(self._request_ids))

    async def _decoded_for_server(
        self, wire: Q, refused: GatewayError, request_id: str
    ) -> Call[Any] | GatewayError:
        """Return *wire* as the server of its model reads it, or *refused*, the error of the codec.

        A server may read what others refuse, so its clients must not notice the gateway.
        """
        if isinstance(refused, MethodNotAllowed) and isinstance(wire, HttpRequest):
            return await self._decoded_head(wire, refused, request_id)
        reading = self._server_reading
        if reading is None or not isinstance(refused, InvalidRequest):
            return await self._decode_unread(wire, refused)
        model = reading.inferred_model(wire)
        if model is None:
            return refused
        if self._check_inference is not None:
            try:
                self._check_inference(client_of(wire), model)
            except GatewayError as error:
                return error
        found = await self._decoded_in(reading.most_lenient, wire, refused, request_id)
        if found is None or isinstance(found, GatewayError):
            return found or refused
        context = self._question_context(wire, request_id)
        dialect = await self._dialects.find(model, context)
        if dialect != reading.most_lenient:
            found = await self._decoded_in(dialect, wire, refused, request_id)
        return refused if found is None else found

    async def _decode_unread(self, wire: Q, refused: GatewayError) -> Call[Any] | GatewayError:
        """Return *wire* as a call that only a server of its form reads; *refused* if none may."""
        if not self.codec.whole or not isinstance(refused, _UNREAD):
            return refused
        decode, elements = self.codec.decode_unread, getattr(wire, "elements", None)
        if elements is not None:
            decode = partial(inflated, elements, decode)
        try:
            call = await run_bounded(decode, wire, refused)
        except GatewayError:
            return refused
        return refused if call is None else call

    async def _decoded_head(
        self, wire: HttpRequest, refused: GatewayError, request_id: str
    ) -> Call[Any] | GatewayError:
        """Return a request with HEAD as that with GET, whose response has the same head.

        The transport leaves out the body.  What changes a server needs another method than HEAD.
        Source: RFC 9110 9.3.2.
        """
        if wire.method != "HEAD":
            return refused
        try:
            read = self._read(self._decode, cast("Q", replace(wire, method="GET")), request_id)
            call: Call[Any] = await read if type(read) is CoroutineType else read
        except Exception as error:  # noqa: BLE001
            return _unread(error)
        return refused if isinstance(call, ServerSwitchRequest) else call

    async def _decoded_in(
        self, dialect: str, wire: Q, refused: GatewayError, request_id: str
    ) -> Call[Any] | GatewayError | None:
        """Return *wire* as a server of *dialect* reads it, or an error; None if it is strict."""
        assert self._server_reading is not None  # noqa: S101  # the caller asks it
        decode = self._server_reading.decode_for_server
        try:
            decoded = self._read(
                lambda wire, request_id: decode(wire, dialect, request_id), wire, request_id
            )
            call: Call[Any] | None = await decoded if type(decoded) is CoroutineType else decoded
        except Exception as error:  # noqa: BLE001
            found = _unread(error)
            if isinstance(found, InvalidTensor) and isinstance(refused, MalformedMessage):
                return found  # the server would read the message
            return refused if isinstance(found, InvalidRequest) else found
        return call

    def _read(self, decode: Callable[[Q, str], Any], wire: Q, request_id: str) -> Any:
        """Return *wire* as a call, or a coroutine that decodes it on another thread."""
        elements = getattr(wire, "elements", None)
        if elements is not None:
            decode = partial(inflated, elements, decode)
        call = None
        started = monotonic()
        # `run_bounded_on_loop` does the same, but its call frame costs 0.7 us.
        BOUND.allowance = ON_LOOP
        try:
            call = decode(wire, request_id)
        except LongWork:
            return self._read_long(decode, wire, request_id)
        finally:
            BOUND.allowance = None
            if monotonic() - started > _BLOCKED_S:
                self._report_blocked(started, call)
        return call

    async def _read_long(self, decode: Callable[[Q, str], Any], wire: Q, request_id: str) -> Any:
        """Return *wire* as a call, decoded on another thread if its model has its inputs."""
        try:
            accepts = self._known_inputs.accepts
            return await off_loop(with_expected_inputs, accepts, decode, wire, request_id)
        except UncheckedInputs as found:
            if self._check_inference is not None:
                self._check_inference(client_of(wire), found.model)
            context = self._question_context(wire, request_id)
            await self._known_inputs.check(found, context)
        return await off_loop(decode, wire, request_id)

    def _question_context(self, wire: Q, request_id: str) -> Context:
        """Return the context of a question that takes the route of *wire*."""
        return Context(self.codec.name, metadata_of(wire), request_id, client=GATEWAY_CLIENT)

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
            if monotonic() - started > _BLOCKED_S:
                self._report_blocked(started, call)

    def _report_blocked(self, started: float, call: Any) -> None:
        """Log and report a step that has blocked the event loop since *started*."""
        seconds = monotonic() - started
        model = getattr(call, "model", None)
        name = "" if model is None else model.name
        log.warning(
            "event loop blocked",
            protocol=self.codec.name,
            model=name,
            ms=round(seconds * 1e3),
            request_id="" if call is None else call.context.request_id,
        )
        self._on_blocked(self.codec.name, name, seconds)

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
        yield SessionReply(self.reject(error), is_only=True)

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
            items = await (service or self.service)(call)
            try:
                async for item in items:
                    error = failure_of(item)
                    if error is not None and self._is_terminal(call, error, last):
                        raise error
                    if item.is_end_mark and not self._writes_end_mark(call):
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

    def _writes_end_mark(self, call: StreamInferRequest) -> bool:
        return self._streaming is not None and self._streaming.writes_end_mark(call)

    async def _single(self, call: Call[Any], service: Service | None = None) -> A:
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


def _unread(error: Exception) -> GatewayError:
    """Return the error of a message that decoding rejected, without its traceback.

    The frames of a traceback hold the message, and a caller's frame holds the error: this cycle
    would keep the message until the garbage collector runs.  Anything but a `GatewayError` is a bug
    here, whose text must not reach the client.
    """
    if not isinstance(error, GatewayError):
        return internal_error(error)
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
