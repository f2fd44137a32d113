"""Upstream: a Service on the far side of a wire.

Generic: it names no protocol and no socket. A remote's bad message becomes UpstreamProtocolError
here, because a codec cannot know which side it stands on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Protocol, TypeVar

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.errors import (
    GatewayError,
    InvalidTensor,
    MalformedMessage,
    TooLarge,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.streaming_body import streaming_body_of, with_buffered_body
from gateway.ir.streams import close_stream
from gateway.service import ReplyCoroutine, Service
from gateway.wire.codec import Codec, CutThroughCodec, FramingCodec

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)

# What codec and client raise about a message's bytes and size: here they are the upstream's.
_BROKEN = (MalformedMessage, InvalidTensor, TooLarge)

_MARGIN_S = 0.005


class Client(Protocol[Q_contra, A_co]):
    """The part of a client transport that an upstream uses; see `transports.base`.

    One that sends what is still to come of a message (`rest`) has `sends_rest`, which is true.
    """

    async def send(self, wire: Q_contra, /, *, deadline: float | None) -> A_co: ...  # noqa: D102
    def stream(self, wire: Q_contra, /, *, deadline: float | None) -> AsyncIterator[A_co]: ...  # noqa: D102
    async def close(self) -> None: ...  # noqa: D102


class Upstream(Generic[Q, A]):
    """A client's side of one codec.

    Args:
        name: Named in errors.
        codec: Writes requests and reads answers.
        client: Carries them.
    """

    def __init__(self, name: str, codec: Codec[Q, A], client: Client[Q, A]) -> None:
        self._name = name
        self._codec = codec
        self._client = client
        self._framing: FramingCodec[Q, A] | None = None
        if isinstance(codec, FramingCodec):
            self._framing = codec
        self._cut_through: CutThroughCodec[Q, A] | None = None
        if getattr(client, "sends_rest", False) and isinstance(codec, CutThroughCodec):
            self._cut_through = codec

    async def __call__(self, call: Call[R], /) -> R:
        """Ask the upstream.

        The deadline sent on is 5 ms before the caller's, so that the answer, or the error, is
        back in time.

        Raises:
            UpstreamProtocolError: The answer cannot be read.
            GatewayError: What the upstream answered, or what went wrong on the way.
        """
        wire = None
        if streaming_body_of(call) is not None:
            wire = self._encode_cut_through(call)
            call = call if wire is not None else await with_buffered_body(call)
        if type(call) is StreamInferRequest:
            # A stream's R is AsyncIterator[InferResponse]: the type system cannot follow that.
            return self._stream(call)  # type: ignore[return-value]
        if wire is None:
            wire = self._codec.encode_call(call)
        try:
            answer = await self._client.send(wire, deadline=_earlier(call))
            return self._codec.decode_reply(call, answer)
        except _BROKEN as error:
            if error.origin is not None:  # the upstream itself said so, in good form
                raise
            raise self._protocol_error(call, error) from error

    def _encode_cut_through(self, call: Call[Any]) -> Q | None:
        """Write *call*, whose inputs are arriving; None where they must all be here first.

        That they cannot be sent a second time is for `landed` to say.
        """
        arriving = streaming_body_of(call)
        if self._cut_through is None or arriving is None or arriving.is_started:
            return None
        return self._cut_through.encode_cut_through(call)

    def _stream(self, call: StreamInferRequest) -> AsyncIterator[InferResponse]:
        """Return the answers; the only one, where the protocol has no streams."""
        try:
            wire = self._codec.encode_call(call)
        except Unsupported:
            return self._single_item_stream(call.request.changed(context=call.context))
        return self._items(call, wire)

    async def _single_item_stream(self, call: InferRequest) -> AsyncIterator[InferResponse]:
        yield await self(call)

    async def _items(self, call: StreamInferRequest, wire: Q) -> AsyncIterator[InferResponse]:
        answers = self._client.stream(wire, deadline=_earlier(call))
        splitter = None if self._framing is None else self._framing.splitter()
        try:
            async for part in answers:
                for answer in (part,) if splitter is None else splitter.receive(part):
                    yield self._codec.decode_item(call, answer)
            for answer in () if splitter is None else splitter.end():
                yield self._codec.decode_item(call, answer)
        except _BROKEN as error:
            if error.origin is not None:
                raise
            raise self._protocol_error(call, error) from error
        finally:
            await close_stream(answers)

    def _protocol_error(
        self, call: Call[Any], error: MalformedMessage | InvalidTensor | TooLarge
    ) -> UpstreamProtocolError:
        return UpstreamProtocolError(
            f"upstream {self._name!r} sent an answer that cannot be used: {error.message}",
            model=call.model,
        )


def _earlier(call: Call[Any]) -> float | None:
    """Return the deadline that is sent on."""
    deadline = call.context.deadline
    return None if deadline is None else deadline - _MARGIN_S


# The same in every dialect, and asked before the dialect is known.
_PLAIN = (ServerLiveRequest, ServerReadyRequest, ServerMetadataRequest)


class DialectDetectingUpstream:
    """An upstream whose codec depends on what its server says it is.

    The server is asked once, at the first call that needs to know; until it has answered, such
    calls fail as the question did.

    Args:
        plain: Asks what is the same in every dialect.
        make: Makes the upstream for a server of this name; "" when it has none.
    """

    def __init__(self, plain: Service, make: Callable[[str], Service]) -> None:
        self._plain = plain
        self._make = make
        self._settled: Service | None = None
        self._asking = asyncio.Lock()

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Ask the upstream in its own dialect."""
        if self._settled is not None:
            return self._settled(call)
        if type(call) in _PLAIN:
            return self._plain(call)
        return self._settling(call)

    async def _settling(self, call: Call[R]) -> R:
        async with self._asking:
            if self._settled is None:
                self._settled = self._make(await self._server_name(call))
        return await self._settled(call)

    async def _server_name(self, call: Call[Any]) -> str:
        question = ServerMetadataRequest(context=call.context)
        try:
            return (await self._plain(question)).name
        except GatewayError as error:
            if error.retryable or error.origin is None:
                raise
            return ""  # it answered, and will not say who it is
