"""Single: one answer from a model that gives any number of them.

Servers refuse to be asked for one answer of such a model (Triton: "decoupled transaction policy");
asked with a stream it may well give one.
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

_REMEMBERED = 1024
_NAMELESS = ModelRef("")


class SingleReply:
    """Asks with a stream for the one answer that a server will not give otherwise.

    The server refused before its model ran, so asking again repeats nothing. Models that refused
    are remembered, and asked with a stream from then on, which any model answers.

    Args:
        inner: Raises `Decoupled` where it needs a stream.
        inference: Answers each InferRequest; None for *inner*.
    """

    def __init__(self, inner: Service, *, inference: Service | None = None) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._decoupled: BoundedDict[ModelRef, None] = BoundedDict(_REMEMBERED)

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*.

        Raises:
            Unsupported: The model gave no answer, or more than one.
        """
        if type(call) is not InferRequest:
            return await self._inner(call)
        # Hardly ever is there a model to look for.
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
