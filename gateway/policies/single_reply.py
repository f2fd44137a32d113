"""SingleReply: unary calls to decoupled models, which send any number of replies.

Servers reject unary calls to such models (Triton: "decoupled transaction policy"), but accept
streaming calls, whose stream may have exactly one reply.
"""

from __future__ import annotations

from typing import TypeVar, cast

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Decoupled
from gateway.ir.streams import only_reply
from gateway.service import Service

R = TypeVar("R")

_MAX_CACHED = 1024
_NAMELESS = ModelRef("")


class SingleReply:
    """Sends a rejected unary call to a decoupled model again, as a streaming call.

    The server rejects the unary call before the model runs, so nothing runs twice. Later calls to
    the model are streaming from the start.

    Args:
        inner: The service to call; raises `Decoupled` if it requires a stream.
        inference: Handles each InferRequest; None for *inner*.
    """

    def __init__(self, inner: Service, *, inference: Service | None = None) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._decoupled: BoundedDict[ModelRef, None] = BoundedDict(_MAX_CACHED)

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*.

        Raises:
            Unsupported: The model sent no reply, or several.
        """
        if type(call) is not InferRequest:
            return await self._inner(call)
        # Usually there is no decoupled model.
        if not self._decoupled or (call.model or _NAMELESS) not in self._decoupled:
            try:
                return await self._inference(call)  # type: ignore[arg-type]  # its R is InferResponse
            except Decoupled:
                self._decoupled[call.model or _NAMELESS] = None
        # An InferRequest's R is InferResponse: the type system cannot follow that.
        return cast("R", await self._only(call.model or _NAMELESS, call))

    async def _only(self, model: ModelRef, call: InferRequest) -> InferResponse:
        stream = StreamInferRequest(model=call.model, context=call.context, request=call)
        reply = await only_reply(model, await self._inner(stream))
        return reply if reply.final else reply.changed(final=True)
