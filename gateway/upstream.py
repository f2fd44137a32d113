"""Upstream: a Service that sends each call to a server, with one codec and one client transport.

It knows no protocol and no socket.  A malformed response becomes UpstreamProtocolError here,
because a codec does not know on which side it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import structlog

from gateway.concurrency.offload import ON_LOOP, off_loop, wherever
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
from gateway.ir.errors import (
    Decoupled,
    GatewayError,
    InvalidTensor,
    MalformedMessage,
    SequenceIdTooLarge,
    TooLarge,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.redaction import redact, redacted_error
from gateway.ir.streaming_body import streaming_body_of, with_buffered_body
from gateway.ir.streams import close_stream
from gateway.ir.work import BOUND, LongWork
from gateway.service import ReplyCoroutine, Service
from gateway.wire.codec import Codec, CutThroughCodec, FramingCodec

log = structlog.get_logger(__name__)

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)

# What codec and client raise for the bytes or the size of a message: here, of a response.
_BROKEN = (MalformedMessage, InvalidTensor, TooLarge)

_MARGIN_S = 0.005
_REMEMBERED = 1024


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
    """

    def __init__(self, name: str, codec: Codec[Q, A], client: Client[Q, A]) -> None:
        self._name = name
        self._codec = codec
        self._client = client
        self._decoupled: set[ModelRef | None] = set()
        self._framing: FramingCodec[Q, A] | None = None
        if isinstance(codec, FramingCodec):
            self._framing = codec
        self._cut_through: CutThroughCodec[Q, A] | None = None
        if getattr(client, "sends_rest", False) and isinstance(codec, CutThroughCodec):
            self._cut_through = codec

    async def __call__(self, call: Call[R], /) -> R:
        """Send *call* to the upstream.

        The deadline of the request is 5 ms before the caller's, so that the reply or the error is
        back in time.

        Raises:
            UpstreamProtocolError: The response is malformed.
            GatewayError: The upstream's own error, or one of the transport.
        """
        wire = None
        if streaming_body_of(call) is not None:
            wire = self._encode_cut_through(call)
            call = call if wire is not None else await with_buffered_body(call)
        if type(call) is StreamInferRequest:
            # A stream's R is AsyncIterator[InferResponse]: the type system cannot follow that.
            return self._stream(call)  # type: ignore[return-value]
        if wire is None:
            BOUND.allowance = ON_LOOP  # as `inline`, which would be another frame for each request
            try:
                wire = self._codec.encode_call(call)
            except LongWork:
                pass  # below
            finally:
                BOUND.allowance = None
            if wire is None:
                wire = await off_loop(self._codec.encode_call, call)
        try:
            # The client reads the reply before it uses the connection again.
            decode = partial(self._decoded, call)
            reply: R = await self._client.send(wire, deadline=_earlier(call), decode=decode)
        except _BROKEN as error:
            if error.origin is not None:  # the upstream itself replied with this error
                raise self._redacted(call, error) from error.__cause__
            raise self._protocol_error(call, error) from error
        except GatewayError as error:
            raise self._redacted(call, error) from error.__cause__
        return reply

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
        except _BROKEN as error:
            if error.origin is not None:
                raise
            raise self._protocol_error(call, error) from error
        finally:
            BOUND.allowance = None

    async def _decoded_off_loop(self, call: Call[R], response: A) -> R:
        try:
            return await off_loop(self._codec.decode_reply, call, response)
        except _BROKEN as error:
            if error.origin is not None:
                raise
            raise self._protocol_error(call, error) from error

    def _encode_cut_through(self, call: Call[Any]) -> Q | None:
        """Encode *call*, whose body is streaming; None if the whole body is needed first."""
        body = streaming_body_of(call)
        if self._cut_through is None or body is None or body.is_started:
            return None
        return self._cut_through.encode_cut_through(call)

    def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        """Return the replies; a single one where the protocol has no streams."""
        if self._codec.prefers_single_reply and call.model not in self._decoupled:
            return self._single_or_stream(call)
        try:
            wire = self._codec.encode_call(call)
        except SequenceIdTooLarge:
            raise
        except Unsupported:
            return self._single_item_stream(call.request.changed(context=call.context))
        return self._items(call, wire)

    async def _single_or_stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        """Return the single reply; of a decoupled model, which has none, the replies of a stream.

        The server refuses before the model runs, so nothing runs twice.
        """
        try:
            yield await self(call.request.changed(context=call.context))
        except Decoupled as refused:
            try:
                wire = self._codec.encode_call(call)
            except Unsupported as error:
                text = f"{refused.message}; {error.message}"
                raise Unsupported(text, model=call.model) from error
        else:
            return
        if len(self._decoupled) >= _REMEMBERED:
            self._decoupled.clear()
        self._decoupled.add(call.model)
        async with aclosing(self._items(call, wire)) as items:
            async for item in items:
                yield item

    async def _single_item_stream(self, call: InferRequest) -> AsyncIterator[InferResponse]:
        yield await self(call)

    async def _items(
        self, call: StreamInferRequest, wire: Q
    ) -> AsyncGenerator[InferResponse, None]:
        answers = self._client.stream(wire, deadline=_earlier(call))
        splitter = None if self._framing is None else self._framing.splitter()
        try:
            async for part in answers:
                for answer in (part,) if splitter is None else splitter.receive(part):
                    item = await wherever(self._codec.decode_item, call, answer)
                    yield item if item.error is None else self._redacted_item(call, item)
            for answer in () if splitter is None else splitter.end():
                item = await wherever(self._codec.decode_item, call, answer)
                yield item if item.error is None else self._redacted_item(call, item)
        except _BROKEN as error:
            if error.origin is not None:
                raise self._redacted(call, error) from error.__cause__
            raise self._protocol_error(call, error) from error
        except GatewayError as error:
            raise self._redacted(call, error) from error.__cause__
        finally:
            await close_stream(answers)

    def _redacted_item(self, call: StreamInferRequest, item: InferResponse) -> InferResponse:
        error = item.error
        redacted = None if error is None else self._redacted(call, error)
        return item if redacted is error else item.changed(error=redacted)

    def _redacted(self, call: Call[Any], error: GatewayError) -> GatewayError:
        """Return *error* without the names of a server's segments; the log has the whole text."""
        redacted = redacted_error(error)
        if redacted is not error:
            log.warning(
                "names of segments withheld from an error",
                upstream=self._name,
                request_id=call.context.request_id,
                error=error.message,
            )
        return redacted

    def _protocol_error(
        self, call: Call[Any], error: MalformedMessage | InvalidTensor | TooLarge
    ) -> UpstreamProtocolError:
        return UpstreamProtocolError(
            f"upstream {self._name!r} sent a malformed response: {redact(error.message)}",
            model=call.model,
        )


def _earlier(call: Call[Any]) -> float | None:
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
        if self._detected is not None:
            return self._detected(call)
        if type(call) in _PLAIN:
            return self._plain(call)
        return self._detect(call)

    async def _detect(self, call: Call[R]) -> R:
        async with self._lock:
            if self._detected is None:
                self._detected = self._make(await self._server_name(call))
        return await self._detected(call)

    async def _server_name(self, call: Call[Any]) -> str:
        question = ServerMetadataRequest(context=call.context)
        try:
            return (await self._plain(question)).name
        except GatewayError as error:
            if error.retryable or error.origin is None:
                raise
            return ""  # the server has replied, but without its name
