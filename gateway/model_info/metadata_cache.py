"""MetadataCache: caches model metadata, and shares one call among concurrent lookups."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import structlog

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import DeadlineExceeded, GatewayError
from gateway.ir.metadata import ModelMetadata
from gateway.service import Service
from gateway.telemetry.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")

_LIMIT = 1024
_MIN_AGE_S = 1.0
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
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._entries: BoundedDict[_Key, tuple[float, ModelMetadata]] = BoundedDict(_LIMIT)
        self._pending: dict[_Key, asyncio.Task[ModelMetadata]] = {}
        self._unavailable: BoundedDict[_Key, float] = BoundedDict(_LIMIT)

    async def __call__(self, call: Call[R], /) -> R:
        """Return cached metadata, or call *inner*.

        Raises:
            DeadlineExceeded: The service did not reply before the timeout.
        """
        if type(call) is not ModelMetadataRequest or call.model is None:
            return await self._inner(call)
        # The R of a ModelMetadataRequest is ModelMetadata.
        return cast("R", await self._metadata((call.model, Need.BATCHING in call.context.needs)))

    async def get_or_none(self, model: ModelRef, *, batching: bool = False) -> ModelMetadata | None:
        """Return the metadata of *model*; None if they are unavailable.

        Caches errors too, so that a model without metadata does not cost a call for every request.

        Args:
            model: The model.
            batching: Include the maximum batch size.
        """
        key = (model, batching)
        if self._clock() < self._unavailable.get(key, 0.0):
            return None
        try:
            return await self._metadata(key)
        except GatewayError as error:
            log.debug("metadata unavailable", model=str(model), reason=error_text(error))
            self._unavailable[key] = self._clock() + _UNAVAILABLE_S
            return None

    def forget(self, model: ModelRef | None) -> None:
        """Discard the entries of all versions of *model*, which may have changed."""
        if model is None:
            return
        for entries in (self._entries, self._unavailable):
            for key in [key for key in entries if key[0].name == model.name]:
                del entries[key]

    def invalidate_if_stale(self, model: ModelRef | None) -> None:
        """Discard the entries of *model* after an error: the model may have been reloaded.

        Recent entries stay, so that invalid requests do not double the number of calls.
        """
        if model is None:
            return
        newest = self._clock() - _MIN_AGE_S
        for key in ((model, False), (model, True)):
            entry = self._entries.get(key)
            if entry is not None and entry[0] - self._ttl_s <= newest:
                del self._entries[key]

    async def _metadata(self, key: _Key) -> ModelMetadata:
        entry = self._entries.get(key)
        if entry is not None and self._clock() < entry[0]:
            return entry[1]
        task = self._pending.get(key)
        if task is None:
            task = asyncio.create_task(self._fetch(key), name=f"metadata of {key[0]}")
            self._pending[key] = task
            task.add_done_callback(partial(self._fetched, key))
        return await asyncio.shield(task)

    def _fetched(self, key: _Key, task: asyncio.Task[ModelMetadata]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # all callers may have left, so that nobody else looks at it

    async def _fetch(self, key: _Key) -> ModelMetadata:
        model, batching = key
        context = Context(
            deadline=self._clock() + self._timeout_s, needs=_BATCHING if batching else _NO_NEEDS
        )
        scope = asyncio.timeout(self._timeout_s)
        try:
            async with scope:
                found = await self._inner(ModelMetadataRequest(model=model, context=context))
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineExceeded(
                f"no metadata of model {str(model)!r} within {self._timeout_s} s", model=model
            ) from None
        self._entries[key] = (self._clock() + self._ttl_s, found)
        return found
