"""Transfers: loads and unloads of models at one server, as its plan has decided them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import structlog

from gateway.ir.calls import LoadParameters
from gateway.ir.errors import GatewayError
from gateway.residency.host_turn import NoTurn, Turn
from gateway.residency.index import ModelServer, ServerIndex
from gateway.residency.outcomes import Outcomes
from gateway.residency.plan import ModelPhase, Resident
from gateway.residency.waiters import Waiters
from gateway.telemetry.error_texts import error_text

log = structlog.get_logger(__name__)

_UNLOADING_S: Final = 0.02
"""The first pause between two looks at a model that is being unloaded; they grow."""
_UNLOADING_CAP_S: Final = 0.5
_LOOKS: Final = 20
"""How often the index is read for a load that has begun, before another process has its turn."""
_UNREAD_S: Final = 1.0
"""How long a model is left alone whose unload has failed."""


class ResidencyMeters(Protocol):
    """Counts what a controller does."""

    def loaded(self, model: str, outcome: str, seconds: float, /) -> None:
        """Count a load: *outcome* is "ok" or "failed"."""

    def unloaded(self, model: str, reason: str, /) -> None:
        """Count an unload."""

    def waited(self, seconds: float, /) -> None:
        """Count the wait of a call."""


class Transfers:
    """Loads and unloads models, and notes what became of it.

    Args:
        name: The server, for the log.
        server: Loads and unloads the models.
        index: What the server says.
        outcomes: Notes what the server has done.
        waiters: The calls that wait for models.
        has_room: Returns whether the server has not more models than room.
        meters: Counts loads and unloads.
        load_timeout_s: Longest time of a load.
        on_end: Called after each load and unload.
        turn: Makes what excludes other processes that begin a load there; None for no others.
        clock: Monotonic seconds.

    Attributes:
        parameters: Those of loads that clients request, by model.
    """

    def __init__(  # noqa: PLR0913  # one caller, and all by name but the first two
        self,
        name: str,
        server: ModelServer,
        *,
        index: ServerIndex,
        outcomes: Outcomes,
        waiters: Waiters,
        has_room: Callable[[], bool],
        meters: ResidencyMeters,
        load_timeout_s: float,
        on_end: Callable[[], None],
        turn: Callable[[], Turn] | None,
        clock: Callable[[], float],
    ) -> None:
        self.parameters: dict[str, LoadParameters] = {}
        self._name = name
        self._server = server
        self._index = index
        self._outcomes = outcomes
        self._waiters = waiters
        self._has_room = has_room
        self._meters = meters
        self._load_timeout_s = load_timeout_s
        self._on_end = on_end
        self._excludes = turn is not None
        self._turn: Callable[[], Turn] = NoTurn if turn is None else turn
        self._clock = clock

    async def load(self, model: Resident) -> None:
        """Load a model, unless the server does it already or has no room."""
        began = self._clock()
        try:
            async with asyncio.timeout(self._load_timeout_s):
                phase = await self._load_at_server(model)
        except (GatewayError, TimeoutError) as error:
            self._fail(model, error, began)
        else:
            if phase is None:
                self._outcomes.put_back(model, ModelPhase.ABSENT, self._clock())
            elif phase in {ModelPhase.LOADING, ModelPhase.UNLOADING}:  # by another gateway
                self._outcomes.put_back(model, phase, self._clock())
                self._index.is_changing.set()
            else:
                self._finish(model, began, is_own=phase is ModelPhase.ABSENT)
        self._on_end()

    async def _load_at_server(self, model: Resident) -> ModelPhase | None:
        """Load a model, unless the server does it already or has no room.

        Returns:
            What the model was doing before; None if there is no room any more.
        """
        async with self._turn():
            phase = await self._phase_before_load(model)
            if phase is not ModelPhase.ABSENT:
                return phase
            parameters = self.parameters.get(model.name, {})
            load = asyncio.ensure_future(self._server.load(model.name, parameters))
            try:
                await self._until_shown(model, load)
            except BaseException:
                load.cancel()
                raise
        try:
            await load
        except asyncio.CancelledError:
            load.cancel()
            raise
        finally:
            del load  # it holds its error, whose traceback holds this frame
        return phase

    async def _until_shown(self, model: Resident, load: asyncio.Future[None]) -> None:
        """Wait until the index shows that a model is being loaded, for others to see."""
        if not self._excludes:
            return
        for _ in range(_LOOKS):
            await asyncio.wait((load,), timeout=_UNLOADING_S)
            if load.done():
                return
            with suppress(GatewayError):
                await self._index.read()
            if self._index.phase_of(model.name) is not ModelPhase.ABSENT:
                return

    def _finish(self, model: Resident, began: float, *, is_own: bool) -> None:
        now = self._clock()
        if is_own:
            self._meters.loaded(model.name, "ok", now - began)
            log.info(
                "resident model loaded", server=self._name, model=model.name, seconds=now - began
            )
            self._index.is_changing.set()  # another gateway may have loaded one at the same time
        self._waiters.grant(self._outcomes.loaded(model, now))

    async def _phase_before_load(self, model: Resident) -> ModelPhase | None:
        """Return what the model is doing at its server; None if there is no room any more."""
        await self._index.read()
        phase = self._index.phase_of(model.name)
        return None if phase is ModelPhase.ABSENT and not self._has_room() else phase

    def _fail(self, model: Resident, error: GatewayError | TimeoutError, began: float) -> None:
        now = self._clock()
        if isinstance(error, GatewayError):
            text = error_text(error)
        else:
            text = f"no reply within {self._load_timeout_s:g} s (residency.load_timeout)"
        reason = f"model {model.name!r} cannot be loaded: {text}"
        self._meters.loaded(model.name, "failed", now - began)
        log.warning("resident model not loaded", server=self._name, model=model.name, reason=text)
        self._outcomes.failed(model, reason, now)
        self._waiters.fail(model.name, reason)
        self._index.is_changing.set()  # the server may load it all the same

    async def unload(self, model: Resident) -> None:
        """Unload a model."""
        reason = model.reason.value
        try:
            await self._server.unload(model.name)
            await self._until_unloaded(model)
        except GatewayError as error:
            log.warning(
                "resident model not unloaded",
                server=self._name,
                model=model.name,
                reason=error_text(error),
            )
            await self._after_failed_unload(model)
        else:
            self._meters.unloaded(model.name, reason)
            log.info("resident model unloaded", server=self._name, model=model.name, reason=reason)
            self._outcomes.unloaded(model, self._clock())
        self._on_end()

    async def _after_failed_unload(self, model: Resident) -> None:
        with suppress(GatewayError):
            await self._index.read()
            if self._index.phase_of(model.name) is not ModelPhase.LOADED:
                self._outcomes.unloaded(model, self._clock())
                return
        await asyncio.sleep(_UNREAD_S)
        self._waiters.grant(self._outcomes.kept(model, self._clock()))

    async def _until_unloaded(self, model: Resident) -> None:
        """Wait until the index no longer has the model; running calls may take their time."""
        pause_s = _UNLOADING_S
        while True:
            await self._index.read()
            if self._index.phase_of(model.name) is ModelPhase.ABSENT:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _UNLOADING_CAP_S)
