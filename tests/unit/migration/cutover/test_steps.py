"""The cut-over: decisions by evidence and by commands."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.migration.compare.replies import Result
from gateway.migration.compare.tensors import Outcome
from gateway.migration.cutover.states import Phase
from gateway.migration.cutover.steps import (
    COMMANDS,
    CommandRefused,
    CutoverEvidence,
    CutoverPlan,
    CutoverState,
    command,
    decide,
    distrusted,
    missing_conditions,
    next_text,
    restarted,
    verdict_of,
    verdicts,
)
from gateway.migration.evidence.guards import Guards
from gateway.migration.evidence.verdicts import Evidence, GuardVerdict, Standing
from gateway.migration.settings import GuardsConfig, LatencyGuardConfig

OK = Result(((),))
PLAN = CutoverPlan(
    "fraud", "triton", (1.0, 50.0, 100.0), bake_s=10, min_calls=100, guards=("mismatch.below",)
)
HOLDS = GuardVerdict("mismatch.below", Standing.HOLDS, "0 of 9000")
TRIPS = GuardVerdict("mismatch.below", Standing.TRIPS, "90 of 9000")
LOCAL = GuardVerdict("errors.below", Standing.TRIPS, "4 of 4")
GOOD = CutoverEvidence(calls=50, compared=50, guards=(HOLDS,))


class Run:
    """A cut-over in which a second passes between two decisions."""

    def __init__(self, plan: CutoverPlan = PLAN, state: CutoverState | None = None) -> None:
        self.plan = plan
        self.state = CutoverState() if state is None else state
        self.now = 1000.0
        self.events: list[str] = []

    def seconds(self, count: int, evidence: CutoverEvidence = GOOD) -> Run:
        for _ in range(count):
            self.now += 1
            decision = decide(self.plan, self.state, evidence, self.now)
            self.state = decision.state
            self.events += [each.event for each in decision.events]
        return self

    def do(self, verb: str, **options: Any) -> Run:
        decision = command(self.plan, self.state, verb, self.now, **options)
        self.state = decision.state
        self.events += [each.event for each in decision.events]
        return self

    @property
    def at(self) -> tuple[str, int, float]:
        return self.state.phase.value, self.state.step, self.state.weight


def test_a_good_server_receives_all_calls_step_by_step() -> None:
    """Each step takes its bake time and has its weight; the last one has all calls."""
    run = Run().do("start")
    found = [run.at]
    for _ in range(60):
        run.seconds(1)
        if run.at != found[-1]:
            found.append(run.at)
    assert [
        ("mirroring", 0, 0.0),
        ("baking", 1, 1.0),
        ("baking", 2, 50.0),
        ("baking", 3, 100.0),
        ("done", 3, 100.0),
    ] == found
    assert ["cutover step"] * 4 + ["cutover done"] == run.events


@pytest.mark.parametrize("good_s", [30, 600])
def test_no_step_begins_while_the_latest_calls_are_slow(good_s: int) -> None:
    """A call of 400 ms breaks a p99 of 250 ms: the share stays, and then all calls go back."""
    limits = GuardsConfig(mismatch="off", errors="off", latency=LatencyGuardConfig(p99=0.25))
    guards = Guards(limits)
    plan = replace(PLAN, steps=(50.0, 100.0), bake_s=good_s + 5, guards=("latency.p99",))
    run = Run(plan, CutoverState(Phase.BAKING, step=1, weight=50.0, attempt=1))
    for second in range(good_s + 30):
        for number in range(20):
            slow_s = 0.4 if second >= good_s else 0.1
            times = (0.1, slow_s)
            guards.add(Evidence(OK, OK, Outcome.MATCH, times, second + number / 20))
        before = run.at
        run.seconds(1, CutoverEvidence(calls=20, compared=20, guards=tuple(guards.verdicts())))
        if run.at != before:
            break
    assert ("rolling_back", 1, 0.0) == run.at
    assert good_s + 9 <= second <= good_s + 12


def test_a_cutover_waits_for_the_start_command() -> None:
    """Without a command the state stays, whatever the evidence."""
    assert ("ready", 0, 0.0) == Run().seconds(100).at


@pytest.mark.parametrize(
    ("evidence", "waits_for"),
    [
        (replace(GOOD, calls=1, compared=1), "after 100 answered calls"),
        (replace(GOOD, unanswered=50), "after 100 answered calls"),
        (replace(GOOD, guards=()), "when mismatch.below holds"),
        (
            replace(GOOD, guards=(replace(HOLDS, standing=Standing.UNDECIDED),)),
            "when mismatch.below holds",
        ),
        (replace(GOOD, is_current=False), "when replies are compared again"),
    ],
)
def test_a_step_waits_for_each_condition(evidence: CutoverEvidence, waits_for: str) -> None:
    """Too few calls, an undecided guard, or outdated comparisons keep the step."""
    run = Run().do("start").seconds(12)
    assert ("baking", 1, 1.0) == run.at
    run.seconds(30, evidence)
    assert ("baking", 1, 1.0) == run.at
    assert [waits_for] == missing_conditions(PLAN, run.state, evidence)
    assert f"50%, {waits_for}" == next_text(PLAN, run.state, [waits_for])


def test_no_step_ends_without_replies_of_the_new_server() -> None:
    """Refused calls are no answers, also without a least number of calls and without guards."""
    plan = replace(PLAN, min_calls=0, guards=())
    run = Run(plan).do("start").seconds(11)
    assert ("baking", 1, 1.0) == run.at
    dead = replace(GOOD, failures=0, unanswered=50)
    run.seconds(100, dead)
    assert ("baking", 1, 1.0) == run.at
    assert ["after 1 answered calls"] == missing_conditions(plan, run.state, dead)
    assert ("baking", 2, 50.0) == run.seconds(1).at


def test_a_tripped_guard_of_errors_names_the_most_frequent_error() -> None:
    """A guard of replies does not: no error is its cause."""
    for guard, expected in ((LOCAL, "; the most frequent error is internal: no GPU"), (TRIPS, "")):
        tripped = replace(GOOD, tripped=guard, why="internal: no GPU")
        reason = Run().do("start").seconds(1, tripped).state.reason
        assert f"{guard.guard} tripped: {guard.evidence}{expected}" == reason


def test_the_reason_of_a_pause_names_the_target_of_the_calls() -> None:
    """An operator and a step without a verdict leave the share, and a guard takes it away."""
    run = Run().do("start").seconds(11).do("pause")
    assert "paused by an operator: 1% of the calls stay with triton" == run.state.reason
    assert 1.0 == run.state.weight
    late = Run(replace(PLAN, max_wait_s=20)).do("start").seconds(11)
    late.seconds(30, replace(GOOD, guards=()))
    assert late.state.reason.endswith("; 1% of the calls stay with triton")
    tripped = Run(replace(PLAN, pauses_on_trip=True)).do("start").seconds(11)
    tripped.seconds(1, replace(GOOD, guards=(TRIPS,)))
    assert (Phase.PAUSED, 0.0) == (tripped.state.phase, tripped.state.weight)
    assert tripped.state.reason.endswith(
        "; all calls go to the old target until the cut-over is resumed"
    )


def test_a_default_guard_changes_no_plan_under_way() -> None:
    """The hash is that of an earlier version, which had no such guard."""
    implied = ("errors.above_old",)
    guarded = replace(PLAN, guards=(*PLAN.guards, *implied), implied_guards=implied)
    assert PLAN.digest == guarded.digest
    assert PLAN.digest != replace(guarded, implied_guards=()).digest
    assert ["mismatch.below", *implied] == [
        each.guard for each in verdicts(guarded, CutoverState(), GOOD)
    ]


def test_time_without_calls_does_not_bake() -> None:
    """A step without calls stays; gaps of up to ten seconds still count."""
    plan = replace(PLAN, min_calls=0, bake_s=100)
    run = Run(plan).do("start").seconds(100, replace(GOOD, compared=0))
    assert (("mirroring", 0, 0.0), 0.0) == (run.at, run.state.baked_s)
    run.seconds(1).seconds(100, replace(GOOD, compared=0))
    assert 10 == run.state.baked_s


def test_a_pause_of_the_leader_does_not_bake() -> None:
    """A gap of an hour counts as two seconds, and a clock that jumps back as none."""
    run = Run().do("start").seconds(2)
    baked_s = run.state.baked_s
    run.now += 3600
    assert baked_s + 2 == run.seconds(1).state.baked_s
    run.now -= 7200
    assert baked_s + 2 == run.seconds(1).state.baked_s


def test_an_undecided_step_pauses_after_max_wait() -> None:
    """The weight stays; `resume` continues the same step with new bake time."""
    undecided = replace(GOOD, guards=())
    run = Run(replace(PLAN, max_wait_s=60)).do("start").seconds(12).seconds(60, undecided)
    assert ("paused", 1, 1.0) == run.at
    reason = "no verdict within 1m: goes on when mismatch.below holds; 1% of the calls stay"
    assert f"{reason} with triton" == run.state.reason
    assert ("paused", 1, 1.0) == run.seconds(100).at
    run.do("resume")
    assert (("baking", 1, 1.0), 0.0) == (run.at, run.state.baked_s)


def test_a_step_waits_for_its_approval() -> None:
    """`max_wait_s` does not apply to this wait, and guards still count after `approve`."""
    run = Run(replace(PLAN, approve=(50.0,), max_wait_s=60)).do("start").seconds(300)
    assert ("waiting_for_approval", 1, 1.0) == run.at
    assert "50%, after approval" == next_text(run.plan, run.state, [])
    run.do("approve").seconds(5, replace(GOOD, guards=()))
    assert ("waiting_for_approval", 1, 1.0) == run.at
    assert ("baking", 2, 50.0) == run.seconds(1).at


def reach(phase: Phase, plan: CutoverPlan = PLAN) -> Run:
    """Return a run in a phase in which a guard may trip."""
    run = Run(replace(plan, approve=(50.0,))).do("start")
    if phase is Phase.MIRRORING:
        return run
    run.seconds(12)
    if phase is Phase.PAUSED:
        return run.do("pause")
    if phase is Phase.WAITING_FOR_APPROVAL:
        return run.seconds(30)
    if phase is Phase.DONE:
        run.seconds(30).do("approve").seconds(60)
    assert phase is run.state.phase
    return run


MAY_TRIP = [
    Phase.MIRRORING,
    Phase.BAKING,
    Phase.WAITING_FOR_APPROVAL,
    Phase.PAUSED,
    Phase.DONE,
]


@pytest.mark.parametrize("phase", MAY_TRIP, ids=lambda phase: phase.value)
@pytest.mark.parametrize(
    "evidence",
    [replace(GOOD, guards=(TRIPS,)), replace(GOOD, tripped=LOCAL)],
    ids=["comparisons", "serving process"],
)
def test_a_tripped_guard_sets_the_weight_to_0(phase: Phase, evidence: CutoverEvidence) -> None:
    """This applies in each phase, and no better evidence raises the weight again."""
    run = reach(phase).seconds(1, replace(evidence, is_applied=False))
    assert ("rolling_back", 0.0) == (run.state.phase.value, run.state.weight)
    assert "cutover tripped" == run.events[-1]
    run.seconds(1)
    assert ("rolled_back", 0.0) == (run.state.phase.value, run.state.weight)
    assert 0.0 == run.seconds(1000).state.weight
    assert Standing.TRIPS is verdict_of(verdicts(PLAN, run.state, GOOD), run.state)


def test_failed_client_calls_trip_without_comparisons() -> None:
    """The leader sums the failures of all processes, each with too few to trip."""
    plan = replace(PLAN, errors_below=0.01)
    run = Run(plan).do("start").seconds(12)
    run.seconds(1000, CutoverEvidence(calls=100))
    assert ("baking", 1, 1.0) == run.at
    run.seconds(1, CutoverEvidence(calls=4, failures=4, is_applied=False))
    assert "errors.clients" == run.state.tripped
    assert ("rolling_back", 0.0) == (run.state.phase.value, run.state.weight)


def test_client_failures_are_counted_per_step() -> None:
    """A step with few calls is undecided, whatever the number before it."""
    plan = replace(PLAN, errors_below=0.01, guards=(), min_calls=1)
    run = Run(plan).do("start").seconds(12).seconds(20, CutoverEvidence(calls=10))
    assert ["when errors.clients holds"] == missing_conditions(plan, run.state, GOOD)
    run.seconds(60, CutoverEvidence(calls=10))
    assert 2 == run.state.step
    assert run.state.calls < 680


def test_on_trip_pause_keeps_the_step() -> None:
    """The weight is 0; `resume` starts the same step again."""
    run = reach(Phase.BAKING, replace(PLAN, pauses_on_trip=True))
    run.seconds(1, replace(GOOD, guards=(TRIPS,)))
    assert ("paused", 1, 0.0) == run.at
    assert ("baking", 1, 1.0) == run.do("resume").at
    assert run.now == run.state.evidence_from_s


@pytest.mark.parametrize(("at_step", "expected"), [(None, ("mirroring", 0, 0.0)),
                                                   (0, ("mirroring", 0, 0.0)),
                                                   (2, ("baking", 2, 50.0))])  # fmt: skip
def test_resume_starts_at_the_mirror_or_the_requested_step(
    at_step: int | None, expected: tuple[str, int, float]
) -> None:
    """Only `resume` starts another attempt after a trip."""
    run = reach(Phase.BAKING).seconds(2, replace(GOOD, guards=(TRIPS,)))
    attempt = run.state.attempt
    run.do("resume", at_step=at_step)
    assert (expected, attempt + 1, "") == (run.at, run.state.attempt, run.state.tripped)
    assert run.now == run.state.evidence_from_s


def models(**versions: str) -> str:
    """Return the versions of models at both targets, of which these are the new target's."""
    return json.dumps({model: {"old": "1", "new": found} for model, found in versions.items()})


