"""Sequences stay where they began."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.ir.calls import InferRequest, ServerLiveRequest, StreamInferRequest, sequence_of
from gateway.ir.context import ModelRef, Sequence
from gateway.ir.errors import Unavailable
from gateway.routing.sequence_affinity import SequenceAffinity, rendezvous
from tests.fakes import FakeClock

M = ModelRef("m")
PLACES = {"a": 1.0, "b": 1.0, "c": 1.0}


def test_shares_follow_weights() -> None:
    """Of many keys each place gets its weight's share, within sampling error."""
    found = Counter(rendezvous(str(key), {"a": 3.0, "b": 1.0}) for key in range(4000))
    assert abs(found["a"] - 3000) < 120


def test_only_the_keys_of_a_lost_place_move() -> None:
    """When a place goes away the others keep their keys."""
    keys = [str(key) for key in range(300)]
    remaining = {"a": 1.0, "b": 1.0}
    stable_keys = [key for key in keys if rendezvous(key, PLACES) != "c"]
    assert [rendezvous(key, PLACES) for key in stable_keys] == [
        rendezvous(key, remaining) for key in stable_keys
    ]


def test_sequence_stays_while_places_come() -> None:
    """A new place does not take a running sequence away."""
    affinity = SequenceAffinity("endpoint")
    moved = [n for n in range(1, 50) if rendezvous(f"m|{n}", PLACES) != "a"]
    assert moved
    for number in moved:
        affinity.assign(M, Sequence(number, start=True), {"a": 1.0})
        assert "a" == affinity.assign(M, Sequence(number), PLACES)


def test_lost_place_ends_the_sequence_with_an_error() -> None:
    """A sequence does not go on elsewhere, nor when its place is back; started again it may."""
    affinity = SequenceAffinity("endpoint")
    place = affinity.assign(M, Sequence("s", start=True), PLACES)
    remaining = {name: 1.0 for name in PLACES if name != place}
    for there in (remaining, remaining, PLACES):
        with pytest.raises(Unavailable) as caught:
            affinity.assign(M, Sequence("s"), there)
        assert caught.value.message == (
            f"sequence 's' is lost: its endpoint '{place}' is not available; restart the sequence"
        )
    assert affinity.assign(M, Sequence("s", start=True), remaining) in remaining


def test_end_forgets_the_sequence() -> None:
    """After its last request the same id is a new sequence."""
    affinity = SequenceAffinity("endpoint")
    affinity.assign(M, Sequence(1, start=True), {"a": 1.0})
    affinity.assign(M, Sequence(1, end=True), {"a": 1.0})
    assert "b" == affinity.assign(M, Sequence(1), {"b": 1.0})


def test_oldest_idle_sequence_is_forgotten() -> None:
    """The memory is bounded; what was used last is kept longest."""
    affinity = SequenceAffinity("endpoint", capacity=2)
    only_a = {"a": 1.0}
    for number in (1, 2, 1, 3):
        affinity.assign(None, Sequence(number), only_a)
    assert {("", 1), ("", 3)} == set(affinity._assignments)


def test_sequence_of_calls() -> None:
    """Inferences and streams may be in a sequence, nothing else is."""
    sequence = Sequence(5)
    request = InferRequest(sequence=sequence)
    assert (sequence, sequence, None) == (
        sequence_of(request),
        sequence_of(StreamInferRequest(request=request)),
        sequence_of(ServerLiveRequest()),
    )


def test_idle_sequence_is_forgotten() -> None:
    """Without a request for its time a sequence is over, and its id free; a request renews it."""
    clock = FakeClock()
    affinity = SequenceAffinity("endpoint", idle_s=10.0, clock=clock)
    for number in (1, 2):
        affinity.assign(M, Sequence(number, start=True), {"a": 1.0})
    clock.advance(9.0)
    assert "a" == affinity.assign(M, Sequence(2), PLACES)
    clock.advance(1.0)
    assert "b" == affinity.assign(M, Sequence(1), {"b": 1.0})
    with pytest.raises(Unavailable):
        affinity.assign(M, Sequence(2), {"b": 1.0})


def test_sequence_of_a_place_that_broke_off_must_be_started_again() -> None:
    """It is lost though the place is back; started again it goes elsewhere, if it can."""
    affinity = SequenceAffinity("endpoint")
    place = affinity.assign(M, Sequence(1, start=True), PLACES)
    affinity.mark_lost(M, Sequence(1), place)
    for _ in range(2):
        with pytest.raises(
            Unavailable, match=f"sequence 1 is lost: its endpoint '{place}' .* restart"
        ):
            affinity.assign(M, Sequence(1), PLACES)
    other = affinity.assign(M, Sequence(1, start=True), PLACES)
    assert place != other
    assert other == affinity.assign(M, Sequence(1), PLACES)


def test_the_only_place_may_be_started_again() -> None:
    """A place that broke off is better than none."""
    affinity = SequenceAffinity("endpoint")
    affinity.assign(M, Sequence(1, start=True), {"a": 1.0})
    affinity.mark_lost(M, Sequence(1), "a")
    assert "a" == affinity.assign(M, Sequence(1, start=True), {"a": 1.0})


def test_what_is_over_cannot_be_lost() -> None:
    """A sequence that has ended, or moved, is not touched by a late failure."""
    affinity = SequenceAffinity("endpoint")
    affinity.assign(M, Sequence(1, start=True), {"a": 1.0})
    affinity.mark_lost(M, Sequence(1), "b")
    assert "a" == affinity.assign(M, Sequence(1, end=True), {"a": 1.0})
    affinity.mark_lost(M, Sequence(1), "a")
    assert "b" == affinity.assign(M, Sequence(1), {"b": 1.0})


def test_text_and_number_are_two_sequences() -> None:
    """The id "1" is not the id 1."""
    affinity = SequenceAffinity("endpoint")
    affinity.assign(M, Sequence(1, start=True), {"a": 1.0})
    assert "b" == affinity.assign(M, Sequence("1"), {"b": 1.0})
