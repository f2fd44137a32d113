"""Iterators for reply streams, which outlive the call that opens them.

A generator that never starts never runs its `finally`. These iterators are objects, so that a layer
that acquired a resource for a stream is notified of every end of it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import NotOneReply

R = TypeVar("R")

EndCallback = Callable[[BaseException | None], None]
"""Called once when a reply is complete, with None or the error."""


class HeldReply(Protocol):
    """The memory of an encoded reply that waits."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it counts."""
        ...

    def close(self) -> None:
        """Release it. A second call does nothing."""
        ...


class NotifyingStream:
    """A stream that calls *on_end* once: when it ends, fails or is closed."""

    def __init__(self, items: AsyncIterator[InferResponse], on_end: EndCallback) -> None:
        self._items = items
        self._on_end: EndCallback | None = on_end

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        """Return the next reply."""
        try:
            return await anext(self._items)
        except StopAsyncIteration:
            self._notify(None)
            raise
        except BaseException as error:
            self._notify(error)
            raise

    async def aclose(self) -> None:
        """Close the underlying stream; may be called twice."""
        try:
            await close_stream(self._items)
        finally:
            self._notify(None)

    def silence(self) -> bool:
        """Call *on_end* never more; return whether it would have been called."""
        on_end, self._on_end = self._on_end, None
        return on_end is not None

    def _notify(self, error: BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)


class MappedStream:
    """A stream that applies *change* to each reply."""

    def __init__(
        self,
        items: AsyncIterator[InferResponse],
        change: Callable[[InferResponse], Awaitable[InferResponse]],
    ) -> None:
        self._items = items
        self._change = change

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        """Return the next reply, changed."""
        return await self._change(await anext(self._items))

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await close_stream(self._items)


def is_streaming(call: Call[Any], /) -> bool:
    """Return whether the reply to *call* is a stream."""
    return type(call) is StreamInferRequest


def on_stream_end(call: Call[R], reply: R, on_end: EndCallback) -> R:
    """Call *on_end* when *reply* is complete: at the end of a stream, else now."""
    if is_streaming(call):
        return map_stream(call, reply, lambda items: NotifyingStream(items, on_end))
    on_end(None)
    return reply


def map_stream(
    call: Call[R],
    reply: R,
    wrap: Callable[[AsyncIterator[InferResponse]], AsyncIterator[InferResponse]],
) -> R:
    """Return *reply* wrapped if it is a stream, else unchanged."""
    if is_streaming(call):
        # Here R is AsyncIterator[InferResponse]; the type system cannot follow that.
        return cast("R", wrap(cast("AsyncIterator[InferResponse]", reply)))
    return reply


async def only_reply(model: ModelRef, items: AsyncIterator[InferResponse]) -> InferResponse:
    """Return the only reply of *items*, and close them.

    Raises:
        NotOneReply: There is no reply, or more than one.
        GatewayError: The reply is an error.
    """
    found = await first_replies(items, 2)
    if len(found) != 1:
        count = "more than one response" if found else "no response"
        raise NotOneReply(
            f"decoupled model {str(model)!r} sent {count}; use a streaming call",
            model=model,
        )
    return found[0]


async def first_replies(items: AsyncIterator[InferResponse], most: int) -> list[InferResponse]:
    """Return the replies of *items* without end marks, *most* at most, and close them.

    Raises:
        GatewayError: A reply is an error.
    """
    found: list[InferResponse] = []
    try:
        async for item in items:
            if item.error is not None:
                raise item.error
            if not item.is_end_mark:
                found.append(item)
            if len(found) == most:
                break
    finally:
        await close_stream(items)
    return found


async def close_stream(items: AsyncIterator[Any], /) -> None:
    """Close *items* if it has `aclose`."""
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
