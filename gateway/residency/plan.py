"""ResidencyPlan: the models of one server, who uses them, and who waits for them.

It is pure: it knows neither a clock nor a server. `steps.py` decides what is loaded and unloaded
next, and `controller.py` makes that, and notes here what became of it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


class ModelPhase(enum.Enum):
    """What a model is doing at its server."""

    ABSENT = "absent"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    UNLOADING = "unloading"


STATES: Final = (*(each.value for each in ModelPhase if each is not ModelPhase.ABSENT), "failed")
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

    @property
    def is_requested(self) -> bool:
        """Whether somebody has requested it, or it is at the server."""
        return self.is_pinned or self.phase is not ModelPhase.ABSENT

    @property
    def may_leave(self) -> bool:
        """Whether it can be unloaded for another one now."""
        return self.phase is ModelPhase.LOADED and not self.uses and not self.is_pinned

    def enter(self, phase: ModelPhase, now: float, *, is_own: bool = False) -> None:
        """Note what it is doing from now on, and whether this gateway does it."""
        self.phase, self.changed_at, self.is_own = phase, now, is_own

    def drain(self, reason: UnloadReason, now: float) -> None:
        """Give it no further calls."""
        self.reason = reason
        if self.phase is not ModelPhase.DRAINING:
            self.enter(ModelPhase.DRAINING, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyRules:
    """What the configuration says.

    Attributes:
        room: Room of the server: a number of models, or bytes.
        cost: Returns the room that a model needs.
        loads: Loads at the same time.
        drain_after_s: How long a call waits until a model in use is drained for it.
        idle_s: Time without calls after which a model is unloaded; infinity for never.
        retry_failed_s: Pause after a failed load.
        load_timeout_s: Longest time of a load.
        wait_s: Longest wait of a call.
        queued: Calls of the upstream that may wait.
        allow: Tells which models calls may load.
    """

    room: int
    cost: Callable[[str], int]
    loads: int = 1
    drain_after_s: float = 1.0
    idle_s: float = math.inf
    retry_failed_s: float = 10.0
    load_timeout_s: float = 60.0
    wait_s: float = 30.0
    queued: int = 256
    allow: Callable[[str], bool] = lambda _name: True


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
        rules: What the configuration says.
        models: All models that somebody has named, by name.
        turn: Number of calls so far.
        queue: Absent models that have callers, the longest waiting first.
    """

    def __init__(self, rules: ResidencyRules, pinned: Iterable[str] = ()) -> None:
        self.models: dict[str, Resident] = {}
        self.turn = 0
        self.rules = rules
        self.queue: dict[str, None] = {}
        for name in pinned:
            self.resident(name).is_pinned = True

    def resident(self, name: str) -> Resident:
        """Return the model *name*."""
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = Resident(name, self.rules.cost(name))
        return found

    @property
    def callers(self) -> int:
        """How many calls wait."""
        return sum(each.callers for each in self.models.values())

    def is_affected(self, model: Resident) -> bool:
        """Return whether the end of the last call of *model* may change the plan."""
        return bool(self.queue) or model.phase is ModelPhase.DRAINING

    def held(self) -> int:
        """Return the room in use: that of models that are not absent."""
        return sum(
            each.cost for each in self.models.values() if each.phase is not ModelPhase.ABSENT
        )

    @property
    def has_room(self) -> bool:
        """Whether the server has not more models than room."""
        return self.held() <= self.rules.room

    def fits(self, name: str) -> bool:
        """Return whether there could be room for *name* beside the pinned models."""
        model = self.resident(name)
        pinned = sum(
            each.cost for each in self.models.values() if each.is_pinned and each is not model
        )
        return model.cost + pinned <= self.rules.room

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
        if name not in self.queue:
            model.since = now
            self.queue[name] = None
        return model

    def leave(self, model: Resident) -> None:
        """Note that a caller waits no longer."""
        model.callers -= 1
        self.dequeue(model)

    def dequeue(self, model: Resident) -> None:
        """Let a model wait no longer, if nobody waits for it."""
        if not model.callers and not model.is_wanted:
            self.queue.pop(model.name, None)

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
            model.drain(reason, now)
        return model

    # What the server does

    def loaded(self, model: Resident, now: float) -> Actions:
        """Note that a model is loaded; its callers get references."""
        model.failure = ""
        model.enter(ModelPhase.LOADED, now)
        model.idle_since = now
        return self._grant(model)

    def _grant(self, model: Resident) -> Actions:
        callers, model.callers = model.callers, 0
        model.is_wanted = False
        self.dequeue(model)
        self.use(model, callers)
        return Actions(grants=[(model, callers)] if callers else [])

    def failed(self, model: Resident, reason: str, now: float) -> None:
        """Note that a load failed; its callers wait no longer."""
        model.failure = reason
        model.failed_until = now + self.rules.retry_failed_s
        model.callers = 0
        model.is_wanted = False
        self.dequeue(model)
        model.enter(ModelPhase.ABSENT, now)

    def put_back(self, model: Resident, phase: ModelPhase, now: float) -> None:
        """Note that a load has not begun; it is the next one.

        Args:
            model: The model.
            phase: What the server does with it.
            now: The time.
        """
        model.enter(phase, now)
        if model.callers or model.is_wanted:
            self.queue = {model.name: None, **self.queue}

    def unloaded(self, model: Resident, now: float) -> None:
        """Note that the server holds a model no longer."""
        model.enter(ModelPhase.ABSENT, now)

    def kept(self, model: Resident, now: float) -> Actions:
        """Note that an unload failed, so that the model is still loaded."""
        model.enter(ModelPhase.LOADED, now)
        return self._grant(model)

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
                model.enter(seen, now)
                if seen is ModelPhase.ABSENT and (model.callers or model.is_wanted):
                    self.queue.setdefault(name)
        return actions


def counts(models: Iterable[Resident], now: float) -> dict[str, int]:
    """Return the number of models in each state that metrics show."""
    found = dict.fromkeys(STATES, 0)
    for model in models:
        if model.phase is not ModelPhase.ABSENT:
            found[model.phase.value] += 1
        elif now < model.failed_until:
            found["failed"] += 1
    return found


def entries(models: Iterable[Resident], now: float) -> Iterator[dict[str, Any]]:
    """Yield what is shown of models that are not only absent, by name."""
    by_name = sorted(models, key=lambda each: each.name)
    return (_model_entry(each, now) for each in by_name if _is_shown(each, now))


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
