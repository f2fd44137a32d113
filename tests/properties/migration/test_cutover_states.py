"""A walk of a cut-over by drawn events: each move is a row of its table, each row is reached."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from gateway.migration.cutover import steps
from gateway.migration.cutover.states import ADVANCING, TRANSITIONS, Event, Phase
from gateway.migration.cutover.steps import CutoverEvidence, CutoverPlan, CutoverState
from gateway.migration.evidence.verdicts import GuardVerdict, Standing
from tests.properties.walks import Rows


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    found = Rows(TRANSITIONS)
    monkeypatch.setattr(steps, "TRANSITIONS", found)
    return found


def _evidence(drawn: random.Random) -> CutoverEvidence:
    standing = drawn.choices(list(Standing), [8, 3, 0.5])[0]
    return CutoverEvidence(
        calls=drawn.choice((0, 1, 50)),
        compared=drawn.choice((0, 50)),
        guards=(GuardVerdict("mismatch.below", standing, "drawn"),),
        models=drawn.choices(("", '{"old": {"m": "1"}}', '{"old": {"m": "2"}}'), [9, 1, 1])[0],
        is_applied=drawn.random() < 0.5,
    )


def test_a_cutover_moves_by_the_rows_of_its_table(rows: Rows) -> None:
    """Each decision and each accepted command is a row or keeps the phase; all rows occur."""
    drawn = random.Random(7)  # noqa: S311  # not a secret
    for seed in range(400):
        plan = CutoverPlan(
            "fraud",
            "triton",
            (1.0, 50.0, 100.0),
            bake_s=2,
            min_calls=10,
            max_wait_s=drawn.choice((4, 1000)),
            approve=drawn.choice(((), (1.0, 50.0))),
            pauses_on_trip=seed % 2 == 0,
            guards=("mismatch.below",),
        )
        state, now = CutoverState(), 1000.0
        for _ in range(80):
            now += 1
            before, rows.last = state, None
            if drawn.random() < 0.3:
                verb = drawn.choice(list(steps.COMMANDS))
                at_step = drawn.choice((None, 0, 2)) if verb == "resume" else None
                with suppress(steps.CommandRefused):
                    state = steps.command(plan, state, verb, now, at_step=at_step).state
            else:
                state = steps.decide(plan, state, _evidence(drawn), now).state
            assert 0 == state.weight or state.phase not in {Phase.READY, Phase.ROLLED_BACK}
            assert state.phase in {before.phase, rows.last}
            assert state.epoch > before.epoch or state.weight == before.weight
    assert set(TRANSITIONS) == rows.used


def test_phases_that_advance_can_be_left_by_an_operator() -> None:
    """Each phase in which calls move can be paused and rolled back."""
    for phase in ADVANCING:
        assert (phase, Event.PAUSE) in TRANSITIONS
        assert (phase, Event.ROLL_BACK) in TRANSITIONS
