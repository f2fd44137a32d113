"""ServerDialects: how the servers of models differ, for requests that a codec refuses.

A codec reads strictly, and MLServer and KServe read more than Triton. Only the refusal of a request
waits for the question which server its model has.
"""

import asyncio
from time import monotonic
from typing import Final

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.service import Service

_MAX_CACHED: Final = 1024
_TTL_S: Final = 30.0
_TIMEOUT_S: Final = 5.0


class ServerDialects:
    """The dialects of the servers of models, from their metadata.

    Args:
        service: Replies to calls for metadata.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cached: BoundedDict[ModelRef, tuple[float, str]] = BoundedDict(_MAX_CACHED)
        self._pending: dict[ModelRef, asyncio.Task[str]] = {}

    async def find(self, model: ModelRef, context: Context) -> str:
        """Return the dialect of the server of *model*; "" where nothing tells it.

        Args:
            model: The model of the request.
            context: Of the caller, for a question that takes the route of its request.
        """
        expires, found = self._cached.get(model, (0.0, ""))
        if monotonic() < expires:
            return found
        task = self._pending.get(model)
        if task is None:
            task = self._pending[model] = asyncio.ensure_future(self._ask(model, context))
            task.add_done_callback(lambda _: self._pending.pop(model, None))
        return await asyncio.shield(task)

    async def _ask(self, model: ModelRef, context: Context) -> str:
        found = ""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                question = ModelMetadataRequest(model=model, context=context)
                found = (await self._service(question)).dialect
        except (GatewayError, TimeoutError):
            pass  # the refusal stands
        self._cached[model] = (monotonic() + _TTL_S, found)
        return found
