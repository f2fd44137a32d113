"""Placement: a layer above the endpoints of an upstream that chooses them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from gateway.ir.calls import ModelLoadRequest
from gateway.routing.endpoint import Endpoint

PLACEMENT: ContextVar[Endpoint | None] = ContextVar("placement", default=None)
"""The endpoint of the current call, where a layer above has chosen it."""


class Placement(Protocol):
    """A layer above the endpoints that chooses them, and works by itself."""

    def start(self) -> None:
        """Begin its own work."""

    async def close(self) -> None:
        """End it."""

    def has(self, name: str, /) -> bool:
        """Return whether a server has the model."""

    def pin(self, name: str, /) -> None:
        """Load a model, and keep it."""

    def unpin(self, name: str, /) -> None:
        """Let a model be unloaded for others again."""

    async def evict(self, name: str, /) -> None:
        """Unload a model, when its running calls have ended."""

    async def document(self) -> list[dict[str, Any]]:
        """Return what each endpoint holds."""

    async def load_at(self, endpoint: Endpoint, call: ModelLoadRequest, /) -> None:
        """Load a model at one endpoint."""
