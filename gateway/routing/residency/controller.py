"""ResidencyController: loads and unloads the models of one server, as its plan decides.

Workers and other gateways change the same server. They share no store: the index of the server is
read before each load, and it decides what is there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from gateway.concurrency.background import start_background
from gateway.ir.calls import LoadParameters
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    LoadFailed,
    ModelNotFound,
    Overloaded,
)
from gateway.routing.residency.host_turn import NoTurn, Turn
from gateway.routing.residency.plan import (
    Actions,
    ModelPhase,
    PlanRules,
    ResidencyPlan,
    Resident,
    UnloadReason,
    entries,
)
from gateway.telemetry.error_texts import error_text

log = structlog.get_logger(__name__)

_INDEX_S: Final = 30.0
"""How often the index is read."""
_CHANGING_S: Final = 0.1
"""How often it is read while another gateway loads or unloads a model."""
_UNREAD_S: Final = 1.0
"""How often it is read while the server does not reply, and at most for unknown names."""
_UNLOADING_S: Final = 0.02
"""The first pause between two looks at a model that is being unloaded; they grow."""
_UNLOADING_CAP_S: Final = 0.5
_LOOKS: Final = 20
"""How often the index is read for a load that has begun, before another process has its turn."""


class ModelServer(Protocol):
    """What holds the models: an upstream's endpoint, or the gateway itself."""

    async def index(self) -> Mapping[str, ModelPhase]:
        """Return the models of its repository, and what they are doing."""

    async def load(self, name: str, parameters: LoadParameters, /) -> None:
        """Load a model; return when it is loaded."""

    async def unload(self, name: str, /) -> None:
        """Begin to unload a model."""


