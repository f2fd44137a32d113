"""The cut-over of a migration: which share of the calls goes to the new target, and why.

It is pure: `decide` and `command` are functions of the plan, the state, the evidence and the time.
`files.py` keeps states on the disk, and `leader.py` does what is decided.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from gateway.migration.compare.statistics import ChangeDetector, confidence_sequence
from gateway.migration.cutover.states import ADVANCING, TRANSITIONS, Event, Phase
from gateway.migration.cutover.target_models import has_changed, known_models
from gateway.migration.evidence.verdicts import GuardVerdict, Standing

CLIENT_ERRORS: Final = "errors.clients"
"""Name of the guard of the errors that clients got from the new target."""

# The leader decides once a second. A longer pause, such as that of a stopped process, is no baking.
_LONGEST_STEP_S: Final = 2.0
# Without calls for this time, a step bakes no longer.
_IDLE_S: Final = 10.0
_PERCENT: Final = 100.0


class CommandRefused(ValueError):
    """A command that does not fit the state of the cut-over."""


@dataclass(frozen=True, slots=True)
class CutoverPlan:
    """What a cut-over does, by the configuration.

    Attributes:
        migration: Its name.
        new: Name of the new target.
        steps: Percentages of the calls that go to `new`; they rise to 100.
        bake_s: Least time of a step with calls.
        min_calls: Least number of replies of `new` in a step; of comparisons while only mirroring.
        max_wait_s: Time after which a step that does not advance is paused.
        approve: The steps that need approval.
        pauses_on_trip: Whether a trip pauses the cut-over instead of rolling it back.
        guards: Names of the guards whose verdicts come from the comparisons.
        implied_guards: Those of them that stand although the configuration does not name them.
        errors_below: Largest share of the clients' calls that may fail at `new`; None for no limit.
        identity: What else must be the same for a state to belong to this plan, such as URLs.
    """

    migration: str
    new: str
    steps: tuple[float, ...] = (1.0, 5.0, 25.0, 50.0, 100.0)
    bake_s: float = 600.0
    min_calls: int = 500
    max_wait_s: float = 21_600.0
    approve: tuple[float, ...] = ()
    pauses_on_trip: bool = False
    guards: tuple[str, ...] = ()
    implied_guards: tuple[str, ...] = ()
    errors_below: float | None = None
    identity: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def percent(self, step: int) -> float:
        """Return the percentage of a step; 0 of step 0, which only mirrors."""
        return self.steps[step - 1] if step else 0.0

    @property
    def digest(self) -> str:
        """The hash of all that the configuration says of the plan, in hexadecimal digits."""
        own = {"identity", "implied_guards"}
        values = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name not in own
        }
        values["guards"] = [each for each in self.guards if each not in self.implied_guards]
        text = json.dumps({**values, "identity": dict(self.identity)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CutoverState:
    """Where a cut-over stands. The counts are of the step, except for `detector`.

    Attributes:
        step: 0 while only mirroring, or N for the Nth step of the plan.
        weight: Percentage of the calls that go to the new target.
        epoch: It grows with each change of the weight.
        attempt: It grows with each command that begins or resumes the cut-over.
        baked_s: Time with calls.
        waited_s: Time of the step.
        idle_s: Time since the last call.
        calls: Calls of clients to the new target.
        failures: Those that failed there with an error of a server.
        unanswered: Those that failed there with any error.
        compared: Calls whose replies were compared.
        detector: Sums of the detector of the clients' errors, of this attempt.
        decided_s: Time of the last decision, in seconds since the epoch; None after a restart.
        evidence_from_s: Comparisons before this time do not count.
        models: What the targets said of their models, as JSON; "" if that is unknown.
        approved: Whether the next step was approved.
        tripped: The guard that tripped in this attempt; "" for none.
        reason: Why it is paused or rolled back.
        comparisons: What the guards of the comparisons continue with after a restart.
        moved_to: The target that has all calls when it is done; "" before, or if unknown.
    """

    phase: Phase = Phase.READY
    step: int = 0
    weight: float = 0.0
    epoch: int = 0
    attempt: int = 0
    baked_s: float = 0.0
    waited_s: float = 0.0
    idle_s: float = 0.0
    calls: int = 0
    failures: int = 0
    unanswered: int = 0
    compared: int = 0
    detector: tuple[float, ...] = ()
    decided_s: float | None = None
    evidence_from_s: float = 0.0
    models: str = ""
    approved: bool = False
    tripped: str = ""
    reason: str = ""
    comparisons: Mapping[str, Any] = field(default_factory=dict)
    moved_to: str = ""


@dataclass(frozen=True, slots=True)
class CutoverEvidence:
    """What happened since the last decision, and the verdicts of the guards.

    Attributes:
        calls: Calls of clients to the new target since the last decision.
        failures: Those that failed there with an error of a server.
        unanswered: Those that failed there with any error, at least `failures`.
        compared: Comparisons since the last decision.
        guards: The verdicts, from comparisons since `CutoverState.evidence_from_s`.
        is_current: Whether the verdicts are of the last seconds.
        tripped: A guard of a serving process that tripped in this attempt, with its evidence; None
            for no such guard.
        models: What the targets say of their models, as JSON; "" if that is unknown.
        is_applied: Whether all serving processes use the weight of the state.
        comparisons: What the guards of the comparisons continue with; None if that is unknown.
        why: The most frequent reason of failed calls, for people; "" for none.
    """

    calls: int = 0
    failures: int = 0
    unanswered: int = 0
    compared: int = 0
    guards: tuple[GuardVerdict, ...] = ()
    is_current: bool = True
    tripped: GuardVerdict | None = None
    models: str = ""
    is_applied: bool = True
    comparisons: Mapping[str, Any] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class CutoverEvent:
    """Something that operators want to know, such as a step."""

    event: str
    text: str
    guard: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next state, and what it is about."""

    state: CutoverState
    events: tuple[CutoverEvent, ...] = ()


