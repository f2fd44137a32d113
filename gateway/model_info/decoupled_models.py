"""DecoupledModels: whether the replies to several requests of a stream have an order."""

import asyncio
from collections.abc import Coroutine
from time import monotonic
from typing import Any, Final

import structlog

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import ModelConfigRequest, StreamInferRequest
from gateway.ir.context import GATEWAY_CLIENT, ModelRef
from gateway.ir.errors import GatewayError
from gateway.service import Service

log = structlog.get_logger(__name__)

_MAX_CACHED: Final = 1024
_TTL_S: Final = 30.0
_UNKNOWN_TTL_S: Final = 1.0
_TIMEOUT_S: Final = 5.0


class DecoupledModels:
    """Which models are decoupled: the replies to several of their requests have no order.

    Args:
        service: Replies to calls for model configurations.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cached: BoundedDict[ModelRef | None, tuple[float, bool]] = BoundedDict(_MAX_CACHED)
        self._pending: dict[ModelRef | None, asyncio.Task[bool]] = {}

    def is_decoupled(self, call: StreamInferRequest) -> bool | Coroutine[Any, Any, bool]:
        """Return whether the model of *call* is decoupled, or a coroutine that asks."""
        expires, found = self._cached.get(call.model, (0.0, False))
        return found if monotonic() < expires else self._ask(call)

    async def _ask(self, call: StreamInferRequest) -> bool:
        task = self._pending.get(call.model)
        if task is None:
            task = self._pending[call.model] = asyncio.ensure_future(self._find(call))
            task.add_done_callback(lambda _: self._pending.pop(call.model, None))
        return await asyncio.shield(task)

    async def _find(self, call: StreamInferRequest) -> bool:
        context = call.with_context(origin=None, session=None, client=GATEWAY_CLIENT).context
        question = ModelConfigRequest(model=call.model, context=context)
        found, ttl_s = False, _UNKNOWN_TTL_S  # the order is kept while nothing is known
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                found, ttl_s = (await self._service(question)).decoupled, _TTL_S
        except (GatewayError, TimeoutError):
            pass
        except Exception:  # the call meets it again
            log.exception("internal error", model=str(call.model))
        self._cached[call.model] = (monotonic() + ttl_s, found)
        return found