class ResidencyMeters(Protocol):
    """Counts what a controller does."""

    def loaded(self, model: str, outcome: str, seconds: float, /) -> None:
        """Count a load: *outcome* is "ok" or "failed"."""

    def unloaded(self, model: str, reason: str, /) -> None:
        """Count an unload."""

    def waited(self, seconds: float, /) -> None:
        """Count the wait of a call."""


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
        models: The models of the index.
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
        self.models: frozenset[str] = frozenset()
        self._server = server
        self._rules = rules
        self._waits = waits
        self._meters = meters
        self._clock = clock
        self._callers = callers or (lambda: self.plan.callers)
        self._excludes = turn is not None
        self._turn: Callable[[], Turn] = NoTurn if turn is None else turn
        self._parameters: dict[str, LoadParameters] = {}
        self._waiters: dict[str, list[_Waiter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._read_at: float | None = None
        self._seen: Mapping[str, ModelPhase] = {}
        self._index_lock = asyncio.Lock()
        self._is_changing = asyncio.Event()
        self._has_advanced = asyncio.Event()
        self._is_closed = False

    def start(self) -> None:
        """Begin to read the index, and load the pinned models."""
        self._run(self._watch(), "index")

    async def close(self) -> None:
        """Stop; loads that run go on at the server."""
        self._is_closed = True
        if self._timer is not None:
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
        if self._rules.idle_s != math.inf:
            model.idle_since = self._clock()
            self._set_timer()
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
        if name not in self.models:
            await self._look_for(name)
        if name not in self.models:
            raise ModelNotFound(
                f"model {name!r} is unknown: the repository of the server does not have it",
                model=ref,
            )
        if not self._waits.allow(name) and not self._is_or_was_requested(name):
            raise ModelNotFound(
                f"model {name!r} is not loaded, and calls may not load it (residency.allow)",
                model=ref,
            )

    def _is_or_was_requested(self, name: str) -> bool:
        found = self.plan.models.get(name)
        return found is not None and (found.is_pinned or found.phase is not ModelPhase.ABSENT)

    def is_loadable(self, name: str) -> bool:
        """Return whether a load of the model would be tried now."""
        found = self.plan.resident(name)
        return self._clock() >= found.failed_until and self.plan.fits(name)

    async def _look_for(self, name: str) -> None:
        """Read the index for an unknown name, at most once a second."""
        async with self._index_lock:
            is_recent = self._read_at is not None and self._clock() < self._read_at + _UNREAD_S
            if name not in self.models and not is_recent:
                await self._look()

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
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        self._waiters.setdefault(name, []).append(waiter)
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

    async def evict(self, name: str) -> None:
        """Unload a model for an operator, when its running calls have ended."""
        await self.unload(name, UnloadReason.EVICTION)

    def document(self) -> dict[str, Any]:
        """Return what the server holds, for the status."""
        now = self._clock()
        return {
            "endpoint": self.name,
            "room": self._rules.room,
            "held": self.plan.held(),
            "waiting": self.plan.callers,
            "models": entries(self.plan.models.values(), now),
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
        actions = self.plan.step(self._clock())
        self._grant(actions)
        for model in actions.loads:
            self._run(self._load(model), f"load of model {model.name}")
        for model in actions.unloads:
            self._run(self._unload(model), f"unload of model {model.name}")
        self._set_timer()

    def _grant(self, actions: Actions) -> None:
        for model, _callers in actions.grants:
            for waiter in self._waiters.pop(model.name, ()):
                waiter.is_counted, waiter.has_reference = False, True
                if not waiter.future.done():
                    waiter.future.set_result(None)

    def _set_timer(self) -> None:
        now = self._clock()
        due = self.plan.due(now)
        if self._timer is not None:
            if due is not None and due == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer_at = due
            self._timer = loop.call_later(due - now + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.advance()

    def _run(self, coroutine: Coroutine[Any, Any, None], what: str) -> None:
        # In a context of its own: the task belongs to none of the calls that wait for it.
        task = Context().run(start_background, coroutine, f"{what} of {self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, model: Resident) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(self._waits.load_timeout_s):
                phase = await self._load_at_server(model)
        except (GatewayError, TimeoutError) as error:
            self._fail(model, error, began)
        else:
            if phase is None:
                self.plan.put_back(model, ModelPhase.ABSENT, self._clock())
            elif phase in {ModelPhase.LOADING, ModelPhase.UNLOADING}:  # by another gateway
                self.plan.put_back(model, phase, self._clock())
                self._is_changing.set()
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
                await self.read_index()
            if self._seen.get(model.name, ModelPhase.ABSENT) is not ModelPhase.ABSENT:
                return

    def _finish(self, model: Resident, began: float, *, is_own: bool) -> None:
        now = self._clock()
        if is_own:
            self._meters.loaded(model.name, "ok", now - began)
            log.info(
                "resident model loaded", server=self.name, model=model.name, seconds=now - began
            )
            self._is_changing.set()  # another gateway may have loaded one at the same time
        self._grant(self.plan.loaded(model, now))

    async def _phase_before_load(self, model: Resident) -> ModelPhase | None:
        """Return what the model is doing at its server; None if there is no room any more."""
        await self.read_index()
        phase = self._seen.get(model.name, ModelPhase.ABSENT)
        is_full = self.plan.held() > self._rules.room
        return None if phase is ModelPhase.ABSENT and is_full else phase

    def _fail(self, model: Resident, error: GatewayError | TimeoutError, began: float) -> None:
        now = self._clock()
        if isinstance(error, GatewayError):
            text = error_text(error)
        else:
            text = f"no reply within {self._waits.load_timeout_s:g} s (residency.load_timeout)"
        reason = f"model {model.name!r} cannot be loaded: {text}"
        self._meters.loaded(model.name, "failed", now - began)
        log.warning("resident model not loaded", server=self.name, model=model.name, reason=text)
        self.plan.failed(model, reason, now)
        for waiter in self._waiters.pop(model.name, ()):
            waiter.is_counted = False
            if not waiter.future.done():
                waiter.future.set_exception(LoadFailed(reason))
        self._is_changing.set()  # the server may load it all the same

    async def _unload(self, model: Resident) -> None:
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
            await self.read_index()
            if self._seen.get(model.name, ModelPhase.ABSENT) is not ModelPhase.LOADED:
                self.plan.unloaded(model, self._clock())
                return
        await asyncio.sleep(_UNREAD_S)
        self._grant(self.plan.kept(model, self._clock()))

    async def _until_unloaded(self, model: Resident) -> None:
        """Wait until the index no longer has the model; running calls may take their time."""
        pause_s = _UNLOADING_S
        while True:
            await self.read_index()
            if self._seen.get(model.name, ModelPhase.ABSENT) is ModelPhase.ABSENT:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _UNLOADING_CAP_S)

    # The index

    async def read_index(self) -> None:
        """Read the index, and note what it says.

        Raises:
            GatewayError: The server does not list its models.
        """
        asked_at = self._clock()
        found = await self._server.index()
        now = self._clock()
        self._read_at, self._seen, self.models = now, found, frozenset(found)
        self._grant(self.plan.observe(found, asked_at, now))

    async def is_gone(self, model: Resident) -> bool:
        """Return whether the server holds a model no longer, though nobody here unloaded it."""
        if model.phase is not ModelPhase.LOADED:
            return True
        try:
            await self._look()
        except GatewayError:
            return False
        return model.phase is not ModelPhase.LOADED

    async def _look(self) -> None:
        """Read the index beside the regular times."""
        await self.read_index()
        self.advance()
        if self._are_others_busy:
            self._is_changing.set()

    @property
    def _are_others_busy(self) -> bool:
        """Whether another gateway loads or unloads a model."""
        return any(
            each.phase in {ModelPhase.LOADING, ModelPhase.UNLOADING} and not each.is_own
            for each in self.plan.models.values()
        )

    async def _watch(self) -> None:
        while True:
            try:
                await self.read_index()
            except GatewayError as error:
                log.debug("models cannot be listed", server=self.name, reason=error_text(error))
                delay_s = _UNREAD_S
            else:
                self.advance()
                delay_s = _CHANGING_S if self._are_others_busy else _INDEX_S
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._is_changing.wait()
            self._is_changing.clear()
