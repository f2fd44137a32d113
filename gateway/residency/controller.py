"""ResidencyController: loads and unloads the models of one server, as its plan decides.

Workers and other gateways change the same server. They share no store: the index of the server is
read before each load, and it decides what is there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import Context
from typing import Any, Final, Protocol

import structlog

from gateway.concurrency.background import end_tasks, start_background
from gateway.concurrency.slices import in_slices
from gateway.ir.calls import LoadParameters
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    LoadFailed,
    ModelNotFound,
    Overloaded,
)
from gateway.residency.index import ModelServer, ServerIndex
from gateway.residency.plan import (
    Actions,
    ModelPhase,
    ResidencyPlan,
    ResidencyRules,
    Resident,
    UnloadReason,
    entries,
)
from gateway.residency.steps import due, step
from gateway.telemetry.log.error_texts import error_text

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


Turn = Callable[[], AbstractAsyncContextManager[object]]
"""Makes what excludes other processes while it is entered."""


class _Waiter:
    """A call that waits for a model.

    Attributes:
        future: Ends the wait.
        is_counted: Whether the plan counts it among the callers.
        has_reference: Whether the plan has given it a reference.
    """

    __slots__ = ("future", "has_reference", "is_counted")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.is_counted = True
        self.has_reference = False


class _Timer:
    """Calls a function once, at the last time that was set.

    Args:
        advance: The function.
    """

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def set(self, due: float | None, now: float) -> None:
        """Call the function at *due*, and at no other time; None for never."""
        if self._handle is not None and due is not None and due == self._due:
            return
        self.cancel()
        if due is not None:
            self._due = due
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(due - now + 0.001, self._on_time)

    def cancel(self) -> None:
        """Call the function no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _on_time(self) -> None:
        self._handle = None
        self._advance()


