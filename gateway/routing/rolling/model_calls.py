"""CountModelCalls: counts the running calls of each model at each endpoint."""

from typing import Final, TypeVar

from gateway.api.layer import Entries
from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest
from gateway.service import ReplyCoroutine
from gateway.telemetry.usage.model_calls import ModelCalls

R = TypeVar("R")

_INFERENCES: Final = frozenset({InferRequest, StreamInferRequest})


class CountModelCalls:
    """Counts the inferences that one endpoint runs.

    Args:
        inner: The endpoint.
        calls: Has the counts.
        endpoint: Its name.
    """

    def __init__(self, inner: Entries, calls: ModelCalls, endpoint: str) -> None:
        self._inner = inner.questions
        self._inference = inner.inference
        self._calls = calls
        self._endpoint = endpoint

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*."""
        return self._counted(call) if type(call) in _INFERENCES else self._inner(call)

    async def handle_inference(self, call: InferRequest, /) -> InferResponse:
        """Call *inner*, and count the call meanwhile."""
        calls, endpoint = self._calls, self._endpoint
        model = "" if call.model is None else call.model.name
        calls.begin(endpoint, model)
        try:
            return await self._inference(call)
        finally:
            calls.end(endpoint, model)

    async def _counted(self, call: Call[R]) -> R:
        model = "" if call.model is None else call.model.name
        self._calls.begin(self._endpoint, model)

        def end(_error: BaseException | None) -> None:
            self._calls.end(self._endpoint, model)

        try:
            reply = await self._inner(call)
        except BaseException as error:
            end(error)
            raise
        return on_stream_end(call, reply, end)
