"""Which calls a sink gets: by share, model and rate."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.events.choice import ServingSink
from gateway.ir.calls import InferRequest
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.shadow.draw import sequence_key
from tests.fakes import FakeClock
from tests.unit.events.kit import definition


def sink(clock: FakeClock | None = None, workers: int = 1, **keys: Any) -> ServingSink:
    return ServingSink(definition(**keys), workers, FakeClock() if clock is None else clock)


def sequence(number: int) -> str:
    call = InferRequest(
        model=ModelRef("fraud"), context=Context(), inputs=(), sequence=CallSequence(number)
    )
    return sequence_key(call)


def test_a_share_is_the_same_everywhere_and_part_of_a_larger_one() -> None:
    """Workers agree about a call; each call of 10 % is among those of 50 %, and 100 % has all."""
    tenth, half, whole = sink(percent=10), sink(percent=50), sink(percent=100)
    keys = [f"r{number}" for number in range(2000)]
    few = {key for key in keys if tenth.chooses(key)}
    many = {key for key in keys if half.chooses(key)}
    assert few < many
    assert few == {key for key in keys if sink(percent=10).chooses(key)}
    assert 150 < len(few) < 250
    assert all(whole.chooses(key) for key in keys)


def test_a_sequence_is_sent_whole_or_not_at_all() -> None:
    """All calls of a sequence have one key, so that one draw decides about them."""
    half = sink(percent=50)
    chosen = {number: half.chooses(sequence(number)) for number in range(1, 100)}
    assert {True, False} == set(chosen.values())
    assert chosen == {number: half.chooses(sequence(number)) for number in range(1, 100)}


@pytest.mark.parametrize(
    ("patterns", "model", "expected"),
    [
        (["*"], "", True),
        (["fraud*"], "fraud-eu", True),
        (["fraud*", "score"], "score", True),
        (["fraud"], "fraud-eu", False),
        (["Fraud"], "fraud", False),
    ],
)
def test_patterns_choose_models(patterns: list[str], model: str, expected: bool) -> None:
    """Any of the patterns suffices, and case matters."""
    assert expected is sink(models=patterns).matches(model)


def test_calls_above_the_rate_are_dropped() -> None:
    """A second has `per_second` calls; the events of the others are dropped as `rate`."""
    clock = FakeClock()
    made = sink(clock, per_second=3)
    assert [True, True, True, False, False] == [made.admit(2) for _ in range(5)]
    assert (10, {"rate": 4}) == (made.books.sampled, made.books.dropped)
    clock.advance(1.0)
    assert [True, True, True, False] == [made.admit(2) for _ in range(4)]


def test_workers_share_the_room_of_a_sink() -> None:
    """All workers together keep at most `outbox_bytes`."""
    assert 250 == sink(workers=4, outbox_bytes=1000).limit_bytes


def test_a_failed_call_has_no_response() -> None:
    """`send` says which events there are, and a failed call has at most its request."""
    both, responses = sink(), sink(send=["response"])
    assert (3, 1) == (both.events(is_success=True), both.events(is_success=False))
    assert (2, 0) == (responses.events(is_success=True), responses.events(is_success=False))
