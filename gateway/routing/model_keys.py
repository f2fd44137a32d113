"""Model keys: "name-version" texts of protocols that identify a model by a single text.

A key is ambiguous, because names may contain "-". The list of existing models resolves it. Keys
come from clients, so they are never cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import (
    Call,
    InferRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
    with_model,
)
from gateway.ir.context import ModelRef
from gateway.service import Service

R = TypeVar("R")

_KEYED = (InferRequest, StreamInferRequest)


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
    models: dict[str, ModelRef] = field(default_factory=dict)
    names: frozenset[str] = frozenset()

    def find(self, key: str) -> ModelRef | None:
        found = self.models.get(key)
        return ModelRef(key) if found is None and key in self.names else found


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
        self._lookup: TtlLookup[None, _Table] = TtlLookup(self._list, ttl_s, ttl_s, 1, clock)

    async def find(self, key: str) -> ModelRef:
        """Return the model of *key*.

        It is the model for which "name-version" is the key, or else the model with this name.
        Otherwise the text after the last "-" is a version, if the text before it is a known model,
        or if it starts with a digit and a route matches the text before it.
        """
        name, dash, version = key.rpartition("-")
        if not dash:
            return ModelRef(key)
        table = await self._lookup.get(None) or _Table()
        found = table.find(key)
        if found is None and self._lookup.forget_if_stale(None):
            table = await self._lookup.get(None) or _Table()
            found = table.find(key)
        if found is not None:
            return found
        if name and version and (name in table.names or self._may_split(name, version)):
            return ModelRef(name, version)
        return ModelRef(key)

    def _may_split(self, name: str, version: str) -> bool:
        """Return whether the key of an unlisted model probably has a version."""
        return version[0].isdecimal() and self._matches_model(name)

    async def _list(self, _key: None) -> _Table:
        entries = await self._index(RepositoryIndexRequest())
        return _Table(
            models={
                f"{entry.name}-{entry.version}": ModelRef(entry.name, entry.version)
                for entry in entries
                if entry.version
            },
            names=frozenset(entry.name for entry in entries),
        )