class ResidencyController:
    """Keeps the models of one server within their room.

    Args:
        name: The server, for the log and errors.
        server: Loads, unloads and lists the models.
        rules: What the configuration says.
        meters: Counts loads, unloads and waits.
        pinned: Models that are loaded from the start.
        callers: Returns how many calls wait; by default those of this server.
        turn: Makes what excludes other processes that begin a load there; None for no others.
        clock: Monotonic seconds.

    Attributes:
        name: The server.
        plan: Decides which models are loaded.
        index: What the server says about its models.
    """

    def __init__(  # noqa: PLR0913  # by name but the first four
        self,
        name: str,
        server: ModelServer,
        rules: ResidencyRules,
        meters: ResidencyMeters,
        *,
        pinned: tuple[str, ...] = (),
        callers: Callable[[], int] | None = None,
        turn: Turn | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.plan = ResidencyPlan(rules, pinned)
        self._waiters: dict[str, list[_Waiter]] = {}
        self._parameters: dict[str, LoadParameters] = {}  # of loads that clients request
        self._server = server
        self._rules = rules
        self._meters = meters
        self._clock = clock
        self._callers = callers or (lambda: self.plan.callers)
        self.index = ServerIndex(
            name,
            server,
            self.plan.models,
            on_read=lambda *found: self._grant(self.plan.observe(*found)),
            advance=self.advance,
            clock=clock,
        )
        self._excludes = turn is not None
        self._turn: Turn = nullcontext if turn is None else turn
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer = _Timer(self.advance)
        self._has_advanced = asyncio.Event()
        self._is_closed = False

    def start(self) -> None:
        """Begin to read the index, and load the pinned models."""
        self._run(self.index.watch(), "index")

    async def close(self) -> None:
        """Stop; loads that run go on at the server."""
        self._is_closed = True
        self._timer.cancel()
        await end_tasks(*self._tasks)

    # References

    def release(self, model: Resident) -> None:
        """Take back a reference."""
        self.plan.release(model, self._clock())
        if not model.uses:
            self.note_unused(model)

    def note_unused(self, model: Resident) -> None:
        """Note that the last reference to a model has ended."""
        if self._rules.idle_s != math.inf and not self._is_closed:
            model.idle_since = now = self._clock()
            self._timer.set(due(self.plan, now), now)
        if self.plan.is_affected(model):
            self.advance()

    async def hold(self, name: str, ref: ModelRef | None = None) -> Resident:
        """Return the model with a reference, and load it before if it is absent.

        Raises:
            ModelNotFound: The server has no such model, or calls may not load it.
            LoadFailed: It cannot be loaded.
            Overloaded: Too many calls wait.
            DeadlineExceeded: It was not loaded in time.
        """
        model = self.plan.acquire(name)
        if model is not None:
            return model
        await self.check_model(name, ref)
        model = self.plan.acquire(name)
        if model is not None:
            return model
        began = self._clock()
        model = await self._wait(name, ref)
        self._meters.waited(self._clock() - began)
        return model

    async def check_model(self, name: str, ref: ModelRef | None = None) -> None:
        """Check that the server has the model, and that calls may load it.

        Raises:
            ModelNotFound: It has not, or they may not.
            GatewayError: The server does not list its models.
        """
        if name not in self.index.models:
            await self.index.look_for(name)
        if name not in self.index.models:
            raise ModelNotFound(
                f"model {name!r} is unknown: the repository of the server does not have it",
                model=ref,
            )
        found = self.plan.models.get(name)
        is_requested = found is not None and found.is_requested
        if not self._rules.allow(name) and not is_requested:
            raise ModelNotFound(
                f"model {name!r} is not loaded, and calls may not load it (residency.allow)",
                model=ref,
            )

    def is_loadable(self, name: str) -> bool:
        """Return whether a load of the model would be tried now."""
        found = self.plan.resident(name)
        return self._clock() >= found.failed_until and self.plan.fits(name)

    async def _wait(self, name: str, ref: ModelRef | None) -> Resident:
        now, rules = self._clock(), self._rules
        known = self.plan.resident(name)
        if now < known.failed_until and known.phase is ModelPhase.ABSENT:
            raise LoadFailed(known.failure, model=ref)
        if not self.plan.fits(name):
            raise LoadFailed(
                f"model {name!r} cannot be loaded: it needs {known.cost} of {self._rules.room}, "
                "and the pinned models need the rest (residency.models, residency.memory)",
                model=ref,
            )
        if self._callers() >= rules.queued:
            raise Overloaded(
                f"{rules.queued} calls wait for models already (residency.queued)",
                model=ref,
                limit="residency.queued",
            )
        model = self.plan.wait(name, now)
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        self._waiters.setdefault(name, []).append(waiter)
        try:
            self.advance()
            async with asyncio.timeout(rules.wait_s):
                await waiter.future
        except TimeoutError:
            self._leave(model, waiter)
            raise DeadlineExceeded(
                f"model {name!r} was not loaded within {rules.wait_s:g} s (residency.wait)",
                model=ref,
            ) from None
        except LoadFailed as error:
            error.model = ref
            raise
        except BaseException:
            self._leave(model, waiter)
            raise
        finally:
            del waiter  # its future holds the error, whose traceback holds this frame
        return model

    def _leave(self, model: Resident, waiter: _Waiter) -> None:
        if waiter.has_reference:
            self.release(model)
        elif waiter.is_counted:
            self._waiters[model.name].remove(waiter)
            self.plan.leave(model)
            self.advance()

    # What operators and clients request

    def want(self, name: str) -> None:
        """Load a model that is absent, though nobody waits for it."""
        model = self.plan.resident(name)
        if model.phase is ModelPhase.ABSENT and self._clock() >= model.failed_until:
            self.plan.wait(name, self._clock(), callers=0)
            self.advance()

    async def load(self, name: str, parameters: LoadParameters, ref: ModelRef | None) -> None:
        """Load a model for a client, or load it again.

        Raises:
            LoadFailed: It cannot be loaded.
            GatewayError: As `hold` and the server raise.
        """
        model = self.plan.acquire(name)
        if model is not None:
            try:
                await self._server.load(name, parameters)
            finally:
                self.release(model)
            return
        self.plan.resident(name).failed_until = 0.0
        self._parameters[name] = parameters
        try:
            self.release(await self._wait(name, ref))
        finally:
            self._parameters.pop(name, None)

    async def unload(self, name: str, reason: UnloadReason) -> None:
        """Unload a model when its running calls have ended; return when the server has done it."""
        model = self.plan.evict(name, reason, self._clock())
        self.advance()
        while model.phase in {ModelPhase.DRAINING, ModelPhase.UNLOADING} and model.reason is reason:
            await self._has_advanced.wait()

    def pin(self, name: str) -> None:
        """Load a model, and keep it."""
        self.plan.pin(name)
        self.advance()

    async def document(self) -> dict[str, Any]:
        """Return what the server holds, for the status."""
        models = in_slices(entries(self.plan.models.values(), self._clock()))
        return {
            "endpoint": self.name,
            "room": self._rules.room,
            "held": self.plan.held(),
            "waiting": self.plan.callers,
            "models": [each async for each in models],
        }

    def unpin(self, name: str) -> None:
        """Let a model be unloaded for others again."""
        self.plan.unpin(name)
        self.advance()

    # The plan

    def advance(self) -> None:
        """Begin what the plan has to do now."""
        if self._is_closed:
            return
        self._has_advanced.set()
        self._has_advanced = asyncio.Event()
        now = self._clock()
        actions = step(self.plan, now)
        self._grant(actions)
        for model in actions.loads:
            self._run(self._load(model), f"load of model {model.name}")
        for model in actions.unloads:
            self._run(self._unload(model), f"unload of model {model.name}")
        self._timer.set(due(self.plan, now), now)

    def _run(self, coroutine: Coroutine[Any, Any, None], what: str) -> None:
        # In a context of its own: the task belongs to none of the calls that wait for it.
        Context().run(start_background, coroutine, f"{what} of {self.name}", self._tasks)

    async def is_gone(self, model: Resident) -> bool:
        """Return whether the server holds a model no longer, though nobody here unloaded it."""
        if model.phase is not ModelPhase.LOADED:
            return True
        try:
            await self.index.look()
        except GatewayError:
            return False
        return model.phase is not ModelPhase.LOADED

    def _grant(self, actions: Actions) -> None:
        """End the waits of the calls that have references now."""
        for model, _callers in actions.grants:
            for waiter in self._waiters.pop(model.name, ()):
                waiter.is_counted, waiter.has_reference = False, True
                if not waiter.future.done():
                    waiter.future.set_result(None)

    # Loads and unloads at the server

    async def _load(self, model: Resident) -> None:
        """Load a model, unless the server does it already or has no room."""
        began = self._clock()
        try:
            async with asyncio.timeout(self._rules.load_timeout_s):
                phase = await self._load_at_server(model)
        except (GatewayError, TimeoutError) as error:
            self._fail(model, error, began)
        else:
            if phase is None:
                self.plan.put_back(model, ModelPhase.ABSENT, self._clock())
            elif phase in {ModelPhase.LOADING, ModelPhase.UNLOADING}:  # by another gateway
                self.plan.put_back(model, phase, self._clock())
                self.index.is_changing.set()
            else:
                self._finish(model, began, is_own=phase is ModelPhase.ABSENT)
        self.advance()

    async def _load_at_server(self, model: Resident) -> ModelPhase | None:
        """Load a model, unless the server does it already or has no room.

        Returns:
            What the model was doing before; None if there is no room any more.
        """
        async with self._turn():
            phase = await self._phase_before_load(model)
            if phase is not ModelPhase.ABSENT:
                return phase
            parameters = self._parameters.get(model.name, {})
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
                await self.index.read()
            if self.index.phase_of(model.name) is not ModelPhase.ABSENT:
                return

    def _finish(self, model: Resident, began: float, *, is_own: bool) -> None:
        now = self._clock()
        if is_own:
            self._meters.loaded(model.name, "ok", now - began)
            log.info(
                "resident model loaded", server=self.name, model=model.name, seconds=now - began
            )
            self.index.is_changing.set()  # another gateway may have loaded one at the same time
        self._grant(self.plan.loaded(model, now))

    async def _phase_before_load(self, model: Resident) -> ModelPhase | None:
        """Return what the model is doing at its server; None if there is no room any more."""
        await self.index.read()
        phase = self.index.phase_of(model.name)
        return None if phase is ModelPhase.ABSENT and not self.plan.has_room else phase

    def _fail(self, model: Resident, error: GatewayError | TimeoutError, began: float) -> None:
        now = self._clock()
        if isinstance(error, GatewayError):
            text = error_text(error)
        else:
            text = f"no reply within {self._rules.load_timeout_s:g} s (residency.load_timeout)"
        reason = f"model {model.name!r} cannot be loaded: {text}"
        self._meters.loaded(model.name, "failed", now - began)
        log.warning("resident model not loaded", server=self.name, model=model.name, reason=text)
        self.plan.failed(model, reason, now)
        for waiter in self._waiters.pop(model.name, ()):
            waiter.is_counted = False
            if not waiter.future.done():
                waiter.future.set_exception(LoadFailed(reason))
        self.index.is_changing.set()  # the server may load it all the same

    async def _unload(self, model: Resident) -> None:
        """Unload a model."""
        reason = model.reason.value
        try:
            await self._server.unload(model.name)
            await self._until_unloaded(model)
        except GatewayError as error:
            log.warning(
                "resident model not unloaded",
                server=self.name,
                model=model.name,
                reason=error_text(error),
            )
            await self._after_failed_unload(model)
        else:
            self._meters.unloaded(model.name, reason)
            log.info("resident model unloaded", server=self.name, model=model.name, reason=reason)
            self.plan.unloaded(model, self._clock())
        self.advance()

    async def _after_failed_unload(self, model: Resident) -> None:
        with suppress(GatewayError):
            await self.index.read()
            if self.index.phase_of(model.name) is not ModelPhase.LOADED:
                self.plan.unloaded(model, self._clock())
                return
        await asyncio.sleep(_UNREAD_S)
        self._grant(self.plan.kept(model, self._clock()))

    async def _until_unloaded(self, model: Resident) -> None:
        """Wait until the index no longer has the model; running calls may take their time."""
        pause_s = _UNLOADING_S
        while True:
            await self.index.read()
            if self.index.phase_of(model.name) is ModelPhase.ABSENT:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _UNLOADING_CAP_S)
