"""Sequences stay at the endpoint where they started, and end at the service where they began."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    StreamInferRequest,
    sequence_of,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import Unavailable
from gateway.routing.sequence_affinity import FinishSequences, SequenceAffinity, rendezvous
from tests.fakes import FakeClock, ScriptedService

M = ModelRef("m")
ENDPOINTS = {"a": 1.0, "b": 1.0, "c": 1.0}


def test_shares_follow_weights() -> None:
    """Of many keys, each endpoint gets the share of its weight, within sampling error."""
    found = Counter(rendezvous(str(key), {"a": 3.0, "b": 1.0}) for key in range(4000))
    assert abs(found["a"] - 3000) < 120


def test_only_keys_of_a_lost_endpoint_move() -> None:
    """Keys of the other endpoints stay."""
    keys = [str(key) for key in range(300)]
    remaining = {"a": 1.0, "b": 1.0}
    stable_keys = [key for key in keys if rendezvous(key, ENDPOINTS) != "c"]
    assert [rendezvous(key, ENDPOINTS) for key in stable_keys] == [
        rendezvous(key, remaining) for key in stable_keys
    ]


def test_a_sequence_stays_when_endpoints_are_added() -> None:
    """A new endpoint does not take over a running sequence."""
    affinity = SequenceAffinity("endpoint")
    moved = [n for n in range(1, 50) if rendezvous(f"m|{n}", ENDPOINTS) != "a"]
    assert moved
    for number in moved:
        affinity.assign(M, CallSequence(number, start=True), {"a": 1.0})
        assert "a" == affinity.assign(M, CallSequence(number), ENDPOINTS)


def test_a_lost_endpoint_ends_the_sequence_with_an_error() -> None:
    """The sequence fails, even when the endpoint returns, until the client restarts it."""
    affinity = SequenceAffinity("endpoint")
    endpoint = affinity.assign(M, CallSequence("s", start=True), ENDPOINTS)
    remaining = {name: 1.0 for name in ENDPOINTS if name != endpoint}
    for available in (remaining, remaining, ENDPOINTS):
        with pytest.raises(Unavailable) as caught:
            affinity.assign(M, CallSequence("s"), available)
        assert caught.value.message == (
            f"sequence 's' is lost: its endpoint '{endpoint}' is not available; restart the sequence"
        )
    assert affinity.assign(M, CallSequence("s", start=True), remaining) in remaining


def test_the_end_of_a_sequence_frees_its_id() -> None:
    """After its last request the same id is a new sequence."""
    affinity = SequenceAffinity("endpoint")
    affinity.assign(M, CallSequence(1, start=True), {"a": 1.0})
    affinity.assign(M, CallSequence(1, end=True), {"a": 1.0})
    assert "b" == affinity.assign(M, CallSequence(1), {"b": 1.0})


def test_the_least_recently_used_sequence_is_evicted() -> None:
    """The table is bounded."""
    affinity = SequenceAffinity("endpoint", capacity=2)
    only_a = {"a": 1.0}
    for number in (1, 2, 1, 3):
        affinity.assign(None, CallSequence(number), only_a)
    assert {("", 1), ("", 3)} == set(affinity._assignments)


def test_only_inferences_and_streams_have_sequences() -> None:
    """Other calls have no sequence."""
    sequence = CallSequence(5)
    request = InferRequest(sequence=sequence)
    assert (sequence, sequence, None) == (
        sequence_of(request),
        sequence_of(StreamInferRequest(request=request)),
        sequence_of(ServerLiveRequest()),
    )


def test_an_idle_sequence_expires() -> None:
    """After `idle_s` without a request its id is free; each request renews it."""
    clock = FakeClock()
    affinity = SequenceAffinity("endpoint", idle_s=10.0, clock=clock)
    for number in (1, 2):
        affinity.assign(M, CallSequence(number, start=True), {"a": 1.0})
    clock.advance(9.0)
    assert "a" == affinity.assign(M, CallSequence(2), ENDPOINTS)
    clock.advance(1.0)
    assert "b" == affinity.assign(M, CallSequence(1), {"b": 1.0})
    with pytest.raises(Unavailable):
        affinity.assign(M, CallSequence(2), {"b": 1.0})


def test_a_lost_sequence_must_be_restarted() -> None:
    """The restart uses another endpoint, if possible, although the first one is back."""
    affinity = SequenceAffinity("endpoint")
    endpoint = affinity.assign(M, CallSequence(1, start=True), ENDPOINTS)
    affinity.mark_lost(M, CallSequence(1), endpoint)
    for _ in range(2):
        with pytest.raises(
            Unavailable, match=f"sequence 1 is lost: its endpoint '{endpoint}' .* restart"
        ):
            affinity.assign(M, CallSequence(1), ENDPOINTS)
    other = affinity.assign(M, CallSequence(1, start=True), ENDPOINTS)
    assert endpoint != other
    assert other == affinity.assign(M, CallSequence(1), ENDPOINTS)


def test_a_lost_sequence_may_restart_at_the_only_endpoint() -> None:
    """A failed endpoint is better than none."""
    affinity = SequenceAffinity("endpoint")
    affinity.assign(M, CallSequence(1, start=True), {"a": 1.0})
    affinity.mark_lost(M, CallSequence(1), "a")
    assert "a" == affinity.assign(M, CallSequence(1, start=True), {"a": 1.0})


def test_a_late_failure_does_not_affect_ended_sequences() -> None:
    """A sequence that has ended or moved is not lost."""
    affinity = SequenceAffinity("endpoint")
    affinity.assign(M, CallSequence(1, start=True), {"a": 1.0})
    affinity.mark_lost(M, CallSequence(1), "b")
    assert "a" == affinity.assign(M, CallSequence(1, end=True), {"a": 1.0})
    affinity.mark_lost(M, CallSequence(1), "a")
    assert "b" == affinity.assign(M, CallSequence(1), {"b": 1.0})


def test_text_and_number_ids_are_different() -> None:
    """The id "1" is not the id 1."""
    affinity = SequenceAffinity("endpoint")
    affinity.assign(M, CallSequence(1, start=True), {"a": 1.0})
    assert "b" == affinity.assign(M, CallSequence("1"), {"b": 1.0})


REPLY = InferResponse(model=ModelRef("m"), outputs=())


def request(sequence: CallSequence | None, model: str = "m") -> InferRequest:
    return InferRequest(model=ModelRef(model), sequence=sequence)


async def test_earlier_sequences_finish_at_the_previous_service() -> None:
    """New sequences and calls outside of sequences use the new service."""
    inner, previous = ScriptedService(*[REPLY] * 4), ScriptedService(*[REPLY] * 2)
    service = FinishSequences(inner, previous)
    plain, start = request(None), request(CallSequence(2, start=True))
    continued, end = request(CallSequence(2)), request(CallSequence(2, end=True))
    earlier, other = request(CallSequence(1)), request(CallSequence(2), "other")
    for call in (plain, start, earlier, continued, other, end):
        await service(call)
    assert inner.calls == [plain, start, continued, end]
    assert previous.calls == [earlier, other]


async def test_all_calls_use_the_new_service_after_the_end() -> None:
    """The previous service is released."""
    inner, previous = ScriptedService(REPLY), ScriptedService()
    service = FinishSequences(inner, previous)
    service.end()
    earlier = request(CallSequence(1))
    await service(earlier)
    assert inner.calls == [earlier]