def test_a_model_change_resets_evidence_and_bake_time() -> None:
    """The step and its weight stay."""
    run = Run().do("start").seconds(12, replace(GOOD, models=models(m="1")))
    assert ("baking", 1, 1.0) == run.at
    run.seconds(6, replace(GOOD, models=models(m="1"))).seconds(
        1, replace(GOOD, models=models(m="2"))
    )
    assert (("baking", 1, 1.0), 0.0, 0) == (run.at, run.state.baked_s, run.state.calls)
    assert run.now == run.state.evidence_from_s


@pytest.mark.parametrize(
    "now",
    [
        "",
        models(m="1"),
        models(m="1", n="1"),
        models(n="2"),
        '{"m": {"old": "1"}}',
        '{"m": {"new": "1"}}',
    ],
)
def test_unknown_models_do_not_reset_the_evidence(now: str) -> None:
    """Guards count at once, and known versions are kept."""
    run = Run().do("start").seconds(12, replace(GOOD, models=models(m="1")))
    run.seconds(2, replace(GOOD, models=now))
    assert run.state.baked_s > 0
    assert 0 == run.state.evidence_from_s
    assert {"old": "1", "new": "1"} == json.loads(run.state.models)["m"]
    trips = replace(HOLDS, standing=Standing.TRIPS)
    run.seconds(1, replace(GOOD, models=models(m="1", o="1"), guards=(trips,)))
    assert 0.0 == run.state.weight


