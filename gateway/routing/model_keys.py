"""Model keys: "name-version" texts of protocols that identify a model by a single text.

A key is ambiguous, because names may contain "-". The list of existing models resolves it. Keys
come from clients, so they are never cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.ir.calls import Call, InferRequest, RepositoryIndexRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.routing.router import with_model
from gateway.service import Service

R = TypeVar("R")

_KEYED = (InferRequest, StreamInferRequest)

# If the table has no entry for a key and is older than this, it is refreshed.
_REFRESH_S = 1.0


class ResolveModelKeys:
    """Replaces the model key of an inference by name and version.

    Other calls, and calls with a version, pass unchanged.

    Args:
        inner: The service to call.
        index: Resolves keys.
    """

    def __init__(self, inner: Service, index: ModelKeyIndex) -> None:
        self._inner = inner
        self._index = index

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner* with the resolved model."""
        model = call.model
        if type(call) in _KEYED and model is not None and not model.version:
            found = await self._index.find(model.name)
            if found != model:
                call = with_model(call, found)
        return await self._inner(call)


@dataclass(frozen=True, slots=True)
class _Table:
    expires: float = float("-inf")
    refreshable_from: float = float("-inf")
    models: dict[str, ModelRef] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


class ModelKeyIndex:
    """The existing models, by key.

    Args:
        index: Handles a RepositoryIndexRequest.
        matches_model: Whether some route matches a model name.
        ttl_s: Time for which a list of models is cached.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        index: Service,
        matches_model: Callable[[str], bool],
        *,
        ttl_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._matches_model = matches_model
        self._ttl_s = ttl_s
        self._clock = clock
        self._table = _Table()

    async def find(self, key: str) -> ModelRef:
        """Return the model of *key*.

        It is the model for which "name-version" is the key, or else the model with this name.
        Otherwise the text after the last "-" is a version, if the text before it is a known model,
        or if it starts with a digit and a route matches the text before it.
        """
        name, dash, version = key.rpartition("-")
        if not dash:
            return ModelRef(key)
        now = self._clock()
        if now >= self._table.expires:
            await self._refresh()
        found = self._look_up(key)
        if found is None and now >= self._table.refreshable_from:
            await self._refresh()
            found = self._look_up(key)
        if found is not None:
            return found
        if name and version and (name in self._table.names or self._may_split(name, version)):
            return ModelRef(name, version)
        return ModelRef(key)

    def _look_up(self, key: str) -> ModelRef | None:
        found = self._table.models.get(key)
        return ModelRef(key) if found is None and key in self._table.names else found

    def _may_split(self, name: str, version: str) -> bool:
        """Return whether the key of an unlisted model probably has a version."""
        return version[0].isdecimal() and self._matches_model(name)

    async def _refresh(self) -> None:
        entries = await self._index(RepositoryIndexRequest())
        now = self._clock()
        self._table = _Table(
            expires=now + self._ttl_s,
            refreshable_from=now + _REFRESH_S,
            models={
                f"{entry.name}-{entry.version}": ModelRef(entry.name, entry.version)
                for entry in entries
                if entry.version
            },
            names=frozenset(entry.name for entry in entries),
        )
