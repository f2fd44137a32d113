"""ResidencyPlan: which models one server holds, and which it loads and unloads next.

It is pure: it knows neither a clock nor a server. `controller.py` makes what the plan decides, and
notes what became of it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_STUCK: Final = 10.0
"""Multiple of `drain_after` after which a model that does not end its calls has a successor."""


class ModelPhase(enum.Enum):
    """What a model is doing at its server."""

    ABSENT = "absent"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    UNLOADING = "unloading"


HELD: Final = frozenset(
    {ModelPhase.LOADING, ModelPhase.LOADED, ModelPhase.DRAINING, ModelPhase.UNLOADING}
)
"""Phases in which a model needs room."""


STATES: Final = (*(each.value for each in ModelPhase if each in HELD), "failed")
"""States of models that metrics show."""


class UnloadReason(enum.Enum):
    """Why a model is unloaded."""

    ROOM = "room"
    IDLE = "idle"
    REQUEST = "request"
    EVICTION = "eviction"


@dataclass(slots=True, eq=False)
class Resident:
    """A model of the server.

    Attributes:
        name: Its name.
        cost: The room that it needs.
        phase: What it is doing.
        uses: References: running calls, streams and open sequences.
        callers: Calls that wait for it.
        turn: Number of the last call; the smallest is the least recently used.
        idle_since: When the last reference ended.
        since: When the first of the waiting callers came.
        is_wanted: It is loaded without a caller.
        is_pinned: It is loaded, and never evicted for another one.
        is_own: A load or unload of this gateway runs.
        changed_at: When its phase changed.
        failed_until: No load begins before that time, after one that failed.
        failure: Why its last load failed.
        reason: Why it is drained or unloaded.
    """

    name: str
    cost: int
    phase: ModelPhase = ModelPhase.ABSENT
    uses: int = 0
    callers: int = 0
    turn: int = 0
    idle_since: float = -math.inf
    since: float = 0.0
    is_wanted: bool = False
    is_pinned: bool = False
    is_own: bool = False
    changed_at: float = -math.inf
    failed_until: float = -math.inf
    failure: str = ""
    reason: UnloadReason = UnloadReason.ROOM


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """What the configuration says.

    Attributes:
        room: Room of the server: a number of models, or bytes.
        cost: Returns the room that a model needs.
        loads: Loads at the same time.
        drain_after_s: How long a call waits until a model in use is drained for it.
        idle_s: Time without calls after which a model is unloaded; infinity for never.
        retry_failed_s: Pause after a failed load.
    """

    room: int
    cost: Callable[[str], int]
    loads: int = 1
    drain_after_s: float = 1.0
    idle_s: float = math.inf
    retry_failed_s: float = 10.0


@dataclass(slots=True)
class Actions:
    """What to do now.

    Attributes:
        loads: Models to load.
        unloads: Models to unload; none of them has a reference.
        grants: Models whose waiting callers have references now, with their number.
    """

    loads: list[Resident] = field(default_factory=list)
    unloads: list[Resident] = field(default_factory=list)
    grants: list[tuple[Resident, int]] = field(default_factory=list)


class ResidencyPlan:
    """The models of one server.

    Args:
        rules: What the configuration says.
        pinned: Models that are loaded from the start, and never evicted.

    Attributes:
        models: All models that somebody has named, by name.
        turn: Number of calls so far.
    """

    def __init__(self, rules: PlanRules, pinned: Iterable[str] = ()) -> None:
        self.models: dict[str, Resident] = {}
        self.turn = 0
        self._rules = rules
        # Absent models that have callers, the longest waiting first.
        self._queue: dict[str, None] = {}
        for name in pinned:
            self.resident(name).is_pinned = True

    def resident(self, name: str) -> Resident:
        """Return the model *name*."""
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = Resident(name, self._rules.cost(name))
        return found

    @property
    def callers(self) -> int:
        """How many calls wait."""
        return sum(each.callers for each in self.models.values())

    def is_affected(self, model: Resident) -> bool:
        """Return whether the end of the last call of *model* may change the plan."""
        return bool(self._queue) or model.phase is ModelPhase.DRAINING

    def held(self) -> int:
        """Return the room in use."""
        return sum(each.cost for each in self.models.values() if each.phase in HELD)

    def fits(self, name: str) -> bool:
        """Return whether there could be room for *name* beside the pinned models."""
        model = self.resident(name)
        pinned = sum(
            each.cost for each in self.models.values() if each.is_pinned and each is not model
        )
        return model.cost + pinned <= self._rules.room

    # What callers do

    def acquire(self, name: str) -> Resident | None:
        """Return the model with a reference more; None if it is not loaded."""
        found = self.models.get(name)
        if found is None or found.phase is not ModelPhase.LOADED:
            return None
        self.use(found)
        return found

    def use(self, model: Resident, uses: int = 1) -> None:
        """Give a model references that it need not be loaded for, such as those of a sequence."""
        model.uses += uses
        self.turn += 1
        model.turn = self.turn

    def release(self, model: Resident, now: float) -> None:
        """Take back a reference."""
        model.uses -= 1
        if not model.uses:
            model.idle_since = now

    def wait(self, name: str, now: float, *, callers: int = 1) -> Resident:
        """Note callers who wait for a model that is not loaded; without any it is loaded too."""
        model = self.resident(name)
        model.callers += callers
        if not callers:
            model.is_wanted = True
        if name not in self._queue:
            model.since = now
            self._queue[name] = None
        return model

    def leave(self, model: Resident) -> None:
        """Note that a caller waits no longer."""
        model.callers -= 1
        self._dequeue(model)

    def _dequeue(self, model: Resident) -> None:
        if not model.callers and not model.is_wanted:
            self._queue.pop(model.name, None)

    def pin(self, name: str) -> None:
        """Load a model, and never evict it."""
        model = self.resident(name)
        model.is_pinned = True
        model.failed_until = -math.inf

    def unpin(self, name: str) -> None:
        """Let a model be evicted."""
        self.resident(name).is_pinned = False

    def evict(self, name: str, reason: UnloadReason, now: float) -> Resident:
        """Unload a model as soon as its running calls have ended; it gets no others."""
        model = self.resident(name)
        if model.phase in {ModelPhase.LOADED, ModelPhase.DRAINING}:
            self._drain(model, reason, now)
        return model

    # What becomes of loads and unloads

    def loaded(self, model: Resident, now: float) -> Actions:
        """Note that a model is loaded; its callers get references."""
        model.failure = ""
        self._enter(model, ModelPhase.LOADED, now)
        model.idle_since = now
        return self._grant(model)

    def _grant(self, model: Resident) -> Actions:
        callers, model.callers = model.callers, 0
        model.is_wanted = False
        self._dequeue(model)
        self.use(model, callers)
        return Actions(grants=[(model, callers)] if callers else [])

    def failed(self, model: Resident, reason: str, now: float) -> None:
        """Note that a load failed; its callers wait no longer."""
        model.failure = reason
        model.failed_until = now + self._rules.retry_failed_s
        model.callers = 0
        model.is_wanted = False
        self._dequeue(model)
        self._enter(model, ModelPhase.ABSENT, now)

    def put_back(self, model: Resident, phase: ModelPhase, now: float) -> None:
        """Note that a load has not begun; it is the next one.

        Args:
            model: The model.
            phase: What the server does with it.
            now: The time.
        """
        self._enter(model, phase, now)
        if model.callers or model.is_wanted:
            self._queue = {model.name: None, **self._queue}

    def unloaded(self, model: Resident, now: float) -> None:
        """Note that the server holds a model no longer."""
        self._enter(model, ModelPhase.ABSENT, now)

    def kept(self, model: Resident, now: float) -> Actions:
        """Note that an unload failed, so that the model is still loaded."""
        self._enter(model, ModelPhase.LOADED, now)
        return self._grant(model)

    def _enter(self, model: Resident, phase: ModelPhase, now: float) -> None:
        model.phase, model.changed_at, model.is_own = phase, now, False

    def observe(self, found: Mapping[str, ModelPhase], asked_at: float, now: float) -> Actions:
        """Note what the server has told about its models; others load and unload too.

        Args:
            found: The phases of its models; it does not have others.
            asked_at: When it was asked. What changed here since then is newer.
            now: The time.
        """
        actions = Actions()
        for name in found.keys() | self.models.keys():
            seen = found.get(name, ModelPhase.ABSENT)
            if seen is ModelPhase.ABSENT and name not in self.models:
                continue
            model = self.resident(name)
            if model.is_own or model.changed_at > asked_at or model.phase is seen:
                continue
            if seen is ModelPhase.LOADED:
                if model.phase is not ModelPhase.DRAINING:
                    actions.grants += self.loaded(model, now).grants
            elif seen is not ModelPhase.LOADING or model.phase in {
                ModelPhase.ABSENT,
                ModelPhase.UNLOADING,
            }:
                self._enter(model, seen, now)
                if seen is ModelPhase.ABSENT and (model.callers or model.is_wanted):
                    self._queue.setdefault(name)
        return actions

    # What to do

    def step(self, now: float) -> Actions:
        """Return what to do now, and note that it has begun."""
        actions = Actions()
        self._unload_idle(now, actions)
        free = self._rules.room - self.held()
        coming = self._coming(now) + min(0, free)
        if coming < 0:  # others have loaded more than there is room for
            coming += self._make_room(-coming, None, now, actions)
        free = max(0, free)
        slots = self._rules.loads - self._own_loads()
        is_complete = True
        for model in self._absent(now):
            if slots <= 0:
                is_complete = False
                break
            slots -= 1
            if model.cost <= free:
                free -= model.cost
                self._enter(model, ModelPhase.LOADING, now)
                model.is_own = True
                actions.loads.append(model)
                continue
            # Nobody overtakes: what is free is for the first that waits.
            lack, free = model.cost - free, 0
            if lack > coming:
                coming += self._make_room(lack - coming, model, now, actions)
            coming -= lack
            if coming < 0:
                is_complete = False
                break
        if is_complete:
            self._resume(coming, now, actions)
        self._unload_drained(now, actions)
        return actions

    def due(self, now: float) -> float | None:
        """Return when the next step may have something to do; None for no such time."""
        times: list[float] = []
        for name in self._queue:
            model = self.models[name]
            if model.phase is ModelPhase.ABSENT:
                times.append(model.since + self._rules.drain_after_s)
        for model in self.models.values():
            if model.phase is ModelPhase.DRAINING:
                times.append(model.changed_at + self._patience_s)
            elif model.is_pinned and model.phase is ModelPhase.ABSENT:
                times.append(model.failed_until)
            elif self._may_leave(model) and self._rules.idle_s < math.inf:
                times.append(model.idle_since + self._rules.idle_s)
        return min((each for each in times if each > now), default=None)

    @property
    def _patience_s(self) -> float:
        return self._rules.drain_after_s * _STUCK

    def _own_loads(self) -> int:
        return sum(
            each.phase is ModelPhase.LOADING and each.is_own for each in self.models.values()
        )

    def _coming(self, now: float) -> int:
        """Return the room that becomes free soon."""
        return sum(
            each.cost
            for each in self.models.values()
            if each.phase is ModelPhase.UNLOADING
            or (each.phase is ModelPhase.DRAINING and now < each.changed_at + self._patience_s)
        )

    def _absent(self, now: float) -> Iterator[Resident]:
        """Yield the models to load, in order."""
        for model in self.models.values():
            is_due = model.is_pinned and now >= model.failed_until
            if is_due and model.phase is ModelPhase.ABSENT and model.name not in self._queue:
                yield model
        for name in tuple(self._queue):
            if self.models[name].phase is ModelPhase.ABSENT:
                yield self.models[name]

    def _may_leave(self, model: Resident) -> bool:
        return model.phase is ModelPhase.LOADED and not model.uses and not model.is_pinned

    def _unload_idle(self, now: float, actions: Actions) -> None:
        if self._rules.idle_s == math.inf:
            return
        for model in self.models.values():
            if self._may_leave(model) and now >= model.idle_since + self._rules.idle_s:
                self._unload(model, UnloadReason.IDLE, now, actions)

    def _make_room(self, lack: int, model: Resident | None, now: float, actions: Actions) -> int:
        """Unload or drain the least recently used models; return the room that becomes free.

        Args:
            lack: The room to make.
            model: For which it is; None for none, and then no model in use is drained.
            now: The time.
            actions: Get the unloads.
        """
        by_use = sorted(self.models.values(), key=lambda each: each.turn)
        idle = list(_enough((each for each in by_use if self._may_leave(each)), lack))
        idle_room = sum(each.cost for each in idle)
        busy: list[Resident] = []
        if idle_room < lack and model is not None:
            if now < model.since + self._rules.drain_after_s:
                return 0
            in_use = (
                each
                for each in by_use
                if each.phase is ModelPhase.LOADED and each.uses and not each.is_pinned
            )
            busy = list(_enough(in_use, lack - idle_room))
        for each in idle:
            self._unload(each, UnloadReason.ROOM, now, actions)
        for each in busy:
            self._drain(each, UnloadReason.ROOM, now)
        return idle_room + sum(each.cost for each in busy)

    def _drain(self, model: Resident, reason: UnloadReason, now: float) -> None:
        model.reason = reason
        if model.phase is not ModelPhase.DRAINING:
            self._enter(model, ModelPhase.DRAINING, now)

    def _unload(self, model: Resident, reason: UnloadReason, now: float, actions: Actions) -> None:
        model.reason = reason
        self._enter(model, ModelPhase.UNLOADING, now)
        model.is_own = True
        actions.unloads.append(model)

    def _resume(self, spare: int, now: float, actions: Actions) -> None:
        """Let models get calls again that need not be unloaded any more."""
        for model in sorted(self.models.values(), key=lambda each: -each.turn):
            if model.phase is not ModelPhase.DRAINING or model.reason is not UnloadReason.ROOM:
                continue
            is_stuck = now >= model.changed_at + self._patience_s
            if model.uses and (model.is_pinned or (is_stuck and not self._queue)):
                actions.grants += self.kept(model, now).grants
            elif model.uses and not is_stuck and model.cost <= spare:
                spare -= model.cost
                actions.grants += self.kept(model, now).grants

    def _unload_drained(self, now: float, actions: Actions) -> None:
        for model in self.models.values():
            if model.phase is ModelPhase.DRAINING and not model.uses:
                self._unload(model, model.reason, now, actions)


def _enough(models: Iterable[Resident], room: int) -> Iterator[Resident]:
    """Yield models until they have *room* together."""
    for model in models:
        if room <= 0:
            return
        room -= model.cost
        yield model


def counts(models: Iterable[Resident], now: float) -> dict[str, int]:
    """Return the number of models in each state that metrics show."""
    found = dict.fromkeys(
        (*(each.value for each in ModelPhase if each is not ModelPhase.ABSENT), "failed"), 0
    )
    for model in models:
        if model.phase is not ModelPhase.ABSENT:
            found[model.phase.value] += 1
        elif now < model.failed_until:
            found["failed"] += 1
    return found


def entries(models: Iterable[Resident], now: float) -> list[dict[str, Any]]:
    """Return what is shown of models that are not only absent, by name."""
    by_name = sorted(models, key=lambda each: each.name)
    return [_model_entry(each, now) for each in by_name if _is_shown(each, now)]


def _is_shown(model: Resident, now: float) -> bool:
    is_held = model.phase is not ModelPhase.ABSENT
    return is_held or model.is_pinned or bool(model.callers) or now < model.failed_until


def _model_entry(model: Resident, now: float) -> dict[str, Any]:
    is_failed = model.phase is ModelPhase.ABSENT and now < model.failed_until
    return {
        "name": model.name,
        "state": "failed" if is_failed else model.phase.value,
        "uses": model.uses,
        "waiting": model.callers,
        "pinned": model.is_pinned,
        "reason": model.failure if is_failed else "",
    }
