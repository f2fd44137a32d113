"""Upstream: a Service that sends each call to a server, with one codec and one client transport.

It knows no protocol and no socket.  A malformed response becomes UpstreamProtocolError here,
because a codec does not know on which side it is used.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import structlog

from gateway.api.protocol import Codec, CutThroughCodec, FramingCodec
from gateway.concurrency.limiter import QUEUE_TIMEOUT_US, queue_timeout_us
from gateway.concurrency.offload import ON_LOOP, off_loop, run_bounded
from gateway.ir import errors
from gateway.ir.bodies.streamed_inputs import streaming_body_of, with_buffered_body
from gateway.ir.bodies.streams import close_stream, only_reply
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata
from gateway.ir.redaction import brief_error, redact, redacted_error
from gateway.ir.unread import failure_of
from gateway.ir.work import BOUND, LongWork
from gateway.service import ReplyCoroutine, Service, bound_call
from gateway.telemetry.call_path import CALL_PATH, CallPath, current_path
from gateway.telemetry.log.call_log import OK, code_of
from gateway.telemetry.log.error_texts import error_text
from gateway.telemetry.upstream_metrics import EndpointAttempts
from gateway.wire.heads.metadata import retry_after_s

log = structlog.get_logger(__name__)

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)

# A codec or a client raises these for a malformed response, and the server replies with them too.
_MALFORMED = (errors.MalformedMessage, errors.InvalidTensor, errors.TooLarge)

_CANCELLED = errors.ErrorCode.CANCELLED.value
_MARGIN_S = 0.005
_MAX_CACHED = 1024
_NAMELESS = ModelRef("")


class Client(Protocol[Q_contra, A_co]):
    """The part of a client transport that an upstream uses; see `gateway.transports.contract`.

    A client that can send a streaming body has the attribute `sends_rest`, which is true.
    """

    async def send(  # noqa: D102
        self, wire: Q_contra, /, *, deadline: float | None, decode: Callable[[Any], Any]
    ) -> Any: ...
    def stream(self, wire: Q_contra, /, *, deadline: float | None) -> AsyncIterator[A_co]: ...  # noqa: D102
    async def close(self) -> None: ...  # noqa: D102


class Upstream(Generic[Q, A]):
    """A client's side of one codec.

    Args:
        name: For error texts.
        codec: Encodes requests and decodes responses.
        client: Sends them.
        attempts: Counts the requests.
        brief_errors: Errors of the server have no texts about failures, and no names of classes.
    """

    def __init__(
        self,
        name: str,
        codec: Codec[Q, A],
        client: Client[Q, A],
        attempts: EndpointAttempts | None = None,
        *,
        brief_errors: bool = False,
    ) -> None:
        self._name = name
        self._brief_errors = brief_errors
        self._attempts = EndpointAttempts(name) if attempts is None else attempts
        self._codec = codec
        self._client = client
        self._decode = self._decoded  # bound once
        self._decoupled: BoundedDict[ModelRef | None, None] = BoundedDict(_MAX_CACHED)
        self._framing: FramingCodec[Q, A] | None = None
        if isinstance(codec, FramingCodec):
            self._framing = codec
        self._cut_through: CutThroughCodec[Q, A] | None = None
        if getattr(client, "sends_rest", False) and isinstance(codec, CutThroughCodec):
            self._cut_through = codec

    async def __call__(  # noqa: C901, PLR0912, PLR0915  # one frame
        self, call: Call[R], /, as_stream: bool = True
    ) -> R:
        """Send *call* to the upstream.

        The deadline of the request is 5 ms before the caller's, so that the reply or the error is
        back in time.

        Servers reject a unary call to a decoupled model, which sends any number of replies, but
        accept a stream with exactly one reply. The server rejects before the model runs, so
        nothing runs twice. Later calls to the model are streams from the start.

        Args:
            call: The call.
            as_stream: Send such a call again as a stream; else raise `Decoupled`.

        Raises:
            NotOneReply: The stream has no reply, or several.
            UpstreamProtocolError: The response is malformed.
            GatewayError: The upstream's own error, or one of the transport.
        """
        if type(call) is InferRequest:
            timeout_us = queue_timeout_us()
            if timeout_us is not call.timeout_us and timeout_us != call.timeout_us:
                return await self._with_queue_timeout(call, as_stream=as_stream)  # type: ignore[return-value]  # as below
            if self._decoupled and as_stream and call.model in self._decoupled:
                return await self._only_reply(call)  # type: ignore[return-value]  # as below
        elif type(call) is StreamInferRequest:
            # A stream's R is AsyncIterator[InferResponse]: the type system cannot follow that.
            return await self._stream(await with_buffered_body(call))  # type: ignore[return-value, arg-type]
        wire, is_decoupled = None, False
        context = call.context
        origin = context.origin
        if (origin is None or not origin.has_bytes) and streaming_body_of(call) is not None:
            wire = self._encode_cut_through(call)
            call = call if wire is not None else await with_buffered_body(call)
        if wire is None:
            BOUND.allowance = ON_LOOP  # as `run_bounded`, without its frame, which costs 0.7 us
            try:
                wire = self._codec.encode_call(call)
            except LongWork:
                pass  # below
            finally:
                BOUND.allowance = None
            if wire is None:
                wire = await off_loop(self._codec.encode_call, call)
        path, started = current_path(), monotonic()
        reply: R = None  # type: ignore[assignment]  # a decoupled model has no reply here
        try:
            # The client reads the reply before it uses the connection again.
            decode = partial(self._decode, call)
            deadline = context.deadline
            if deadline is not None:
                deadline -= _MARGIN_S
            reply = await self._client.send(wire, deadline=deadline, decode=decode)
        except errors.GatewayError as error:
            reported = self._reported(call, error)
            self._attempts.record(
                type(call),
                path,
                monotonic() - started,
                code_of(reported),
                is_received=not isinstance(error, errors.NotSent),
            )
            is_decoupled = (
                as_stream and type(call) is InferRequest and isinstance(error, errors.Decoupled)
            )
            try:
                if not is_decoupled:
                    raise reported from error.__cause__
            finally:
                del reported  # its traceback holds this frame
        except BaseException as error:
            self._attempts.record(type(call), path, monotonic() - started, code_of(error))
            raise
        if is_decoupled:
            self._decoupled[call.model] = None
            return await self._only_reply(call)  # type: ignore[return-value, arg-type]  # as below
        attempts, seconds = self._attempts, monotonic() - started
        if type(call) is not InferRequest:
            attempts.record(type(call), path, seconds, OK)
            if isinstance(reply, ModelMetadata):
                reply = reply.changed(dialect=self._codec.dialect)  # type: ignore[assignment]  # R
            return reply
        attempts.inferred += 1  # as `record`, without its frame
        attempts.seconds += seconds
        if path is not None:
            path.endpoint = attempts.endpoint
            path.attempts += 1
            path.is_received = True
            path.upstream_s += seconds
        return reply

    async def _only_reply(self, call: InferRequest) -> InferResponse:
        """Send *call* as a stream, and return its only reply.

        Raises:
            NotOneReply: There is no reply, or more than one.
        """
        stream = StreamInferRequest(model=call.model, context=call.context, request=call)
        reply = await only_reply(call.model or _NAMELESS, await self(stream))
        return reply if reply.is_final else reply.changed(is_final=True)

    async def _with_queue_timeout(self, call: InferRequest, *, as_stream: bool) -> InferResponse:
        """Send *call*, with its queue timeout as the limit of the wait for a slot."""
        token = QUEUE_TIMEOUT_US.set(call.timeout_us)
        try:
            return await self(call, as_stream=as_stream)
        finally:
            QUEUE_TIMEOUT_US.reset(token)

    def _decoded(self, call: Call[R], response: A) -> R | Coroutine[Any, Any, R]:
        """Decode a response, or return the coroutine that does so on a thread.

        Raises:
            UpstreamProtocolError: It is no response to *call*.
        """
        BOUND.allowance = ON_LOOP
        try:
            return self._codec.decode_reply(call, response)
        except LongWork:
            return self._decoded_off_loop(call, response)
        except errors.GatewayError as error:
            raise self._reported(call, error) from error.__cause__
        finally:
            BOUND.allowance = None

    async def _decoded_off_loop(self, call: Call[R], response: A) -> R:
        try:
            return await off_loop(self._codec.decode_reply, call, response)
        except errors.GatewayError as error:
            raise self._reported(call, error) from error.__cause__

    def _encode_cut_through(self, call: Call[Any]) -> Q | None:
        """Encode *call*, whose body is streaming; None if the whole body is needed first."""
        body = streaming_body_of(call)
        if self._cut_through is None or body is None or body.is_started:
            return None
        return self._cut_through.encode_cut_through(call)

    async def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        """Return the replies; a single one where the protocol has no streams."""
        if self._codec.prefers_single_reply and call.model not in self._decoupled:
            return self._single_or_stream(call, current_path())
        try:
            wire = await run_bounded(self._codec.encode_call, call)
        except errors.SequenceIdTooLarge:
            raise
        except errors.Unsupported as error:
            request = call.request.changed(context=call.context)
            return self._single_item_stream(request, current_path(), error.message)
        return self._items(call, wire, current_path())

    async def _single_or_stream(
        self, call: StreamInferRequest, path: CallPath | None
    ) -> AsyncIterator[InferResponse]:
        """Return the single reply; of a decoupled model, which has none, the replies of a stream.

        The server refuses before the model runs, so nothing runs twice.
        """
        try:
            request = call.request.changed(context=call.context)
            yield await self._unary(path, request)
        except errors.Decoupled as refused:
            try:
                wire = await run_bounded(self._codec.encode_call, call)
            except errors.Unsupported as error:
                raise _stream_unavailable_error(refused, error.message) from error
        else:
            return
        self._decoupled[call.model] = None
        async with aclosing(self._items(call, wire, path)) as items:
            async for item in items:
                yield item

    async def _single_item_stream(
        self, call: InferRequest, path: CallPath | None, why_no_stream: str
    ) -> AsyncIterator[InferResponse]:
        try:
            yield await self._unary(path, call)
        except errors.Decoupled as refused:
            raise _stream_unavailable_error(refused, why_no_stream) from refused

    async def _unary(self, path: CallPath | None, call: InferRequest) -> InferResponse:
        """Send *call*, and record it in *path*: a stream may run where no path is current.

        Raises:
            Decoupled: The server accepts only a stream.
        """
        token = CALL_PATH.set(path)
        try:
            return await self(call, as_stream=False)
        finally:
            CALL_PATH.reset(token)

    async def _items(
        self, call: StreamInferRequest, wire: Q, path: CallPath | None
    ) -> AsyncGenerator[InferResponse, None]:
        started, code, is_received = monotonic(), _CANCELLED, True
        responses = self._client.stream(wire, deadline=_upstream_deadline(call))
        if call.request.timeout_us is not None:
            responses = _within_queue_timeout(call.request.timeout_us, responses)
        splitter = None if self._framing is None else self._framing.splitter()
        try:
            has_begun = False
            async for part in responses:
                for response in (part,) if splitter is None else splitter.receive(part):
                    if self._codec.is_item(call, response):
                        yield await self._item(call, response, goes_on=has_begun)
                        has_begun = splitter is not None
            for response in () if splitter is None else splitter.end():
                if self._codec.is_item(call, response):
                    yield await self._item(call, response, goes_on=has_begun)
            code = OK
        except errors.GatewayError as error:
            code, is_received = code_of(error), not isinstance(error, errors.NotSent)
            raise self._reported(call, error) from error.__cause__
        finally:
            seconds = monotonic() - started
            self._attempts.record(type(call), path, seconds, code, is_received=is_received)
            await close_stream(responses)

    async def _item(self, call: StreamInferRequest, response: A, *, goes_on: bool) -> InferResponse:
        """Return one item of a stream.

        Args:
            call: The call that has the stream.
            response: The item on the wire.
            goes_on: Return a malformed response as an item that is an error, for later ones may
                be readable.

        Raises:
            GatewayError: The server's own error, which ends the stream, or a malformed response.
        """
        try:
            item = await run_bounded(self._codec.decode_item, call, response)
        except errors.GatewayError as error:
            if not goes_on or error.origin is not None or not isinstance(error, _MALFORMED):
                raise
            error.__traceback__ = None  # its frames hold the response
            reported = self._reported(call, error)
            model = call.model or _NAMELESS
            return InferResponse(model=model, outputs=(), is_final=False, error=reported)
        return item if failure_of(item) is None else self._redacted_item(call, item)

    def _redacted_item(self, call: StreamInferRequest, item: InferResponse) -> InferResponse:
        error = item.error
        redacted = None if error is None else self._redacted(call, error)
        return item if redacted is error else item.changed(error=redacted)

    def _redacted(self, call: Call[Any], error: errors.GatewayError) -> errors.GatewayError:
        """Return *error* without what clients must not see; the log has the whole text."""
        shown = brief_error(error) if self._brief_errors else error
        redacted = redacted_error(shown)
        if redacted is not error:
            names = redacted is not shown
            log.warning(
                "names of segments withheld from an error" if names else "error text withheld",
                upstream=self._name,
                request_id=call.context.request_id,
                error=error_text(error),
            )
        return redacted

    def _reported(self, call: Call[Any], error: errors.GatewayError) -> errors.GatewayError:
        """Return *error* as the caller may see it.

        An error with an origin is the server's own reply.  Without one, *error* says what is wrong
        with the response.  The method does not raise: its frame would hold the error in a cycle.
        """
        if error.origin is None and isinstance(error, _MALFORMED):
            text = f"upstream {self._name!r} sent a malformed response: {redact(error.message)}"
            return errors.UpstreamProtocolError(text, model=call.model)
        if error.origin is not None:
            error.retry_after_s = retry_after_s(error.origin.wire)
        return self._redacted(call, error)


async def _within_queue_timeout(
    timeout_us: int, responses: AsyncIterator[A]
) -> AsyncGenerator[A, None]:
    """Yield *responses*; the wait to send the request, before the first one, has a limit."""
    try:
        token = QUEUE_TIMEOUT_US.set(timeout_us)
        try:
            first = await anext(responses, None)
        finally:
            QUEUE_TIMEOUT_US.reset(token)
        if first is None:
            return
        yield first
        async for response in responses:
            yield response
    finally:
        await close_stream(responses)


def _stream_unavailable_error(refused: errors.Decoupled, why_no_stream: str) -> errors.Decoupled:
    """Return the error of a decoupled model whose server cannot be asked for a stream."""
    return errors.Decoupled(f"{refused.message}; {why_no_stream}", model=refused.model)


def _upstream_deadline(call: Call[Any]) -> float | None:
    """Return the deadline for the upstream."""
    deadline = call.context.deadline
    return None if deadline is None else deadline - _MARGIN_S


# The same in every dialect, and needed before the dialect is known.
_PLAIN = (ServerLiveRequest, ServerReadyRequest, ServerMetadataRequest)


class DialectDetectingUpstream:
    """An upstream whose codec depends on the name of its server.

    The first call that needs the dialect asks for the server's metadata.  If that question fails,
    the call fails with the same error, and the next call asks again.

    Args:
        plain: Answers calls that are the same in every dialect.
        make: Returns the upstream for a server of this name; "" for a server without one.
    """

    def __init__(self, plain: Service, make: Callable[[str], Service]) -> None:
        self._plain = plain
        self._make = make
        self._detected: Service | None = None
        self._lock = asyncio.Lock()

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Send *call* in the dialect of the server."""
        detected = self._detected
        if detected is not None:
            return detected(call)
        if type(call) in _PLAIN:
            return self._plain(call)
        return self._detect(call)

    async def _detect(self, call: Call[R]) -> R:
        async with self._lock:
            if self._detected is None:
                self._detected = bound_call(self._make(await self._server_name(call)))
        return await self._detected(call)

    async def _server_name(self, call: Call[Any]) -> str:
        question = ServerMetadataRequest(context=call.context)
        try:
            return (await self._plain(question)).name
        except errors.GatewayError as error:
            if error.is_retryable or error.origin is None:
                raise
            return ""  # the server has replied, but without its name