def test_models_in_an_earlier_format_do_not_reset_the_evidence() -> None:
    """Earlier gateways saved differences of the metadata as a list."""
    run = Run().do("start")
    run.state = replace(run.state, models="[\"input 'x' is missing\"]")
    run.seconds(2, replace(GOOD, models=models(m="1")))
    assert 0 == run.state.evidence_from_s
    assert json.loads(models(m="1")) == json.loads(run.state.models)


def test_the_number_of_saved_models_is_limited() -> None:
    """A route for any model receives many names."""
    run = Run().do("start")
    for number in range(200):
        run.seconds(1, replace(GOOD, models=models(**{f"m{number}": "1"})))
    stored_models = json.loads(run.state.models)
    assert 64 == len(stored_models)
    assert "m199" in stored_models


def test_a_restart_keeps_step_weight_and_counts() -> None:
    """Only the bake time starts again."""
    run = Run().do("start").seconds(15)
    again = restarted(run.state)
    assert (run.state.step, run.state.weight, run.state.epoch, run.state.calls) == (
        again.step,
        again.weight,
        again.epoch,
        again.calls,
    )
    assert (0.0, None) == (again.baked_s, again.decided_s)


def test_an_untrusted_state_has_weight_0() -> None:
    """It waits for `resume`, which starts at the mirror."""
    run = Run(state=distrusted("the file is damaged", epoch=7, attempt=2))
    assert (("paused", 0, 0.0), 8) == (run.seconds(1000).at, run.state.epoch)
    assert ("mirroring", 0, 0.0) == run.do("resume").at


