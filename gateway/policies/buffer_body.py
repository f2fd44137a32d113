"""Land: waits for bytes that are still arriving, before what cannot do without them."""

from __future__ import annotations

from typing import TypeVar

from gateway.ir.calls import Call
from gateway.ir.streaming_body import streaming_body_of, with_buffered_body
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")


class BufferBody:
    """Gives *inner* only calls whose tensors are here.

    Args:
        inner: Reads tensors: an in-process model, a batch, a cache.
    """

    def __init__(self, inner: Service) -> None:
        self._inner = inner

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call* once it is whole.

        Raises:
            Overloaded: There is no room for what is to come.
        """
        return self._inner(call) if streaming_body_of(call) is None else self._landed(call)

    async def _landed(self, call: Call[R]) -> R:
        return await self._inner(await with_buffered_body(call))
