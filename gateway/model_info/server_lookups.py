"""What a frontend looks up about the server of a model: whether replies have an order; its dialect.

A codec reads strictly, and MLServer and KServe read more than Triton. Only the refusal of a request
waits for the question which server its model has.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import structlog

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import ModelConfigRequest, ModelMetadataRequest, StreamInferRequest
from gateway.ir.context import GATEWAY_CLIENT, Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.service import Service

log = structlog.get_logger(__name__)

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
        self._lookup: TtlLookup[ModelRef | None, bool] = TtlLookup(
            self._find, _TTL_S, _UNKNOWN_TTL_S
        )

    def is_decoupled(self, call: StreamInferRequest) -> bool | Coroutine[Any, Any, bool]:
        """Return whether the model of *call* is decoupled, or a coroutine that asks."""
        found = self._lookup.peek(call.model)
        return self._ask(call) if found is None else found

    async def _ask(self, call: StreamInferRequest) -> bool:
        return bool(await self._lookup.get(call.model, call))

    async def _find(self, model: ModelRef | None, call: StreamInferRequest) -> bool | None:
        """Return whether the model is decoupled; None, which keeps the order, if nobody knows."""
        context = call.with_context(origin=None, session=None, client=GATEWAY_CLIENT).context
        question = ModelConfigRequest(model=model, context=context)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return (await self._service(question)).decoupled
        except (GatewayError, TimeoutError):
            return None
        except Exception:  # the call meets it again
            log.exception("internal error", model=str(model))
            return None


class ServerDialects:
    """The dialects of the servers of models, from their metadata.

    Args:
        service: Replies to calls for metadata.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lookup: TtlLookup[ModelRef, str] = TtlLookup(self._ask, _TTL_S, _TTL_S)

    async def find(self, model: ModelRef, context: Context) -> str:
        """Return the dialect of the server of *model*; "" where nothing tells it.

        Args:
            model: The model of the request.
            context: Of the caller, for a question that takes the route of its request.
        """
        return await self._lookup.get(model, context) or ""

    async def _ask(self, model: ModelRef, context: Context) -> str | None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                question = ModelMetadataRequest(model=model, context=context)
                return (await self._service(question)).dialect
        except (GatewayError, TimeoutError):
            return None  # the refusal stands
