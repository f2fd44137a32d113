"""Unsequenced: refuses requests of a sequence where the next one may reach another process.

A model in the gateway's own process keeps what it knows of a sequence there. Where several
processes serve, requests of one sequence come to whichever has the connection.
"""

from __future__ import annotations

from typing import TypeVar

from gateway.ir.calls import Call, InferRequest, StreamInferRequest
from gateway.ir.errors import Unsupported
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")


class RejectSequences:
    """Passes on everything else.

    Args:
        inner: A model that may keep a state.
        workers: How many processes serve, for the error.
    """

    def __init__(self, inner: Service, workers: int) -> None:
        self._inner = inner
        self._workers = workers

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*.

        Raises:
            Unsupported: It belongs to a sequence.
        """
        request = call.request if isinstance(call, StreamInferRequest) else call
        if isinstance(request, InferRequest) and request.sequence is not None:
            return self._refuse(call)
        return self._inner(call)

    async def _refuse(self, call: Call[R]) -> R:
        raise Unsupported(
            f"the gateway has {self._workers} workers, and model {str(call.model)!r} runs in "
            "each: the requests of a sequence could reach any of them; it needs 'workers: 1'",
            model=call.model,
        )
