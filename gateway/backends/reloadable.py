"""ReloadableModel: an in-process model that calls can reload and unload."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar, cast

import structlog

from gateway.backends.versions import Versions
from gateway.concurrency.background import start_background
from gateway.concurrency.own_thread import on_own_thread
from gateway.ir.calls import Call, ModelLoadRequest, ModelUnloadRequest, RepositoryIndexRequest
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.service import ReplyCoroutine

log = structlog.get_logger(__name__)

R = TypeVar("R")

_UNLOADED = "unloaded"
# Calls that ReloadableModel handles itself; it passes the others to the versions.
_OWN: Final = frozenset({ModelLoadRequest, ModelUnloadRequest, RepositoryIndexRequest})


class ReloadableModel:
    """A Service over the versions of one model, with calls to load and unload them.

    A reload looks for the versions in the repository again. The current versions serve until the
    new ones are loaded, and stay if these cannot be loaded.

    Args:
        find_versions: Returns the model's versions without loading them; may read folders.

    Attributes:
        is_unloaded: A call has unloaded the model.
    """

    def __init__(self, find_versions: Callable[[], Versions]) -> None:
        self._find_versions = find_versions
        self._current = find_versions()
        self._lock = asyncio.Lock()
        self._transition: ModelState | None = None
        self._unloading: set[asyncio.Task[None]] = set()
        self.is_unloaded = False

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Load, unload or list the model, or pass *call* to its versions.

        Raises:
            LoadError: The model cannot be loaded.
            Unsupported: The call overrides the model's configuration.
        """
        if type(call) not in _OWN:
            return self._current(call)
        # R is the reply type of each branch, which mypy cannot infer from isinstance.
        if isinstance(call, ModelLoadRequest):
            return cast("ReplyCoroutine[R]", self._load(call))
        if isinstance(call, ModelUnloadRequest):
            return cast("ReplyCoroutine[R]", self._unload())
        return cast("ReplyCoroutine[R]", self._index())

    async def _index(self) -> tuple[RepositoryEntry, ...]:
        return self.entries()

    def ready(self) -> bool:
        """Return whether the newest version accepts inferences."""
        return self._current.ready()

    def has_sequences(self) -> bool:
        """Return whether the model may have the state of a sequence."""
        return self._current.has_sequences()

    def running(self) -> int:
        """Return the number of inferences that run in the current versions."""
        return self._current.running()

    def entries(self) -> tuple[RepositoryEntry, ...]:
        """Return the versions as entries of a repository index, oldest first."""
        entries = self._current.entries()
        if self._transition is None and not self.is_unloaded:
            return entries
        state = self._transition or ModelState.UNAVAILABLE
        return tuple(
            entry
            if entry.state is ModelState.READY and state is ModelState.LOADING
            else RepositoryEntry(
                entry.name, entry.version, state, _UNLOADED if self.is_unloaded else ""
            )
            for entry in entries
        )

    async def start(self) -> None:
        """Load every version.

        Raises:
            LoadError: A version cannot be loaded; the others are unloaded.
        """
        await self._current.start()

    async def stop(self) -> None:
        """Unload every version; idempotent."""
        await asyncio.gather(self._current.stop(), *self._unloading)

    async def _load(self, call: ModelLoadRequest) -> None:
        if call.parameters:
            raise Unsupported(
                f"model {self._current.name!r} runs in the gateway, which loads it with the "
                f"options of its configuration only; the call has {min(call.parameters)!r}",
                model=call.model,
            )
        async with self._lock:
            self._transition = ModelState.LOADING
            try:
                loaded = await on_own_thread(self._find_versions)
                await loaded.start()
            finally:
                self._transition = None
            previous, self._current = self._current, loaded
            self.is_unloaded = False
        log.info("model loaded", model=loaded.name)
        # The calls in flight finish with the previous versions, in the background.
        start_background(previous.stop(), f"unload of model {previous.name}", self._unloading)

    async def _unload(self) -> None:
        async with self._lock:
            self.is_unloaded = True
            self._transition = ModelState.UNLOADING
            try:
                await self._current.stop()
            finally:
                self._transition = None
        log.info("model unloaded", model=self._current.name)
