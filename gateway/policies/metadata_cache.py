"""MetadataCache: remembers what models look like, and asks once however many want to know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar, cast

import structlog

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import DeadlineExceeded, GatewayError
from gateway.ir.metadata import ModelMetadata
from gateway.service import Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

_LIMIT = 1024
_TRUSTED_S = 1.0
_UNAVAILABLE_S = 10.0
_NO_NEEDS: frozenset[Need] = frozenset()
_BATCHING = frozenset({Need.BATCHING})

METADATA_TTL_S = 10.0
"""For batching: a model may be loaded again with another batch size."""

# A model, and whether it is asked how the model batches.
_Key = tuple[ModelRef, bool]


class MetadataCache:
    """Answers a ModelMetadataRequest from memory while the memory is fresh; passes the rest.

    Whether the model batches is asked for, and remembered, apart: it may take a second question.
    Failures are not remembered, but where the answer can be done without. The question is the
    gateway's own: it carries no caller's headers and has a deadline of its own, and it goes on when
    the caller that caused it leaves.

    Args:
        inner: Answers.
        ttl_s: How long an answer holds.
        timeout_s: How long the question may take.
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
        self._known: BoundedDict[_Key, tuple[float, ModelMetadata]] = BoundedDict(_LIMIT)
        self._asking: dict[_Key, asyncio.Task[ModelMetadata]] = {}
        self._unavailable: BoundedDict[_Key, float] = BoundedDict(_LIMIT)

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*.

        Raises:
            DeadlineExceeded: The service did not answer in time.
        """
        if type(call) is not ModelMetadataRequest or call.model is None:
            return await self._inner(call)
        # The answer to a ModelMetadataRequest is ModelMetadata, which is its R.
        return cast("R", await self._metadata((call.model, Need.BATCHING in call.context.needs)))

    async def get_or_none(self, model: ModelRef, *, batching: bool = False) -> ModelMetadata | None:
        """Return the metadata of *model*, or None where they are unavailable.

        For a caller that can do without.  That they are unavailable is remembered too, so that a
        model without metadata does not cost every request a question.

        Args:
            model: Whose metadata.
            batching: Ask how the model batches as well.
        """
        key = (model, batching)
        if self._clock() < self._unavailable.get(key, 0.0):
            return None
        try:
            return await self._metadata(key)
        except GatewayError as error:
            log.debug("metadata unavailable", model=str(model), reason=error.message)
            self._unavailable[key] = self._clock() + _UNAVAILABLE_S
            return None

    def forget(self, model: ModelRef | None) -> None:
        """Drop what is known of every version of *model*, which may have changed."""
        if model is None:
            return
        for entries in (self._known, self._unavailable):
            for key in [key for key in entries if key[0].name == model.name]:
                del entries[key]

    def invalidate_if_stale(self, model: ModelRef | None) -> None:
        """Ask again about *model*, with which something went wrong: it may have been reloaded.

        What was asked a moment ago is believed, so that wrong requests do not double the calls.
        """
        if model is None:
            return
        asked_before = self._clock() - _TRUSTED_S
        for key in ((model, False), (model, True)):
            known = self._known.get(key)
            if known is not None and known[0] - self._ttl_s <= asked_before:
                del self._known[key]

    async def _metadata(self, key: _Key) -> ModelMetadata:
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._asking.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(key), name=f"metadata of {key[0]}")
            self._asking[key] = task
            task.add_done_callback(lambda _task: self._asking.pop(key))
        return await asyncio.shield(task)

    async def _ask(self, key: _Key) -> ModelMetadata:
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
        self._known[key] = (self._clock() + self._ttl_s, found)
        return found