def decide(
    plan: CutoverPlan, state: CutoverState, evidence: CutoverEvidence, now: float
) -> Decision:
    """Return what to do, given what happened since the last decision.

    Args:
        plan: The plan of the state.
        state: The last state.
        evidence: What happened since.
        now: Seconds since the epoch.
    """
    state = _counted(plan, state, evidence, now)
    is_other = has_changed(state.models, evidence.models)
    state = replace(state, models=known_models(state.models, evidence.models))
    if not is_other or state.phase not in ADVANCING | {Phase.READY, Phase.PAUSED}:
        return _next(plan, state, evidence)
    begun = _begin_anew(state, now)
    decision = _next(plan, begun.state, replace(evidence, guards=(), is_current=False))
    return Decision(decision.state, begun.events + decision.events)


def _next(plan: CutoverPlan, state: CutoverState, evidence: CutoverEvidence) -> Decision:
    tripped = _tripped(plan, state, evidence)
    if tripped is not None:
        return _trip(plan, state, tripped, evidence.why)
    if state.phase is Phase.ROLLING_BACK and evidence.is_applied:
        rolled_back = _after(state, Event.APPLIED)
        return Decision(rolled_back, (CutoverEvent("cutover rolled back", state.reason),))
    if state.phase not in ADVANCING:
        return Decision(state)
    missing = missing_conditions(plan, state, evidence)
    if not missing:
        return _advance(plan, state)
    if state.phase is not Phase.WAITING_FOR_APPROVAL and state.waited_s >= plan.max_wait_s:
        reason = (
            f"no verdict within {format_duration(plan.max_wait_s)}: goes on "
            f"{' and '.join(missing)}; {state.weight:g}% of the calls stay with {plan.new}"
        )
        paused = _after(state, Event.TOO_LONG, reason=reason)
        return Decision(paused, (CutoverEvent("cutover waits", reason),))
    return Decision(state)


def _counted(
    plan: CutoverPlan, state: CutoverState, evidence: CutoverEvidence, now: float
) -> CutoverState:
    """Return the state with the time and the calls since the last decision."""
    passed_s = 0.0 if state.decided_s is None else now - state.decided_s
    passed_s = min(max(passed_s, 0.0), _LONGEST_STEP_S)
    new, earlier = evidence.compared, state.compared
    if state.step:
        new, earlier = evidence.calls, state.calls
    idle_s = 0.0 if new else state.idle_s + passed_s
    bakes = state.phase in ADVANCING and idle_s < _IDLE_S and new + earlier > 0
    detector: tuple[float, ...] = ()
    if plan.errors_below is not None:
        found = ChangeDetector(plan.errors_below, sums=state.detector)
        found.add_many(evidence.failures, evidence.calls)
        detector = found.sums
    return replace(
        state,
        baked_s=state.baked_s + (passed_s if bakes else 0.0),
        waited_s=state.waited_s + (passed_s if state.phase in ADVANCING else 0.0),
        idle_s=idle_s,
        calls=state.calls + evidence.calls,
        failures=state.failures + evidence.failures,
        unanswered=state.unanswered + max(evidence.unanswered, evidence.failures),
        compared=state.compared + evidence.compared,
        detector=detector,
        decided_s=now,
        comparisons=state.comparisons if evidence.comparisons is None else evidence.comparisons,
    )