@pytest.mark.parametrize(
    ("phase", "refused"),
    [
        (Phase.READY, ["pause", "resume", "approve", "rollback"]),
        (Phase.MIRRORING, ["start", "resume", "approve", "reset"]),
        (Phase.BAKING, ["start", "resume", "approve", "reset"]),
        (Phase.WAITING_FOR_APPROVAL, ["start", "resume", "reset"]),
        (Phase.PAUSED, ["start", "pause", "approve"]),
        (Phase.ROLLING_BACK, list(COMMANDS)),
        (Phase.ROLLED_BACK, ["start", "pause", "approve", "rollback"]),
        (Phase.DONE, ["start", "pause", "resume", "approve", "reset"]),
    ],
    ids=lambda value: value.value if isinstance(value, Phase) else "",
)
def test_commands_are_accepted_by_phase(phase: Phase, refused: list[str]) -> None:
    """The error of other commands lists the expected phases."""
    for verb in COMMANDS:
        run = Run(state=CutoverState(phase))
        if verb in refused:
            with pytest.raises(CommandRefused, match=f"is {phase.value}, and '{verb}' expects"):
                run.do(verb)
        else:
            run.do(verb)


def test_invalid_commands_are_rejected() -> None:
    """Unknown commands and steps, and a reset of a target with calls, are invalid."""
    with pytest.raises(CommandRefused, match="unknown command 'go'; expected one of start"):
        Run().do("go")
    with pytest.raises(CommandRefused, match="expected it with 'resume' only"):
        Run().do("start", at_step=1)
    with pytest.raises(CommandRefused, match="step is 4; expected 0 to 3"):
        reach(Phase.PAUSED).do("resume", at_step=4)
    with pytest.raises(CommandRefused, match="1% of the calls go to triton"):
        reach(Phase.PAUSED).do("reset")


