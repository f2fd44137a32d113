"""ServerIndex: what a server says about its models, and when it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from gateway.concurrency.timeouts import is_set_within
from gateway.ir.calls import LoadParameters
from gateway.ir.errors import GatewayError
from gateway.residency.plan import ModelPhase, Resident
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

_INDEX_S: Final = 30.0
"""How often the index is read."""
_CHANGING_S: Final = 0.1
"""How often it is read while another gateway loads or unloads a model."""
_UNREAD_S: Final = 1.0
"""How often it is read while the server does not reply, and at most for unknown names."""


class ModelServer(Protocol):
    """What holds the models: an upstream's endpoint, or the gateway itself."""

    async def index(self) -> Mapping[str, ModelPhase]:
        """Return the models of its repository, and what they are doing."""

    async def load(self, name: str, parameters: LoadParameters, /) -> None:
        """Load a model; return when it is loaded."""

    async def unload(self, name: str, /) -> None:
        """Begin to unload a model."""


class ServerIndex:
    """The index of a server, which decides what is there.

    Args:
        name: The server, for the log.
        server: Lists its models.
        residents: The models of the plan, by name.
        on_read: Receives what the server said, when it was asked, and the time.
        advance: Begins what is to do now.
        clock: Monotonic seconds.

    Attributes:
        models: The models of the index.
        is_changing: Set to have the index read soon.
    """

    def __init__(
        self,
        name: str,
        server: ModelServer,
        residents: Mapping[str, Resident],
        *,
        on_read: Callable[[Mapping[str, ModelPhase], float, float], None],
        advance: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.models: frozenset[str] = frozenset()
        self.is_changing = asyncio.Event()
        self._name = name
        self._server = server
        self._residents = residents
        self._on_read = on_read
        self._advance = advance
        self._clock = clock
        self._read_at: float | None = None
        self._seen: Mapping[str, ModelPhase] = {}
        self._lock = asyncio.Lock()

    def phase_of(self, name: str) -> ModelPhase:
        """Return what a model was doing at the server when the index was read."""
        return self._seen.get(name, ModelPhase.ABSENT)

    async def read(self) -> None:
        """Read the index, and note what it says.

        Raises:
            GatewayError: The server does not list its models.
        """
        asked_at = self._clock()
        found = await self._server.index()
        now = self._clock()
        self._read_at, self._seen, self.models = now, found, frozenset(found)
        self._on_read(found, asked_at, now)

    async def look_for(self, name: str) -> None:
        """Read the index for an unknown name, at most once a second."""
        async with self._lock:
            is_recent = self._read_at is not None and self._clock() < self._read_at + _UNREAD_S
            if name not in self.models and not is_recent:
                await self.look()

    async def look(self) -> None:
        """Read the index beside the regular times."""
        await self.read()
        self._advance()
        if self._are_others_busy:
            self.is_changing.set()

    @property
    def _are_others_busy(self) -> bool:
        """Whether another gateway loads or unloads a model."""
        return any(
            each.phase in {ModelPhase.LOADING, ModelPhase.UNLOADING} and not each.is_own
            for each in self._residents.values()
        )

    async def watch(self) -> None:
        """Read the index from time to time, and while others change the server often."""
        while True:
            try:
                await self.read()
            except GatewayError as error:
                log.debug("models cannot be listed", server=self._name, reason=error_text(error))
                delay_s = _UNREAD_S
            else:
                self._advance()
                delay_s = _CHANGING_S if self._are_others_busy else _INDEX_S
            await is_set_within(self.is_changing, delay_s)
            self.is_changing.clear()
