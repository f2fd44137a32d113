"""ServerDialects: how the servers of models differ, for requests that a codec refuses.

A codec reads strictly, and MLServer and KServe read more than Triton. Only the refusal of a request
waits for the question which server its model has.
"""

import asyncio
from typing import Final

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.service import Service

_TTL_S: Final = 30.0
_TIMEOUT_S: Final = 5.0


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
