"""Which models of a server are loaded and unloaded next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.residency.plan import (
    Actions,
    ModelPhase,
    ResidencyPlan,
    Resident,
    UnloadReason,
)

_STUCK: Final = 10.0
"""Multiple of `drain_after` after which a model that does not end its calls has a successor."""


def step(plan: ResidencyPlan, now: float) -> Actions:
    """Return what to do now, and note that it has begun."""
    actions = Actions()
    _unload_idle(plan, now, actions)
    free = plan.rules.room - plan.held()
    coming = _coming(plan, now) + min(0, free)
    if coming < 0:  # others have loaded more than there is room for
        coming += _make_room(plan, -coming, None, now, actions)
    free = max(0, free)
    loading = (each for each in plan.models.values() if each.phase is ModelPhase.LOADING)
    slots = plan.rules.loads - sum(each.is_own for each in loading)
    is_complete = True
    for model in _absent(plan, now):
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
            coming += _make_room(plan, lack - coming, model, now, actions)
        coming -= lack
        if coming < 0:
            is_complete = False
            break
    if is_complete:
        _resume(plan, coming, now, actions)
    _unload_drained(plan, now, actions)
    return actions


def due(plan: ResidencyPlan, now: float) -> float | None:
    """Return when the next step may have something to do; None for no such time."""
    times: list[float] = []
    for name in plan.queue:
        model = plan.models[name]
        if model.phase is ModelPhase.ABSENT:
            times.append(model.since + plan.rules.drain_after_s)
    for model in plan.models.values():
        if model.phase is ModelPhase.DRAINING:
            times.append(model.changed_at + _patience_s(plan))
        elif model.is_pinned and model.phase is ModelPhase.ABSENT:
            times.append(model.failed_until)
        elif model.may_leave and plan.rules.idle_s < math.inf:
            times.append(model.idle_since + plan.rules.idle_s)
    return min((each for each in times if each > now), default=None)


def _patience_s(plan: ResidencyPlan) -> float:
    """Return how long a model that does not end its calls is waited for."""
    return plan.rules.drain_after_s * _STUCK


def _coming(plan: ResidencyPlan, now: float) -> int:
    """Return the room that becomes free soon."""
    return sum(
        each.cost
        for each in plan.models.values()
        if each.phase is ModelPhase.UNLOADING
        or (each.phase is ModelPhase.DRAINING and now < each.changed_at + _patience_s(plan))
    )


def _absent(plan: ResidencyPlan, now: float) -> Iterator[Resident]:
    """Yield the models to load, in order."""
    for model in plan.models.values():
        is_due = model.is_pinned and now >= model.failed_until
        if is_due and model.phase is ModelPhase.ABSENT and model.name not in plan.queue:
            yield model
    for name in tuple(plan.queue):
        if plan.models[name].phase is ModelPhase.ABSENT:
            yield plan.models[name]


def _unload_idle(plan: ResidencyPlan, now: float, actions: Actions) -> None:
    if plan.rules.idle_s == math.inf:
        return
    for model in plan.models.values():
        if model.may_leave and now >= model.idle_since + plan.rules.idle_s:
            _unload(model, UnloadReason.IDLE, now, actions)


def _make_room(
    plan: ResidencyPlan, lack: int, model: Resident | None, now: float, actions: Actions
) -> int:
    """Unload or drain the least recently used models; return the room that becomes free.

    Args:
        plan: The models of the server.
        lack: The room to make.
        model: For which it is; None for none, and then no model in use is drained.
        now: The time.
        actions: Get the unloads.
    """
    by_use = sorted(plan.models.values(), key=lambda each: each.turn)
    idle = list(_enough((each for each in by_use if each.may_leave), lack))
    idle_room = sum(each.cost for each in idle)
    busy: list[Resident] = []
    if idle_room < lack and model is not None:
        if now < model.since + plan.rules.drain_after_s:
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


def _resume(plan: ResidencyPlan, spare: int, now: float, actions: Actions) -> None:
    """Let models get calls again that need not be unloaded any more."""
    for model in sorted(plan.models.values(), key=lambda each: -each.turn):
        if model.phase is not ModelPhase.DRAINING or model.reason is not UnloadReason.ROOM:
            continue
        is_stuck = now >= model.changed_at + _patience_s(plan)
        if model.uses and (model.is_pinned or (is_stuck and not plan.queue)):
            actions.grants += plan.kept(model, now).grants
        elif model.uses and not is_stuck and model.cost <= spare:
            spare -= model.cost
            actions.grants += plan.kept(model, now).grants


def _unload_drained(plan: ResidencyPlan, now: float, actions: Actions) -> None:
    for model in plan.models.values():
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
