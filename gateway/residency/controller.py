"""ResidencyController: loads and unloads the models of one server, as its plan decides.

Workers and other gateways change the same server. They share no store: the index of the server is
read before each load, and it decides what is there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from gateway.concurrency.background import start_background
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
from gateway.residency.host_turn import Turn
from gateway.residency.index import ModelServer, ServerIndex
from gateway.residency.outcomes import Outcomes
from gateway.residency.plan import (
    ModelPhase,
    PlanRules,
    ResidencyPlan,
    Resident,
    UnloadReason,
    entries,
)
from gateway.residency.steps import NextSteps
from gateway.residency.transfers import ResidencyMeters, Transfers
from gateway.residency.waiters import LoadWaiter, Waiters


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRules:
    """What the configuration says about loads and waits.

    Attributes:
        load_timeout_s: Longest time of a load.
        wait_s: Longest wait of a call.
        queued: Calls of the upstream that may wait.
        allow: Tells which models calls may load.
    """

    load_timeout_s: float = 60.0
    wait_s: float = 30.0
    queued: int = 256
    allow: Callable[[str], bool] = lambda _name: True


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
        rules: What the plan decides by.
        waits: Limits of loads and waits.
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

    def __init__(  # noqa: PLR0913  # by name but the first five
        self,
        name: str,
        server: ModelServer,
        rules: PlanRules,
        waits: WaitRules,
        meters: ResidencyMeters,
        *,
        pinned: tuple[str, ...] = (),
        callers: Callable[[], int] | None = None,
        turn: Callable[[], Turn] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.plan = ResidencyPlan(rules, pinned)
        outcomes = Outcomes(self.plan, rules.retry_failed_s)
        self._steps = NextSteps(self.plan, outcomes, rules)
        self._waiters = Waiters()
        self._server = server
        self._rules = rules
        self._waits = waits
        self._meters = meters
        self._clock = clock
        self._callers = callers or (lambda: self.plan.callers)
        self.index = ServerIndex(
            name,
            server,
            self.plan.models,
            on_read=lambda *found: self._waiters.grant(outcomes.observe(*found)),
            advance=self.advance,
            clock=clock,
        )
        self._transfers = Transfers(
            name,
            server,
            index=self.index,
            outcomes=outcomes,
            waiters=self._waiters,
            has_room=lambda: self.plan.held() <= rules.room,
            meters=meters,
            load_timeout_s=waits.load_timeout_s,
            on_end=self.advance,
            turn=turn,
            clock=clock,
        )
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
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            self._timer.set(self._steps.due(now), now)
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
        if not self._waits.allow(name) and not is_requested:
            raise ModelNotFound(
                f"model {name!r} is not loaded, and calls may not load it (residency.allow)",
                model=ref,
            )

    def is_loadable(self, name: str) -> bool:
        """Return whether a load of the model would be tried now."""
        found = self.plan.resident(name)
        return self._clock() >= found.failed_until and self.plan.fits(name)

    async def _wait(self, name: str, ref: ModelRef | None) -> Resident:
        now, waits = self._clock(), self._waits
        known = self.plan.resident(name)
        if now < known.failed_until and known.phase is ModelPhase.ABSENT:
            raise LoadFailed(known.failure, model=ref)
        if not self.plan.fits(name):
            raise LoadFailed(
                f"model {name!r} cannot be loaded: it needs {known.cost} of {self._rules.room}, "
                "and the pinned models need the rest (residency.models, residency.memory)",
                model=ref,
            )
        if self._callers() >= waits.queued:
            raise Overloaded(
                f"{waits.queued} calls wait for models already (residency.queued)",
                model=ref,
                limit="residency.queued",
            )
        model = self.plan.wait(name, now)
        waiter = self._waiters.join(name)
        try:
            self.advance()
            async with asyncio.timeout(waits.wait_s):
                await waiter.future
        except TimeoutError:
            self._leave(model, waiter)
            raise DeadlineExceeded(
                f"model {name!r} was not loaded within {waits.wait_s:g} s (residency.wait)",
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

    def _leave(self, model: Resident, waiter: LoadWaiter) -> None:
        if waiter.has_reference:
            self.release(model)
        elif waiter.is_counted:
            self._waiters.leave(model.name, waiter)
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
        self._transfers.parameters[name] = parameters
        try:
            self.release(await self._wait(name, ref))
        finally:
            self._transfers.parameters.pop(name, None)

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
        actions = self._steps.step(now)
        self._waiters.grant(actions)
        for model in actions.loads:
            self._run(self._transfers.load(model), f"load of model {model.name}")
        for model in actions.unloads:
            self._run(self._transfers.unload(model), f"unload of model {model.name}")
        self._timer.set(self._steps.due(now), now)

    def _run(self, coroutine: Coroutine[Any, Any, None], what: str) -> None:
        # In a context of its own: the task belongs to none of the calls that wait for it.
        task = Context().run(start_background, coroutine, f"{what} of {self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def is_gone(self, model: Resident) -> bool:
        """Return whether the server holds a model no longer, though nobody here unloaded it."""
        if model.phase is not ModelPhase.LOADED:
            return True
        try:
            await self.index.look()
        except GatewayError:
            return False
        return model.phase is not ModelPhase.LOADED
