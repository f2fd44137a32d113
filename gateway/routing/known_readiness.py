"""KnownReadiness: whether a model is ready, as far as is known, without waiting for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import ModelReadyRequest
from gateway.ir.context import GATEWAY_CLIENT, Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.service import Service

_TTL_S: Final = 1.0
_WAIT_S: Final = 0.25
"""Platforms wait 2 s for a probe, and the limit of the gateway is 0.5 s."""
_TIMEOUT_S: Final = 5.0
_MOST: Final = 64


class KnownReadiness:
    """Whether models are ready: the last known state, if a server does not answer at once.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lookup: TtlLookup[ModelRef, bool] = TtlLookup(self._ask, _TTL_S, 0, _MOST, clock)
        self._known: BoundedDict[ModelRef, bool] = BoundedDict(_MOST)

    async def is_ready(self, model: ModelRef, context: Context, service: Service) -> bool:
        """Return whether *model* is ready; false if that was never known.

        Args:
            model: The model.
            context: Of the caller, whose route the question takes.
            service: Replies to a ModelReadyRequest.
        """
        found = self._lookup.peek(model)
        if found is not None:
            return found
        question = self._lookup.ask(model, context, service)
        await asyncio.wait([question], timeout=_WAIT_S)
        return self._known.get(model, False)

    async def _ask(self, model: ModelRef, context: Context, service: Service) -> bool:
        own = Context(context.protocol, context.metadata, client=GATEWAY_CLIENT)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                found = await service(ModelReadyRequest(model=model, context=own))
        except (GatewayError, TimeoutError):
            found = False
        self._known[model] = found
        return found