def _begin_anew(state: CutoverState, now: float) -> Decision:
    """Return the state after a server got another model: evidence and bake time start again."""
    if state.phase is Phase.READY:
        return Decision(replace(state, evidence_from_s=now))
    begun = _begin(state, state.step, state.weight, evidence_from_s=now)
    if state.phase is Phase.PAUSED:
        begun = _after(begun, Event.PAUSE, reason=state.reason, tripped=state.tripped)
    text = "a model changed its version or signature: evidence and bake time begin anew"
    return Decision(begun, (CutoverEvent("cutover waits", text),))


def _tripped(
    plan: CutoverPlan, state: CutoverState, evidence: CutoverEvidence
) -> GuardVerdict | None:
    """Return the guard that takes all calls from the new target; None for none."""
    may_trip = state.phase in ADVANCING or state.phase in {Phase.DONE, Phase.PAUSED}
    if not may_trip or state.tripped:
        return None
    found = [each for each in evidence.guards if each.standing is Standing.TRIPS]
    if evidence.tripped is not None:
        found.append(evidence.tripped)
    clients = _client_errors(plan, state)
    if clients is not None and clients.standing is Standing.TRIPS:
        found.append(clients)
    return found[0] if found else None


def _trip(plan: CutoverPlan, state: CutoverState, guard: GuardVerdict, why: str) -> Decision:
    reason = f"{guard.guard} tripped: {guard.evidence}"
    if why and guard.guard.startswith("errors."):
        reason += f"; the most frequent error is {why}"
    if plan.pauses_on_trip:
        reason += "; all calls go to the old target until the cut-over is resumed"
    event = Event.TRIP_AND_PAUSE if plan.pauses_on_trip else Event.TRIP
    state = _after(_weighted(state, 0.0), event, tripped=guard.guard, reason=reason)
    return Decision(state, (CutoverEvent("cutover tripped", reason, guard.guard),))


def _advance(plan: CutoverPlan, state: CutoverState) -> Decision:
    if state.step == len(plan.steps):
        done = _after(state, Event.COMPLETE, reason="", moved_to=plan.new)
        text = f"all calls go to {plan.new}"
        return Decision(done, (CutoverEvent("cutover done", text),))
    percent = plan.percent(state.step + 1)
    if percent in plan.approve and not state.approved:
        if state.phase is Phase.WAITING_FOR_APPROVAL:
            return Decision(state)
        text = f"{percent:g}% to {plan.new} waits for approval"
        waiting = _after(state, Event.APPROVAL_NEEDED, reason="")
        return Decision(waiting, (CutoverEvent("cutover waits", text),))
    begun = _begin(state, state.step + 1, percent)
    text = f"step {begun.step} of {len(plan.steps)}: {percent:g}% to {plan.new}"
    return Decision(begun, (CutoverEvent("cutover step", text),))


def _begin(
    state: CutoverState, step: int, weight: float, evidence_from_s: float | None = None
) -> CutoverState:
    """Return the state at the begin of a step."""
    comparisons = state.comparisons if evidence_from_s is None else {}
    if evidence_from_s is None:
        evidence_from_s = state.evidence_from_s
    return _after(
        _weighted(state, weight),
        Event.STEP if step else Event.MIRROR,
        comparisons=comparisons,
        step=step,
        baked_s=0.0,
        waited_s=0.0,
        idle_s=0.0,
        calls=0,
        failures=0,
        unanswered=0,
        compared=0,
        evidence_from_s=evidence_from_s,
        approved=False,
        reason="",
    )


def _after(state: CutoverState, event: Event, **changes: Any) -> CutoverState:
    """Return the state after *event*, with *changes* of other fields."""
    return replace(state, phase=TRANSITIONS[state.phase, event], **changes)


def _weighted(state: CutoverState, weight: float) -> CutoverState:
    return replace(state, weight=weight, epoch=state.epoch + 1)


def _client_errors(plan: CutoverPlan, state: CutoverState) -> GuardVerdict | None:
    """Return the verdict on the calls of clients to the new target in this step.

    It trips by all calls of the attempt.
    """
    limit = plan.errors_below
    if limit is None:
        return None
    detector = ChangeDetector(limit, sums=state.detector)
    if detector.is_tripped:
        bad, total = detector.window
        text = f"{bad} of the last {total} calls, limit {limit:.3%}"
        return GuardVerdict(CLIENT_ERRORS, Standing.TRIPS, text)
    high = confidence_sequence(state.failures, state.calls)[1]
    text = f"{state.failures} of {state.calls}, at most {high:.3%}, limit {limit:.3%}"
    standing = Standing.HOLDS if high < limit else Standing.UNDECIDED
    return GuardVerdict(CLIENT_ERRORS, standing, text)


