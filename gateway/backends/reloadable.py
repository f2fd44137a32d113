"""Loadable: an in-process model that can be loaded again and unloaded while it is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar, cast

import structlog

from gateway.backends.versions import Versions
from gateway.ir.calls import Call, ModelLoadRequest, ModelUnloadRequest, RepositoryIndexRequest
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.service import ReplyCoroutine

log = structlog.get_logger(__name__)

R = TypeVar("R")

_UNLOADED = "unloaded"
# What is answered here; all else is for the versions.
_OWN: Final = frozenset({ModelLoadRequest, ModelUnloadRequest, RepositoryIndexRequest})


class ReloadableModel:
    """A Service over the versions of one model, which come and go by calls.

    Loading looks for the versions that are there now. Those that serve go on until the new ones
    are loaded; when these cannot be, nothing has changed.

    Args:
        make: Returns the model's versions, not loaded yet; may read folders.

    Attributes:
        unloaded: The model has been unloaded by a call, and not been loaded since.
    """

    def __init__(self, make: Callable[[], Versions]) -> None:
        self._make = make
        self._current = make()
        self._changing = asyncio.Lock()
        self._doing: ModelState | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.unloaded = False

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*.

        Raises:
            LoadError: The model cannot be loaded.
            Unsupported: It shall be loaded otherwise than it is configured.
        """
        if type(call) not in _OWN:
            return self._current(call)
        # Each branch knows its R; the type system cannot follow an isinstance that far.
        if isinstance(call, ModelLoadRequest):
            return cast("ReplyCoroutine[R]", self._load(call))
        if isinstance(call, ModelUnloadRequest):
            return cast("ReplyCoroutine[R]", self._unload())
        return cast("ReplyCoroutine[R]", self._listed())

    async def _listed(self) -> tuple[RepositoryEntry, ...]:
        return self.entries()

    def ready(self) -> bool:
        """Return whether the newest version can take inferences."""
        return self._current.ready()

    def entries(self) -> tuple[RepositoryEntry, ...]:
        """Return the versions as lines of a repository index, oldest first."""
        entries = self._current.entries()
        if self._doing is None and not self.unloaded:
            return entries
        state = self._doing or ModelState.UNAVAILABLE
        return tuple(
            entry
            if entry.state is ModelState.READY and state is ModelState.LOADING
            else RepositoryEntry(
                entry.name, entry.version, state, _UNLOADED if self.unloaded else ""
            )
            for entry in entries
        )

    async def start(self) -> None:
        """Load every version.

        Raises:
            LoadError: One cannot be loaded; the others are unloaded.
        """
        await self._current.start()

    async def stop(self) -> None:
        """Unload every version; harmless the second time."""
        await asyncio.gather(self._current.stop(), *self._leaving)

    async def _load(self, call: ModelLoadRequest) -> None:
        if call.parameters:
            raise Unsupported(
                f"model {self._current.name!r} is the gateway's own: it is loaded as the "
                f"configuration says, not with {min(call.parameters)!r}",
                model=call.model,
            )
        async with self._changing:
            self._doing = ModelState.LOADING
            try:
                fresh = await asyncio.to_thread(self._make)
                await fresh.start()
            finally:
                self._doing = None
            before, self._current = self._current, fresh
            self.unloaded = False
        log.info("model loaded", model=fresh.name)
        # Calls in hand end where they began; nobody waits for that.
        leaving = asyncio.create_task(before.stop(), name=f"unload {before.name}")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _unload(self) -> None:
        async with self._changing:
            self.unloaded = True
            self._doing = ModelState.UNLOADING
            try:
                await self._current.stop()
            finally:
                self._doing = None
        log.info("model unloaded", model=self._current.name)