standing = st.sampled_from(Standing)
evidences = st.builds(
    CutoverEvidence,
    calls=st.integers(0, 1000),
    failures=st.integers(0, 3),
    compared=st.integers(0, 1000),
    guards=st.lists(st.builds(GuardVerdict, st.just("mismatch.below"), standing, st.just("")),
                    max_size=1).map(tuple),
    is_current=st.booleans(),
    tripped=st.sampled_from([None] * 9 + [LOCAL]),
    models=st.sampled_from(["", *[models(m="1")] * 3, models(m="2")]),
    is_applied=st.booleans(),
)  # fmt: skip
moves = st.lists(
    st.one_of(
        st.tuples(evidences, st.floats(-10, 100)),
        st.tuples(st.sampled_from(sorted(COMMANDS)), st.none() | st.integers(0, 3)),
        st.just(("restart", None)),
    ),
    max_size=60,
)


@given(moves, st.booleans(), st.sampled_from([(), (50.0,), (100.0,)]))
def test_the_weight_never_exceeds_that_of_the_step(
    moves: list[tuple[Any, Any]], pauses: bool, approve: tuple[float, ...]
) -> None:
    """The weight is 0 after a trip, and epochs only grow."""
    plan = replace(
        PLAN, bake_s=1, min_calls=1, errors_below=0.2, pauses_on_trip=pauses, approve=approve
    )
    state, now = CutoverState(), 1000.0
    for action, detail in moves:
        before = state
        if action == "restart":
            state = restarted(state)
        elif isinstance(action, CutoverEvidence):
            now += detail
            state = decide(plan, state, action, now).state
        else:
            try:
                state = command(plan, state, action, now, at_step=detail).state
            except CommandRefused:
                continue
        assert state.weight <= plan.percent(state.step)
        assert state.weight in {0.0, plan.percent(state.step)}
        assert state.epoch >= before.epoch
        assert state.epoch > before.epoch or state.weight == before.weight
        if state.tripped or state.phase in {Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.READY}:
            assert state.weight == 0
        if before.tripped and state.attempt == before.attempt:
            assert state.weight == 0


