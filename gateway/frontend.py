"""Frontend: one wire request in, one or more wire answers out; and sessions, of many requests.

The one place where errors become wire errors. Generic: it names no protocol and no socket.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import Any, Final, TypeVar

import structlog

from gateway.concurrency.offload import ON_LOOP, inline, off_loop
from gateway.ir.calls import (
    Call,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
    sequence_of,
)
from gateway.ir.context import REQUEST_ID
from gateway.ir.errors import GatewayError, InternalError
from gateway.ir.streams import close_stream
from gateway.ir.work import BOUND, LongWork, inflated
from gateway.service import Service
from gateway.session import Session, SessionCall, SessionReply
from gateway.wire.codec import Codec, CutThroughCodec, StreamCodec
from gateway.wire.frontend import ServerFrontend, SessionLimits
from gateway.wire.grpc import GrpcResponse
from gateway.wire.http import HttpResponse

_PROBES = frozenset({ServerLiveRequest, ServerReadyRequest, ModelReadyRequest})

log = structlog.get_logger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")
C = TypeVar("C", bound=Call[Any] | None)

BLOCKED_S: Final = 0.1
"""A request that blocks the event loop for longer is reported."""

OnRejected = Callable[[str, GatewayError], None]
"""Told of a request that no service saw: codec name and error."""


def _ignore(_codec: str, _error: GatewayError) -> None: ...


OnBlocked = Callable[[str, str, float], None]
"""Called for a request that blocked the event loop for long: codec name, model, seconds."""


def _ignore_blocked(_codec: str, _model: str, _seconds: float) -> None: ...


AttachRequestId = Callable[[A, str], A]
"""Writes the request id on an answer."""


def _no_stamp(answer: A, _request_id: str) -> A:
    return answer


def stamp_http(answer: HttpResponse, request_id: str) -> HttpResponse:
    """Return *answer* with the request id, which becomes a header."""
    return HttpResponse(answer.status, answer.headers, answer.body, answer.compressible, request_id)


def stamp_grpc(answer: GrpcResponse, request_id: str) -> GrpcResponse:
    """Return *answer* with the request id as trailing metadata."""
    metadata = (*answer.metadata, (REQUEST_ID, request_id))
    return GrpcResponse(answer.message, answer.status, answer.details, metadata)


class Frontend(ServerFrontend[Q, A]):
    """A server's side of one codec.

    Args:
        codec: Reads requests and writes answers.
        service: Answers calls.
        refused: Told of each request that was refused before the service saw it.
        stamp: Writes the request id on the answer to a call, on the first of a stream.
        blocked: Called for each request whose decoding or encoding blocked the event loop for more
            than 100 ms.
    """

    def __init__(
        self,
        codec: Codec[Q, A],
        service: Service,
        *,
        refused: OnRejected = _ignore,
        stamp: AttachRequestId[A] = _no_stamp,
        blocked: OnBlocked = _ignore_blocked,
    ) -> None:
        self._codec = codec
        self._service = service
        self._refused = refused
        self._stamp = stamp
        self._on_blocked = blocked
        # Unique within the process and, by its random part, between processes.
        self._prefix = os.urandom(6).hex()
        self._numbers = itertools.count(1)
        self._sessions = itertools.count(1)
        self._streaming: StreamCodec[Q, A] | None = None
        if isinstance(codec, StreamCodec):
            self._streaming = codec
        self._early: CutThroughCodec[Q, A] | None = None
        if isinstance(codec, CutThroughCodec):
            self._early = codec

    async def __call__(self, wire: Q, /) -> AsyncGenerator[A, None]:
        """Answer *wire*: decode, call the service, encode. Raises no `GatewayError`."""
        answer = await self.handle(wire)
        if not isinstance(answer, AsyncGenerator):
            yield answer
            return
        async with aclosing(answer) as items:
            async for item in items:
                yield item

    async def handle(self, wire: Q, /) -> A | AsyncGenerator[A, None]:
        """Answer *wire* as calling does: with the one answer, or a generator where it streams."""
        # As `_decoded` and `_single` do it, without frames of their own on every step of the way.
        request_id = f"{self._prefix}-{next(self._numbers):x}"
        try:
            read = self._read(self._codec.decode_call, wire, request_id)
            call: Call[Any] = await read if type(read) is CoroutineType else read
        except Exception as error:  # noqa: BLE001
            return self.reject(_unread(error))
        found = call.context.request_id
        if not found:
            call = call.with_context(request_id=request_id)
        if type(call) is StreamInferRequest:
            return self._stream(call)
        try:
            written = self._write(self._codec.encode_reply, call, await self._service(call))
            answer: A = await written if type(written) is CoroutineType else written
        except Exception as error:  # noqa: BLE001
            answer = self._failed(call, error)
        return self._stamp(answer, found or request_id)

    def early_bytes(self, wire: Q, /) -> int | None:
        """Return how much of a body is enough for `handle_early`; None for all of it."""
        return None if self._early is None else self._early.early_bytes(wire)

    async def handle_early(
        self, wire: Q, whole: Callable[[], Awaitable[Q]], /
    ) -> A | AsyncGenerator[A, None]:
        """Answer *wire*, of which the head has come; where more is needed, when *whole* has it."""
        assert self._early is not None  # noqa: S101  # `early_bytes` said so
        early = self._early.decode_early
        call = await self._decoded(wire, lambda wire, _request_id: early(wire))
        if isinstance(call, GatewayError):
            return self.reject(call)
        if call is not None:
            return await self._single(call)
        try:
            wire = await whole()
        except GatewayError as error:
            return self.reject(error)
        return await self.handle(wire)

    async def session(
        self, wires: AsyncIterator[Q], gate: SessionLimits[Q, A], /
    ) -> AsyncGenerator[A, None]:
        """Answer the messages of one bidirectional stream, several at a time.

        Ends when *wires* has, and all have been answered; closing it ends what is under way.
        Raises no `GatewayError`.

        Args:
            wires: Read no further than *gate* allows.
            gate: What the transport allows.
        """
        number = next(self._sessions)
        session: Session[A] = Session(gate.max_calls)
        calls = (await self._session_call(wire, gate, number) async for wire in wires)
        async with aclosing(calls), aclosing(session.run(calls)) as answers:
            async for answer in answers:
                yield answer

    async def _session_call(
        self, wire: Q, gate: SessionLimits[Q, A], session: int
    ) -> SessionCall[A]:
        call = await self._decoded(wire, self._codec.decode_call)
        if isinstance(call, GatewayError):
            return SessionCall(partial(self._rejected_only, call))
        call = call.with_context(session=session)
        sequence = sequence_of(call)
        lane = None if sequence is None else (call.model, sequence.id)
        return SessionCall(partial(self._answers, call, wire, gate), lane)

    async def _rejected_only(self, error: GatewayError) -> AsyncGenerator[SessionReply[A], None]:
        yield SessionReply(self.reject(error), is_only=True)

    async def _answers(
        self, call: Call[Any], wire: Q, gate: SessionLimits[Q, A]
    ) -> AsyncGenerator[SessionReply[A], None]:
        """Answer one message of a session within what its transport allows."""
        try:
            if isinstance(call, StreamInferRequest):
                async with gate.admit(wire), aclosing(self._replies(call)) as answers:
                    async for said in answers:
                        gate.check_response(said.wire)
                        with gate.hold(said.wire):
                            yield said
                return
            async with gate.admit(wire):
                answer = await self._single(call)
            gate.check_response(answer)
            with gate.hold(answer):
                yield SessionReply(answer, is_only=True)
        except GatewayError as error:  # the gate's: the call's own were answered
            self._refused(self._codec.name, error)
            yield SessionReply(self._failed(call, error), is_only=True)

    async def _decoded(self, wire: Q, decode: Callable[[Q, str], C]) -> C | GatewayError:
        """Read *wire* with *decode*; return what is wrong with it rather than raise."""
        try:
            read = self._read(decode, wire, "")
            call: C = await read if type(read) is CoroutineType else read
        except Exception as error:  # noqa: BLE001
            return _unread(error)
        if call is None or call.context.request_id:
            return call
        return call.with_context(request_id=f"{self._prefix}-{next(self._numbers):x}")

    def _read(self, decode: Callable[[Q, str], Any], wire: Q, request_id: str) -> Any:
        """Return the call that *wire* is, or a coroutine that reads it on another thread."""
        elements = getattr(wire, "elements", None)
        if elements is not None:
            decode = partial(inflated, elements, decode)
        call = None
        begun = monotonic()
        BOUND.allowance = ON_LOOP  # as `inline`, which would be another frame for each request
        try:
            call = decode(wire, request_id)
        except LongWork:
            return off_loop(decode, wire, request_id)
        finally:
            BOUND.allowance = None
            if monotonic() - begun > BLOCKED_S:
                self._report_blocked(begun, call)
        return call

    def _write(self, encode: Callable[[Any, Any], A], call: Call[Any], reply: Any) -> Any:
        """Return *reply* as a response, or a coroutine that writes it on another thread."""
        begun = monotonic()
        BOUND.allowance = ON_LOOP
        try:
            return encode(call, reply)
        except LongWork:
            return off_loop(encode, call, reply)
        finally:
            BOUND.allowance = None
            if monotonic() - begun > BLOCKED_S:
                self._report_blocked(begun, call)

    def _report_blocked(self, begun: float, call: Any) -> None:
        """Log and report a step that has blocked the event loop since *begun*."""
        seconds = monotonic() - begun
        model = getattr(call, "model", None)
        name = "" if model is None else model.name
        log.warning(
            "event loop blocked",
            protocol=self._codec.name,
            model=name,
            ms=round(seconds * 1e3),
            request_id="" if call is None else call.context.request_id,
        )
        self._on_blocked(self._codec.name, name, seconds)

    async def _stream(self, call: StreamInferRequest) -> AsyncGenerator[A, None]:
        async with aclosing(self._replies(call)) as answers:
            async for said in answers:
                yield said.wire

    async def _replies(self, call: Call[Any]) -> AsyncGenerator[SessionReply[A], None]:
        """Give every answer to *call*; what goes wrong is the last."""
        if not isinstance(call, StreamInferRequest):
            yield SessionReply(await self._single(call), is_only=True)
            return
        last: InferResponse | None = None
        try:
            items = await self._service(call)
            try:
                async for item in items:
                    if item.error is not None and self._is_terminal(last):
                        raise item.error
                    written = self._write(self._codec.encode_item, call, item)
                    answer = await written if type(written) is CoroutineType else written
                    alone, first, last = last is None and item.final, last is None, item
                    yield SessionReply(
                        self._with_request_id(call, answer) if first else answer, alone
                    )
            finally:
                await close_stream(items)
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

    def _is_terminal(self, last: InferResponse | None) -> bool:
        """Tell whether an answer that is an error is the last that can be said."""
        streaming = self._streaming
        return streaming is None or (last is None and streaming.first_error_ends)

    async def _single(self, call: Call[Any]) -> A:
        try:
            written = self._write(self._codec.encode_reply, call, await self._service(call))
            answer = await written if type(written) is CoroutineType else written
        except Exception as error:  # noqa: BLE001
            answer = self._failed(call, error)
        return self._with_request_id(call, answer)

    def _with_request_id(self, call: Call[Any], answer: A) -> A:
        return self._stamp(answer, call.context.request_id)

    def _failed(self, call: Call[Any], error: Exception, *, late: bool = False) -> A:
        """Say *error* in the protocol's form; what is no `GatewayError` is a bug of ours."""
        known = error if isinstance(error, GatewayError) else _internal(error, call)
        if late and self._streaming is not None and isinstance(call, StreamInferRequest):
            return self._streaming.encode_late_error(call, known)
        return self._codec.encode_error(call, known)

    def reject(self, error: GatewayError, /) -> A:
        """Say *error* in the protocol's form, for a message no service saw."""
        self._refused(self._codec.name, error)
        return self._codec.encode_error(None, error)

    def is_probe(self, wire: Q, /) -> bool:
        """Tell whether *wire* asks whether the server or a model is live or ready."""
        try:
            return type(inline(self._codec.decode_call, wire)) in _PROBES
        except Exception:  # noqa: BLE001  # `handle` finds it again and says what is wrong
            return False

    def reject_message(self, wire: Q, error: GatewayError, /) -> A:
        """Say *error* as the answer to *wire*, which was read whole: with its id, if it has one.

        On a stream a client knows answers by their ids alone.
        """
        self._refused(self._codec.name, error)
        try:
            call = inline(self._codec.decode_call, wire)
        except LongWork:  # its id is not worth it
            return self._codec.encode_error(None, error)
        except GatewayError as unread:
            error.origin = error.origin or unread.origin
            return self._codec.encode_error(None, error)
        except Exception as bug:  # noqa: BLE001  # must not hide what is to be said
            _internal(bug, None)
            return self._codec.encode_error(None, error)
        return self._codec.encode_error(call, error)


def _unread(error: Exception) -> GatewayError:
    """Return what is wrong with a message, of what reading it raised, without the way it took.

    Its frames hold the message and what was read of it, and a caller's frame in turn the error: all
    that would stay until the garbage collector looks. What is no `GatewayError` is a bug of ours,
    which must not reach the client raw.
    """
    if not isinstance(error, GatewayError):
        return _internal(error, None)
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _internal(error: Exception, call: Call[Any] | None) -> InternalError:
    """Log a bug with its traceback and return what a caller may know of it."""
    model = None if call is None else call.model
    log.error("internal error", exc_info=error, model=None if model is None else str(model))
    return InternalError("internal error of the gateway", model=model)
