"""Keys: names of models that may hold a version, "name-version", and which model each means.

For protocols whose requests name a model by one text. Nothing tells where in it the version
begins, so the models there are decide; names come from clients, and nothing of them is remembered.
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

# A table that does not know a key is asked for again when it is older than this.
_DOUBT_S = 1.0


class ResolveModelKeys:
    """Turns the key that an inference names its model by into name and version.

    Questions for metadata name a model plainly and go through, as do calls that give a version.

    Args:
        inner: Answers.
        known: Which model a key means.
    """

    def __init__(self, inner: Service, known: ModelKeyIndex) -> None:
        self._inner = inner
        self._known = known

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call* about the model that its key means."""
        model = call.model
        if type(call) in _KEYED and model is not None and not model.version:
            found = await self._known.find(model.name)
            if found != model:
                call = with_model(call, found)
        return await self._inner(call)


@dataclass(frozen=True, slots=True)
class _Table:
    until: float = float("-inf")
    doubted_from: float = float("-inf")
    joined: dict[str, ModelRef] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


class ModelKeyIndex:
    """The models there are, by key.

    Args:
        index: Asked with a RepositoryIndexRequest.
        takes: Whether some route takes a model of this name.
        ttl_s: How long a list of models is trusted.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        index: Service,
        takes: Callable[[str], bool],
        *,
        ttl_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._takes = takes
        self._ttl_s = ttl_s
        self._clock = clock
        self._table = _Table()

    async def find(self, key: str) -> ModelRef:
        """Return the model that *key* means.

        That is the one whose name and version, joined, are the key; else the one of this name;
        else, of a key that ends in "-" and a known model's version or in a number, the version.
        """
        name, dash, version = key.rpartition("-")
        if not dash:
            return ModelRef(key)
        now = self._clock()
        if now >= self._table.until:
            await self._ask()
        found = self._exactly(key)
        if found is None and now >= self._table.doubted_from:
            await self._ask()
            found = self._exactly(key)
        if found is not None:
            return found
        if name and version and (name in self._table.names or self._may_split(name, version)):
            return ModelRef(name, version)
        return ModelRef(key)

    def _exactly(self, key: str) -> ModelRef | None:
        found = self._table.joined.get(key)
        return ModelRef(key) if found is None and key in self._table.names else found

    def _may_split(self, name: str, version: str) -> bool:
        """Tell whether a model that nobody lists is more likely one of a version."""
        return version[0].isdecimal() and self._takes(name)

    async def _ask(self) -> None:
        entries = await self._index(RepositoryIndexRequest())
        now = self._clock()
        self._table = _Table(
            until=now + self._ttl_s,
            doubted_from=now + _DOUBT_S,
            joined={
                f"{entry.name}-{entry.version}": ModelRef(entry.name, entry.version)
                for entry in entries
                if entry.version
            },
            names=frozenset(entry.name for entry in entries),
        )