def verdicts(
    plan: CutoverPlan, state: CutoverState, evidence: CutoverEvidence
) -> tuple[GuardVerdict, ...]:
    """Return the verdict of each guard; those without evidence are undecided.

    While only mirroring, there is none of the errors of clients.
    """
    by_name = {each.guard: each for each in evidence.guards}
    found = [
        by_name.get(name, GuardVerdict(name, Standing.UNDECIDED, "no comparison"))
        for name in plan.guards
    ]
    own = _client_errors(plan, state) if state.step else None
    return tuple(found if own is None else [*found, own])


def answered(state: CutoverState) -> int:
    """Return how many calls of the step the new target answered."""
    # Earlier versions of the gateway knew the errors of a server only.
    return state.calls - max(state.unanswered, state.failures)


def missing_conditions(
    plan: CutoverPlan, state: CutoverState, evidence: CutoverEvidence
) -> list[str]:
    """Return what a step needs before the next one may begin, such as "after 500 calls"."""
    found = []
    if state.baked_s < plan.bake_s:
        found.append(f"after {format_duration(plan.bake_s)} of bake time")
    answers = answered(state) if state.step else state.compared
    # A dead server passes no step, whatever `min_calls` is.
    least = max(plan.min_calls, 1 if state.step and state.calls else 0)
    if answers < least:
        found.append(f"after {least} {'answered calls' if state.step else 'comparisons'}")
    found += [
        f"when {each.guard} holds"
        for each in verdicts(plan, state, evidence)
        if each.standing is not Standing.HOLDS
    ]
    if plan.guards and not evidence.is_current:
        found.append("when replies are compared again")
    return found


def restarted(state: CutoverState) -> CutoverState:
    """Return a state as it is after a restart: same step and weight, new bake time."""
    return replace(state, baked_s=0.0, idle_s=0.0, decided_s=None)


def still_done(plan: CutoverPlan, earlier: CutoverState | None) -> CutoverState | None:
    """Return the state of a cut-over that was done by another plan; None if it was not.

    Its calls stay at the new target, unless the plan is one for another target.
    """
    if earlier is None or earlier.phase is not Phase.DONE:
        return None
    if earlier.moved_to not in ("", plan.new):
        return None
    evidence: dict[str, Any] = {"detector": (), "models": "", "comparisons": {}}
    return replace(restarted(earlier), step=len(plan.steps), moved_to=plan.new, **evidence)


def distrusted(reason: str, epoch: int = 0, attempt: int = 0) -> CutoverState:
    """Return the state of a cut-over whose last state cannot be used."""
    return CutoverState(Phase.PAUSED, epoch=epoch + 1, attempt=attempt + 1, reason=reason)


def command(
    plan: CutoverPlan,
    state: CutoverState,
    verb: str,
    now: float,
    *,
    at_step: int | None = None,
    trips: bool = False,
) -> Decision:
    """Return what a command of an operator does.

    Args:
        plan: The plan of the state.
        state: The last state.
        verb: One of `COMMANDS`.
        now: Seconds since the epoch.
        at_step: With `resume`, the step to begin at; 0 is the mirror.
        trips: Whether a guard trips now.

    Raises:
        CommandRefused: The command does not fit the state, or there is no such step.
    """
    if verb not in COMMANDS:
        raise CommandRefused(f"unknown command {verb!r}; expected one of {', '.join(COMMANDS)}")
    if at_step is not None:
        if verb != "resume":
            raise CommandRefused(f"a step was given to {verb!r}; expected it with 'resume' only")
        if not 0 <= at_step <= len(plan.steps):
            raise CommandRefused(f"step is {at_step}; expected 0 to {len(plan.steps)}")
    allowed, run = COMMANDS[verb]
    if state.phase not in allowed:
        expected = ", ".join(sorted(phase.value for phase in allowed))
        raise CommandRefused(
            f"the cut-over of {plan.migration!r} is {state.phase.value}, and {verb!r} "
            f"expects one of: {expected}"
        )
    return run(plan, state, _Order(now, at_step, trips))


@dataclass(frozen=True, slots=True)
class _Order:
    now: float
    at_step: int | None
    trips: bool


