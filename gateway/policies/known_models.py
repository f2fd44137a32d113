"""KnownModels: sends inferences only to models that the server knows.

MLServer keeps metrics for each name in an inference for ever, also for names that a client invents.
A question for the metadata of an unknown model leaves nothing behind.
"""

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, ModelMetadataRequest, inference_of
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, ModelNotFound, NotFound
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")


class KnownModels:
    """Asks for the metadata of a model before its first inference.

    Args:
        inner: The service to call.
        passes: Whether a call goes on without a question, because the server alone reads it.
        unknown_s: Time for which an unknown name is not asked for again.
        timeout_s: Timeout of a question.
        clock: Monotonic seconds; that of `Context.deadline`.
    """

    def __init__(
        self,
        inner: Service,
        passes: Callable[[Call[Any]], bool] = lambda _call: False,
        *,
        unknown_s: float = 5.0,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._passes = passes
        self._timeout_s = timeout_s
        self._clock = clock
        self._lookup: TtlLookup[ModelRef, bool] = TtlLookup(
            self._look_up, math.inf, unknown_s, clock=clock
        )

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* if the server knows the model.

        Raises:
            ModelNotFound: The server does not know it.
            GatewayError: The error of *inner*, also of the question for the metadata.
        """
        model = call.model
        if (
            model is None
            or self._lookup.peek(model)
            or inference_of(call) is None
            or self._passes(call)
        ):
            if type(call) in MODEL_CONTROL_CALLS:
                self._lookup.forget_all()
            return self._inner(call)
        return self._infer_unknown(model, call)

    async def _infer_unknown(self, model: ModelRef, call: Call[R]) -> R:
        if not await self._lookup.get(model):
            raise ModelNotFound(f"model {str(model)!r} is unknown to its server", model=model)
        return await self._inner(call)

    async def _look_up(self, model: ModelRef) -> bool | None:
        context = Context(deadline=self._clock() + self._timeout_s)
        try:
            await self._inner(ModelMetadataRequest(model=model, context=context))
        except NotFound:
            return None
        except GatewayError as error:
            if error.origin is None:
                raise
            # The model is there, but its runtime does not describe it.
        return True
