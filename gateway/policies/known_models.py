"""KnownModels: sends inferences only to models that the server knows.

MLServer keeps metrics for each name in an inference for ever, also for names that a client invents.
A question for the metadata of an unknown model leaves nothing behind.
"""

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, ModelMetadataRequest, inference_of
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, ModelNotFound, NotFound
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_MAX_MODELS: Final = 1024


class KnownModels:
    """Asks for the metadata of a model before its first inference.

    Args:
        inner: The service to call.
        unknown_s: Time for which an unknown name is not asked for again.
        timeout_s: Timeout of a question.
        clock: Monotonic seconds; that of `Context.deadline`.
    """

    def __init__(
        self,
        inner: Service,
        *,
        unknown_s: float = 5.0,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._unknown_s = unknown_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._known: BoundedDict[ModelRef, None] = BoundedDict(_MAX_MODELS)
        self._unknown: BoundedDict[ModelRef, float] = BoundedDict(_MAX_MODELS)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner* if the server knows the model.

        Raises:
            ModelNotFound: The server does not know it.
            GatewayError: The error of *inner*, also of the question for the metadata.
        """
        model = call.model
        if model is None or model in self._known or inference_of(call) is None:
            if type(call) in MODEL_CONTROL_CALLS:
                self._known.clear()
                self._unknown.clear()
            return self._inner(call)
        return self._infer_unknown(model, call)

    async def _infer_unknown(self, model: ModelRef, call: Call[R]) -> R:
        if self._clock() < self._unknown.get(model, 0.0):
            raise _not_found(model)
        await self._look_up(model, call)
        return await self._inner(call)

    async def _look_up(self, model: ModelRef, call: Call[Any]) -> None:
        deadline = self._clock() + self._timeout_s
        if call.context.deadline is not None:
            deadline = min(deadline, call.context.deadline)
        try:
            await self._inner(ModelMetadataRequest(model=model, context=Context(deadline=deadline)))
        except NotFound as error:
            self._unknown[model] = self._clock() + self._unknown_s
            raise _not_found(model) from error
        except GatewayError as error:
            if error.origin is None:
                raise
            # The model is there, but its runtime does not describe it.
        self._known[model] = None


def _not_found(model: ModelRef) -> ModelNotFound:
    return ModelNotFound(f"model {str(model)!r} is unknown to its server", model=model)
