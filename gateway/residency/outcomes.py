"""Outcomes: notes in the plan of a server what became of its loads and unloads."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.residency.plan import Actions, ModelPhase, ResidencyPlan, Resident


class Outcomes:
    """Notes what a server has done.

    Args:
        plan: Its models.
        retry_failed_s: Pause after a failed load.
    """

    def __init__(self, plan: ResidencyPlan, retry_failed_s: float) -> None:
        self._plan = plan
        self._retry_failed_s = retry_failed_s

    def loaded(self, model: Resident, now: float) -> Actions:
        """Note that a model is loaded; its callers get references."""
        model.failure = ""
        model.enter(ModelPhase.LOADED, now)
        model.idle_since = now
        return self._grant(model)

    def _grant(self, model: Resident) -> Actions:
        callers, model.callers = model.callers, 0
        model.is_wanted = False
        self._plan.dequeue(model)
        self._plan.use(model, callers)
        return Actions(grants=[(model, callers)] if callers else [])

    def failed(self, model: Resident, reason: str, now: float) -> None:
        """Note that a load failed; its callers wait no longer."""
        model.failure = reason
        model.failed_until = now + self._retry_failed_s
        model.callers = 0
        model.is_wanted = False
        self._plan.dequeue(model)
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
            self._plan.queue = {model.name: None, **self._plan.queue}

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
        for name in found.keys() | self._plan.models.keys():
            seen = found.get(name, ModelPhase.ABSENT)
            if seen is ModelPhase.ABSENT and name not in self._plan.models:
                continue
            model = self._plan.resident(name)
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
                    self._plan.queue.setdefault(name)
        return actions
