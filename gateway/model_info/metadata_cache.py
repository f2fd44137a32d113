"""MetadataCache: caches model metadata, and shares one call among concurrent lookups."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar, cast

import structlog

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import DeadlineExceeded, GatewayError
from gateway.ir.metadata import ModelMetadata
from gateway.service import Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")

_LIMIT = 1024
_UNAVAILABLE_S = 10.0
_NO_NEEDS: frozenset[Need] = frozenset()
_BATCHING = frozenset({Need.BATCHING})

METADATA_TTL_S = 10.0
"""For batching, because a reload may change the maximum batch size."""

# A model, and whether the metadata include the maximum batch size.
_Key = tuple[ModelRef, bool]


class MetadataCache:
    """Caches the replies to ModelMetadataRequest; other calls pass unchanged.

    Metadata with the maximum batch size have separate entries, because they may take a second call.
    Errors are cached only by `get_or_none`. The call is the gateway's own: it has no headers of a
    caller and its own deadline, and it continues if the caller is cancelled.

    Args:
        inner: The service to call.
        ttl_s: Time for which a reply is cached.
        timeout_s: Timeout of the call.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        inner: Service,
        *,
        ttl_s: float = 30.0,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._clock = clock
        self._lookup: TtlLookup[_Key, ModelMetadata] = TtlLookup(
            self._fetch, ttl_s, _UNAVAILABLE_S, _LIMIT, clock
        )

    async def __call__(self, call: Call[R], /) -> R:
        """Return cached metadata, or call *inner*.

        Raises:
            DeadlineExceeded: The service did not reply before the timeout.
        """
        if type(call) is not ModelMetadataRequest or call.model is None:
            return await self._inner(call)
        key = (call.model, Need.BATCHING in call.context.needs)
        found = self._lookup.peek(key)
        if found is None:  # or known to be unavailable, which this call finds out again
            found = await asyncio.shield(self._lookup.ask(key))
        return cast("R", found)  # the R of a ModelMetadataRequest is ModelMetadata

    def peek(self, model: ModelRef) -> ModelMetadata | None:
        """Return cached metadata without the maximum batch size; None for none."""
        return self._lookup.peek((model, False))

    async def get_or_none(self, model: ModelRef, *, batching: bool = False) -> ModelMetadata | None:
        """Return the metadata of *model*; None if they are unavailable.

        Caches errors too, so that a model without metadata does not cost a call for every request.

        Args:
            model: The model.
            batching: Include the maximum batch size.
        """
        key = (model, batching)
        try:
            return await self._lookup.get(key)
        except GatewayError as error:
            log.debug("metadata unavailable", model=str(model), reason=error_text(error))
            self._lookup.put(key, None)
            return None

    def forget(self, model: ModelRef | None) -> None:
        """Discard the entries of all versions of *model*, which may have changed."""
        if model is not None:
            self._lookup.forget_if(lambda key: key[0].name == model.name)

    def invalidate_if_stale(self, model: ModelRef | None) -> None:
        """Discard the entries of *model* after an error: the model may have been reloaded.

        Recent entries stay, so that invalid requests do not double the number of calls.
        """
        if model is not None:
            self._lookup.forget_if_stale((model, False))
            self._lookup.forget_if_stale((model, True))

    async def _fetch(self, key: _Key) -> ModelMetadata:
        model, batching = key
        context = Context(
            deadline=self._clock() + self._timeout_s, needs=_BATCHING if batching else _NO_NEEDS
        )
        scope = asyncio.timeout(self._timeout_s)
        try:
            async with scope:
                return await self._inner(ModelMetadataRequest(model=model, context=context))
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineExceeded(
                f"no metadata of model {str(model)!r} within {self._timeout_s} s", model=model
            ) from None