@pytest.mark.parametrize(("rate", "most"), [(0.1, 250), (0.5, 30), (1.0, 4)])
def test_failures_trip_soon_after_many_good_calls(rate: float, most: int) -> None:
    """After 100 000 good calls a failing server is detected as soon as without them."""
    plan = replace(PLAN, errors_below=0.01, guards=(), max_wait_s=1e9)
    draw = np.random.default_rng(1).random
    found = []
    for _ in range(5):
        run = Run(plan).do("start").seconds(12)
        run.seconds(100, replace(GOOD, calls=1000))
        calls = 0
        while not run.state.tripped:
            calls += 1
            run.seconds(1, CutoverEvidence(calls=1, failures=int(draw() < rate)))
        found.append(calls)
    assert max(found) <= most, found


def test_a_rate_below_the_limit_never_trips() -> None:
    """A rate of 0.5 % with a limit of 1 % trips in none of 20 runs, whatever the group size."""
    plan = replace(PLAN, errors_below=0.01, guards=())
    draw = np.random.default_rng(2).random
    for number in range(20):
        run = Run(plan).do("start").seconds(12).do("pause")
        group = 1 + 50 * number
        for _ in range(min(4_000, 20_000 // group)):
            failures = sum(draw() < 0.005 for _ in range(group))
            run.seconds(1, CutoverEvidence(calls=group, failures=failures))
        assert not run.state.tripped, (number, run.state)


def test_wrong_labels_trip_only_the_mismatch_guard() -> None:
    """1 % of wrong labels, with good status and latency, trips no other guard."""
    config = GuardsConfig.model_validate(
        {
            "mismatch": {"below": "0.1%"},
            "errors": {"below": "1%", "above_old": "0.5%"},
            "latency": {"p99": "200ms", "p99_ratio": 1.3},
        }
    )
    guards = Guards(config)
    plan = replace(PLAN, guards=tuple(each.guard for each in guards.verdicts()), errors_below=0.01)
    run = Run(plan).do("start")
    random = np.random.default_rng(3)
    calls, found = 0, tuple[GuardVerdict, ...]()
    while not run.state.tripped and calls < 20_000:
        for _ in range(50):
            wrong = random.random() < 0.01
            times = tuple(0.05 + 0.01 * random.random(2))
            outcome = Outcome.MISMATCH if wrong else Outcome.MATCH
            guards.add(Evidence(OK, OK, outcome, times, run.now))
            calls += 1
        found = tuple(guards.verdicts())
        run.seconds(1, CutoverEvidence(calls=5, compared=50, guards=found, is_applied=False))
    assert ("mismatch.below", 0.0) == (run.state.tripped, run.state.weight)
    assert calls <= 5_000, calls
    assert ["mismatch.below"] == [
        each.guard
        for each in verdicts(plan, run.state, CutoverEvidence(guards=found))
        if each.standing is Standing.TRIPS
    ]
