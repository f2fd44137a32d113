"""NextSteps: which models of a server are loaded and unloaded next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.residency.outcomes import Outcomes
from gateway.residency.plan import (
    Actions,
    ModelPhase,
    PlanRules,
    ResidencyPlan,
    Resident,
    UnloadReason,
)

_STUCK: Final = 10.0
"""Multiple of `drain_after` after which a model that does not end its calls has a successor."""


class NextSteps:
    """Decides what a server does next. The longest waiting callers come first.

    Args:
        plan: Its models.
        outcomes: Notes which models are not unloaded after all.
        rules: What the configuration says.
    """

    def __init__(self, plan: ResidencyPlan, outcomes: Outcomes, rules: PlanRules) -> None:
        self._plan = plan
        self._outcomes = outcomes
        self._rules = rules

    def step(self, now: float) -> Actions:
        """Return what to do now, and note that it has begun."""
        actions = Actions()
        self._unload_idle(now, actions)
        free = self._rules.room - self._plan.held()
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
                model.enter(ModelPhase.LOADING, now, is_own=True)
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
        for name in self._plan.queue:
            model = self._plan.models[name]
            if model.phase is ModelPhase.ABSENT:
                times.append(model.since + self._rules.drain_after_s)
        for model in self._plan.models.values():
            if model.phase is ModelPhase.DRAINING:
                times.append(model.changed_at + self._patience_s)
            elif model.is_pinned and model.phase is ModelPhase.ABSENT:
                times.append(model.failed_until)
            elif model.may_leave and self._rules.idle_s < math.inf:
                times.append(model.idle_since + self._rules.idle_s)
        return min((each for each in times if each > now), default=None)

    @property
    def _patience_s(self) -> float:
        return self._rules.drain_after_s * _STUCK

    def _own_loads(self) -> int:
        return sum(
            each.phase is ModelPhase.LOADING and each.is_own for each in self._plan.models.values()
        )

    def _coming(self, now: float) -> int:
        """Return the room that becomes free soon."""
        return sum(
            each.cost
            for each in self._plan.models.values()
            if each.phase is ModelPhase.UNLOADING
            or (each.phase is ModelPhase.DRAINING and now < each.changed_at + self._patience_s)
        )

    def _absent(self, now: float) -> Iterator[Resident]:
        """Yield the models to load, in order."""
        for model in self._plan.models.values():
            is_due = model.is_pinned and now >= model.failed_until
            if is_due and model.phase is ModelPhase.ABSENT and model.name not in self._plan.queue:
                yield model
        for name in tuple(self._plan.queue):
            if self._plan.models[name].phase is ModelPhase.ABSENT:
                yield self._plan.models[name]

    def _unload_idle(self, now: float, actions: Actions) -> None:
        if self._rules.idle_s == math.inf:
            return
        for model in self._plan.models.values():
            if model.may_leave and now >= model.idle_since + self._rules.idle_s:
                _unload(model, UnloadReason.IDLE, now, actions)

    def _make_room(self, lack: int, model: Resident | None, now: float, actions: Actions) -> int:
        """Unload or drain the least recently used models; return the room that becomes free.

        Args:
            lack: The room to make.
            model: For which it is; None for none, and then no model in use is drained.
            now: The time.
            actions: Get the unloads.
        """
        by_use = sorted(self._plan.models.values(), key=lambda each: each.turn)
        idle = list(_enough((each for each in by_use if each.may_leave), lack))
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
            _unload(each, UnloadReason.ROOM, now, actions)
        for each in busy:
            each.drain(UnloadReason.ROOM, now)
        return idle_room + sum(each.cost for each in busy)

    def _resume(self, spare: int, now: float, actions: Actions) -> None:
        """Let models get calls again that need not be unloaded any more."""
        for model in sorted(self._plan.models.values(), key=lambda each: -each.turn):
            if model.phase is not ModelPhase.DRAINING or model.reason is not UnloadReason.ROOM:
                continue
            is_stuck = now >= model.changed_at + self._patience_s
            if model.uses and (model.is_pinned or (is_stuck and not self._plan.queue)):
                actions.grants += self._outcomes.kept(model, now).grants
            elif model.uses and not is_stuck and model.cost <= spare:
                spare -= model.cost
                actions.grants += self._outcomes.kept(model, now).grants

    def _unload_drained(self, now: float, actions: Actions) -> None:
        for model in self._plan.models.values():
            if model.phase is ModelPhase.DRAINING and not model.uses:
                _unload(model, model.reason, now, actions)


def _unload(model: Resident, reason: UnloadReason, now: float, actions: Actions) -> None:
    model.reason = reason
    model.enter(ModelPhase.UNLOADING, now, is_own=True)
    actions.unloads.append(model)


def _enough(models: Iterable[Resident], room: int) -> Iterator[Resident]:
    """Yield models until they have *room* together."""
    for model in models:
        if room <= 0:
            return
        room -= model.cost
        yield model