def _start(plan: CutoverPlan, state: CutoverState, order: _Order) -> Decision:
    # A guard that has tripped stays so: the next attempt needs other evidence.
    since = order.now if order.trips else None
    begun = _attempt(_begin(state, 0, 0.0, since))
    return Decision(begun, (CutoverEvent("cutover step", f"mirrors to {plan.new}"),))


def _pause(plan: CutoverPlan, state: CutoverState, _order: _Order) -> Decision:
    reason = f"paused by an operator: {state.weight:g}% of the calls stay with {plan.new}"
    return Decision(
        _after(state, Event.PAUSE, reason=reason), (CutoverEvent("cutover waits", reason),)
    )


def _resume(plan: CutoverPlan, state: CutoverState, order: _Order) -> Decision:
    step = order.at_step
    if step is None:
        step = state.step if state.phase is Phase.PAUSED else 0
    since = order.now if state.tripped or order.trips else None
    begun = _attempt(_begin(state, step, plan.percent(step), since))
    text = f"resumed at step {step} of {len(plan.steps)}: {begun.weight:g}% to {plan.new}"
    return Decision(begun, (CutoverEvent("cutover step", text),))


def _approve(plan: CutoverPlan, state: CutoverState, _order: _Order) -> Decision:
    text = f"{plan.percent(state.step + 1):g}% to {plan.new} is approved"
    return Decision(replace(state, approved=True), (CutoverEvent("cutover step", text),))


def _roll_back(_plan: CutoverPlan, state: CutoverState, _order: _Order) -> Decision:
    reason = "rolled back by an operator"
    state = _after(_weighted(state, 0.0), Event.ROLL_BACK, reason=reason)
    return Decision(state)


def _reset(plan: CutoverPlan, state: CutoverState, order: _Order) -> Decision:
    if state.weight:
        raise CommandRefused(
            f"{state.weight:g}% of the calls go to {plan.new}; expected 'rollback' before 'reset'"
        )
    state = CutoverState(
        TRANSITIONS[state.phase, Event.RESET],
        epoch=state.epoch + 1,
        attempt=state.attempt + 1,
        evidence_from_s=order.now,
        models=state.models,
    )
    return Decision(state, (CutoverEvent("cutover reset", "reset by an operator"),))


def _attempt(state: CutoverState) -> CutoverState:
    return replace(state, attempt=state.attempt + 1, tripped="", detector=())


_Command = Callable[[CutoverPlan, CutoverState, _Order], Decision]

COMMANDS: Final[Mapping[str, tuple[frozenset[Phase], _Command]]] = MappingProxyType(
    {
        "start": (frozenset({Phase.READY}), _start),
        "pause": (ADVANCING, _pause),
        "resume": (frozenset({Phase.PAUSED, Phase.ROLLED_BACK}), _resume),
        "approve": (frozenset({Phase.WAITING_FOR_APPROVAL}), _approve),
        "rollback": (ADVANCING | {Phase.PAUSED, Phase.DONE}, _roll_back),
        "reset": (frozenset({Phase.READY, Phase.ROLLED_BACK, Phase.PAUSED}), _reset),
    }
)
"""The commands of operators, each with the phases it is for."""


def verdict_of(guards: tuple[GuardVerdict, ...], state: CutoverState) -> Standing:
    """Return one verdict for other controllers: it trips, holds, or is undecided.

    Without any guard nothing is judged, so it is undecided.
    """
    standings = {each.standing for each in guards}
    if state.tripped or Standing.TRIPS in standings:
        return Standing.TRIPS
    return Standing.HOLDS if standings == {Standing.HOLDS} else Standing.UNDECIDED


def next_text(plan: CutoverPlan, state: CutoverState, missing: list[str]) -> str:
    """Return what comes next and what it needs, for people."""
    if state.phase not in ADVANCING:
        return _NEXT[state.phase]
    is_last = state.step == len(plan.steps)
    following = "done" if is_last else f"{plan.percent(state.step + 1):g}%"
    if state.phase is Phase.WAITING_FOR_APPROVAL and not state.approved:
        return f"{following}, after approval"
    return f"{following}, {' and '.join(missing)}" if missing else following


_NEXT: Final = {
    Phase.READY: "mirroring, after start",
    Phase.PAUSED: "after resume",
    Phase.ROLLING_BACK: "rolled back, when all processes have weight 0",
    Phase.ROLLED_BACK: "mirroring, after resume",
    Phase.DONE: "",
}


def format_duration(seconds: float) -> str:
    """Return a duration such as "10m" or "1h30m", as the configuration has it."""
    rest = math.floor(seconds)
    if rest != seconds or not rest:
        return f"{seconds:g}s"
    parts = []
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
