"""Known: what models say of themselves, for layers that do without where a model does not tell."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelMetadata
from gateway.policies.metadata_cache import MetadataCache
from gateway.service import Service

log = structlog.get_logger(__name__)

_REMEMBERED = 1024
_CONTEXT = Context(needs=frozenset({Need.BATCHING}))


class Known:
    """Remembers metadata, how the model batches included, and that they could not be had.

    Args:
        inner: The model's target.
        ttl_s: How long either is remembered.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        inner: Service,
        *,
        ttl_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metadata = MetadataCache(inner, ttl_s=ttl_s, clock=clock)
        self._ttl_s = ttl_s
        self._clock = clock
        self._known: dict[ModelRef, tuple[float, ModelMetadata | None]] = {}

    async def __call__(self, model: ModelRef, /) -> ModelMetadata | None:
        """Return the metadata of *model*; None where they cannot be had."""
        now = self._clock()
        known = self._known.get(model)
        if known is not None and now < known[0]:
            return known[1]
        try:
            found = await self._metadata(ModelMetadataRequest(model=model, context=_CONTEXT))
        except GatewayError as error:
            log.debug("metadata not told", model=str(model), reason=error.message)
            found = None
        if len(self._known) >= _REMEMBERED:  # clients name versions
            self._known.clear()
        self._known[model] = (now + self._ttl_s, found)
        return found

    def forget(self, model: ModelRef | None) -> None:
        """Ask again about *model*, which may have changed."""
        self._known.clear()
        self._metadata.forget(model)
