"""Placement: a layer above the endpoints of an upstream that chooses them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from gateway.api.extension import ModelPlacement
from gateway.ir.calls import ModelLoadRequest
from gateway.routing.balancing.endpoint import Endpoint

PLACEMENT: ContextVar[Endpoint | None] = ContextVar("placement", default=None)
"""The endpoint of the current call, where a layer above has chosen it."""


class Placement(ModelPlacement, Protocol):
    """A layer above the endpoints that chooses them, and works by itself."""

    def start(self) -> None:
        """Begin its own work."""

    async def close(self) -> None:
        """End it."""

    async def load_at(self, endpoint: Endpoint, call: ModelLoadRequest, /) -> None:
        """Load a model at one endpoint."""
