"""CountModelCalls: counts the running calls of each model at each endpoint."""

import asyncio
from collections import Counter
from typing import Final, TypeVar

from gateway.api.layer import Entries
from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest
from gateway.ir.streams import on_stream_end
from gateway.service import ReplyCoroutine

R = TypeVar("R")

_Key = tuple[str, str]
_INFERENCES: Final = frozenset({InferRequest, StreamInferRequest})


class ModelCalls:
    """The running inferences of an upstream, by endpoint and model."""

    def __init__(self) -> None:
        self._running: Counter[_Key] = Counter()
        self._ended: dict[_Key, asyncio.Event] = {}

    def begin(self, endpoint: str, model: str) -> None:
        """Count a call."""
        self._running[endpoint, model] += 1

    def end(self, endpoint: str, model: str) -> None:
        """Count it no longer."""
        key = endpoint, model
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
            ended = self._ended.pop(key, None)
            if ended is not None:
                ended.set()

    async def wait_until_ended(self, endpoint: str, model: str, timeout_s: float) -> bool:
        """Wait for the running calls of a model at an endpoint; return whether they have ended."""
        key = endpoint, model
        if not self._running[key]:
            del self._running[key]
            return True
        ended = self._ended.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            return False
        return True


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
