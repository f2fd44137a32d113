"""BufferBody: reads streaming bodies completely, for services that need all bytes."""

from typing import TypeVar

from gateway.ir.bodies.streamed_inputs import streaming_body_of, with_buffered_body
from gateway.ir.calls import Call, InferRequest
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")


class BufferBody:
    """Calls *inner* only with tensors that are completely received.

    Args:
        inner: A service that reads tensors: an in-process model, a batch, a cache.
        inference: Handles each InferRequest; None for *inner*.
    """

    def __init__(self, inner: Service, *, inference: Service | None = None) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* when the body is received.

        Raises:
            Overloaded: The memory budget has no room for the body.
        """
        if streaming_body_of(call) is not None:
            return self._buffer(call)
        inner = self._inference if type(call) is InferRequest else self._inner
        return inner(call)

    async def _buffer(self, call: Call[R]) -> R:
        return await self._inner(await with_buffered_body(call))
