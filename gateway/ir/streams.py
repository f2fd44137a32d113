"""What layers need to look after a stream of answers that outlives the call that opened it.

A generator that is never started never runs its `finally`; these iterators are objects, so that
whoever took something for a stream gets told of its end however it ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import NotOneAnswer

R = TypeVar("R")

Ended = Callable[[BaseException | None], None]
"""Told once that an answer is complete: None, or what went wrong."""


class NotifyingStream:
    """Passes a stream on and tells *ended* once: at its end, its failure or its closing."""

    def __init__(self, items: AsyncIterator[InferResponse], ended: Ended) -> None:
        self._items = items
        self._ended: Ended | None = ended

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        """Return the next answer."""
        try:
            return await anext(self._items)
        except StopAsyncIteration:
            self._tell(None)
            raise
        except BaseException as error:
            self._tell(error)
            raise

    async def aclose(self) -> None:
        """Close the stream beneath; harmless the second time."""
        try:
            await close_stream(self._items)
        finally:
            self._tell(None)

    def _tell(self, error: BaseException | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(error)


class MappedStream:
    """A stream with each answer changed by *change*."""

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
        """Return the next answer, changed."""
        return await self._change(await anext(self._items))

    async def aclose(self) -> None:
        """Close the stream beneath."""
        await close_stream(self._items)


def streams(call: Call[Any], /) -> bool:
    """Return whether *call* is answered by a stream."""
    return type(call) is StreamInferRequest


def on_stream_end(call: Call[R], reply: R, ended: Ended) -> R:
    """Tell *ended* when *reply* is complete: now, or at the end of it when it is a stream."""
    if streams(call):
        return map_stream(call, reply, lambda items: NotifyingStream(items, ended))
    ended(None)
    return reply


def map_stream(
    call: Call[R],
    reply: R,
    wrap: Callable[[AsyncIterator[InferResponse]], AsyncIterator[InferResponse]],
) -> R:
    """Return *reply* wrapped when it is a stream, else as it is."""
    if streams(call):
        # Here R is AsyncIterator[InferResponse]; the type system cannot follow that.
        return cast("R", wrap(cast("AsyncIterator[InferResponse]", reply)))
    return reply


async def only_answer(model: ModelRef, items: AsyncIterator[InferResponse]) -> InferResponse:
    """Return the one answer that *items* give, and close them.

    Raises:
        NotOneAnswer: They give none, or more than one.
        GatewayError: The answer is an error.
    """
    found: list[InferResponse] = []
    try:
        async for item in items:
            if item.error is not None:
                raise item.error
            if item.outputs or not item.final:  # else it only marks the end
                found.append(item)
            if len(found) > 1:
                break
    finally:
        await close_stream(items)
    if len(found) != 1:
        count = "no answer" if not found else "more than one answer"
        raise NotOneAnswer(
            f"model {str(model)!r} is decoupled and gave {count}: ask it with a stream",
            model=model,
        )
    return found[0]


async def close_stream(items: AsyncIterator[Any], /) -> None:
    """Close *items* when it can be closed."""
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
