"""Versions: all versions of one in-process model."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from gateway.backends.base import Backend
from gateway.ir.calls import Call, ModelMetadataRequest, RepositoryIndexRequest
from gateway.ir.errors import ModelNotFound
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry
from gateway.service import ReplyCoroutine

R = TypeVar("R")


class Versions:
    """A Service that passes each call to the version that it names, or to the newest.

    Args:
        name: The model's name.
        backends: One per version, at least one.

    Raises:
        ValueError: There is no backend, or a version is duplicate or not a number.
    """

    def __init__(self, name: str, backends: Sequence[Backend]) -> None:
        if not backends:
            raise ValueError(f"model {name!r} has no versions")
        for backend in backends:
            version = backend.model.version
            if not (version.isascii() and version.isdecimal()):
                raise ValueError(f"model {name!r}: version {version!r} is not a number")
        ordered = sorted(backends, key=lambda backend: int(backend.model.version))
        self.name = name
        self._backends = {backend.model.version: backend for backend in ordered}
        if len(self._backends) < len(backends):
            raise ValueError(f"model {name!r} has duplicate versions")
        self._newest = ordered[-1]

    def check_here(self) -> None:
        """Check what a load of all versions needs of this machine; see `BackendService`."""
        for backend in self._backends.values():
            backend.check_here()

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Pass *call* to its version.

        Raises:
            ModelNotFound: The version does not exist.
        """
        if isinstance(call, RepositoryIndexRequest):
            # The reply type R of a RepositoryIndexRequest is a tuple of entries.
            return cast("ReplyCoroutine[R]", self._index())
        model = call.model
        if model is None or not model.version:
            backend = self._newest
        elif model.version in self._backends:
            backend = self._backends[model.version]
        else:
            return self._raise_not_found(call)
        if isinstance(call, ModelMetadataRequest):
            return cast("ReplyCoroutine[R]", self._metadata(call, backend))
        return backend(call)

    async def _index(self) -> tuple[RepositoryEntry, ...]:
        return self.entries()

    async def _metadata(self, call: ModelMetadataRequest, backend: Backend) -> ModelMetadata:
        metadata = await backend(call)
        return metadata.changed(name=self.name, versions=tuple(self._backends))

    async def _raise_not_found(self, call: Call[Any]) -> Any:
        version = "" if call.model is None else call.model.version
        raise ModelNotFound(
            f"model {self.name!r} has no version {version!r}; it has {', '.join(self._backends)}",
            model=call.model,
        )

    def ready(self) -> bool:
        """Return whether the newest version accepts inferences."""
        return self._newest.is_loaded

    def has_sequences(self) -> bool:
        """Return whether a version may have the state of a sequence."""
        return any(backend.has_sequences for backend in self._backends.values())

    def running(self) -> int:
        """Return the number of inferences that run."""
        return sum(backend.running for backend in self._backends.values())

    def entries(self) -> tuple[RepositoryEntry, ...]:
        """Return the versions as entries of a repository index, oldest first."""
        states = {True: ModelState.READY, False: ModelState.UNAVAILABLE}
        return tuple(
            RepositoryEntry(self.name, version, states[backend.is_loaded])
            for version, backend in self._backends.items()
        )

    async def start(self) -> None:
        """Load every version, oldest first.

        Raises:
            LoadError: A version cannot be loaded; the others are unloaded.
        """
        try:
            for backend in self._backends.values():
                await backend.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Unload every version; idempotent."""
        await asyncio.gather(*(backend.stop(timeout_s) for backend in self._backends.values()))
