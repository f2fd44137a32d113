"""Alike: makes requests equal that mean the same, so that they can be batched and answered alike.

Some protocols name every output that is wanted, others say nothing and get all of them.
"""

from __future__ import annotations

from typing import TypeVar, cast

from gateway.ir.calls import CONTROLS, Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.policies.known import Known
from gateway.policies.stand_ins import in_order
from gateway.service import Service

R = TypeVar("R")


class Alike:
    """Lets a request for each of a model's outputs by name be one for all of them.

    The answer has them in the order that was asked for.

    Args:
        inner: Answers.
        known: Tells a model's outputs.
    """

    def __init__(self, inner: Service, known: Known) -> None:
        self._inner = inner
        self._known = known

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*."""
        if isinstance(call, InferRequest) and call.outputs:
            # The answer to an InferRequest is an InferResponse, which is its R.
            return cast("R", await self._infer(call))
        try:
            return await self._inner(call)
        finally:
            if type(call) in CONTROLS:
                self._known.forget(call.model)

    async def _infer(self, call: InferRequest) -> InferResponse:
        if not await self._asks_all(call):
            return await self._inner(call)
        reply = await self._inner(call.changed(outputs=()))
        outputs = in_order(reply.outputs, [output.name for output in call.outputs])
        return reply if outputs is reply.outputs else reply.changed(outputs=outputs)

    async def _asks_all(self, call: InferRequest) -> bool:
        for output in call.outputs:
            if output.classes or output.parameters or output.shared is not None:
                return False
        metadata = await self._known(call.model or ModelRef(""))
        if metadata is None:
            return False
        return {output.name for output in call.outputs} == {
            known.name for known in metadata.outputs
        }
