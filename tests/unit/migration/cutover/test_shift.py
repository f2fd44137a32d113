"""CutoverShift: which calls move, and which weights are in force."""

from __future__ import annotations

import pytest

from gateway.ir.attempts import ATTEMPT, CallAttempt
from gateway.ir.call_keys import key_of
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.errors import Unavailable
from gateway.migration.cutover.shift import CutoverShift
from gateway.routing.balance import Balance, Readiness, Target
from gateway.telemetry.call_path import CALL_PATH, CallPath
from tests.fakes import ScriptedService

M = ModelRef("m")
REPLY = InferResponse(model=M, outputs=())
COUNT = 2_000


def of_user(number: int) -> InferRequest:
    return InferRequest(model=M, context=Context(metadata=(("x-user", f"u{number}"),)))


def in_sequence(number: int, **options: bool) -> InferRequest:
    return InferRequest(model=M, sequence=CallSequence(number, **options))


class Route:
    """A route from `old` to `new`, of which each may be down."""

    def __init__(self, shift: CutoverShift, readiness: Readiness = Readiness.ANY) -> None:
        self.down: set[str] = set()
        self.shift = shift

        def target(name: str, weight: int) -> Target:
            service = ScriptedService(always=REPLY)
            return Target(name, service, weight, lambda: name not in self.down)

        self.balance = Balance(
            "r", [target("old", 3), target("new", 0)], shift=shift, readiness=readiness
        )

    async def target(self, call: InferRequest) -> str:
        token = CALL_PATH.set(path := CallPath())
        try:
            await self.balance(call)
        finally:
            CALL_PATH.reset(token)
        return path.target

    async def moved(self, count: int = COUNT) -> set[int]:
        """Return the users whose calls go to the new target."""
        return {number for number in range(count) if await self.target(of_user(number)) == "new"}


def shifted(percent: float = 0.0, header: bool = True) -> Route:
    shift = CutoverShift("m", "new", key_of("header:x-user") if header else None)
    shift.apply(percent, 1, 1)
    return Route(shift)


async def test_moved_clients_stay_moved() -> None:
    """A larger share moves more clients, and includes all clients of the smaller share."""
    route = shifted()
    moved = await route.moved()
    assert set() == moved
    for epoch, percent in enumerate((1, 5, 25, 50, 100), start=2):
        route.shift.apply(percent, epoch, 1)
        now = await route.moved()
        assert now >= moved
        assert abs(len(now) / COUNT - percent / 100) < 0.04, percent
        moved = now
    route.shift.apply(5, 9, 1)
    assert await route.moved() < moved


async def test_processes_and_restarts_agree() -> None:
    """The selection depends only on the migration and the key."""
    first, second = shifted(25), shifted(25)
    assert await first.moved() == await second.moved()
    other = Route(CutoverShift("other", "new", key_of("header:x-user")))
    other.shift.apply(25, 1, 1)
    assert await first.moved() != await other.moved()


async def test_calls_without_a_key_move_individually() -> None:
    """The moved calls match the share."""
    route = shifted(25, header=False)
    moved = [await route.target(InferRequest(model=M)) for _ in range(COUNT)].count("new")
    assert abs(moved / COUNT - 0.25) < 0.06


async def test_older_weights_are_ignored() -> None:
    """A weight needs an epoch and an attempt at least as late as the current ones."""
    shift = CutoverShift("m", "new")
    assert shift.apply(50, 5, 1)
    assert not shift.apply(100, 4, 1)
    assert not shift.apply(100, 6, 0)
    assert (0.5, 5) == (shift.share, shift.epoch)
    assert shift.apply(0, 6, 1)
    assert 0.0 == shift.share


async def test_a_trip_lasts_until_the_next_attempt() -> None:
    """A leader that does not know of the trip cannot raise the share."""
    route = shifted(100)
    route.shift.trip()
    assert "old" == await route.target(of_user(1))
    route.shift.apply(100, 7, 1)
    assert "old" == await route.target(of_user(1))
    route.shift.apply(100, 8, 2)
    assert "new" == await route.target(of_user(1))


async def test_open_sequences_do_not_move() -> None:
    """A share of 0 or 100 % moves no open sequence; new ones follow the share."""
    route = shifted(0)
    assert "old" == await route.target(in_sequence(1, start=True))
    route.shift.apply(100, 2, 1)
    assert "new" == await route.target(in_sequence(2, start=True))
    assert ("old", "new") == (
        await route.target(in_sequence(1)),
        await route.target(in_sequence(2)),
    )
    route.shift.apply(0, 3, 1)
    assert "new" == await route.target(in_sequence(2))
    assert "old" == await route.target(in_sequence(3, start=True))
    assert "new" == await route.target(in_sequence(2, end=True))
    assert "old" == await route.target(in_sequence(2))


@pytest.mark.parametrize("rule", Readiness)
async def test_the_old_target_stays_the_fallback_after_the_last_step(rule: Readiness) -> None:
    """While the new target is not ready, the old one gets the calls, and counts for readiness."""
    route = Route(CutoverShift("m", "new"), rule)
    route.shift.apply(100, 1, 1)
    route.down.add("old")
    assert ("new", True) == (await route.target(of_user(1)), route.balance.ready())
    route.down = {"new"}
    expected = rule is Readiness.ANY
    assert ("old", expected) == (await route.target(of_user(1)), route.balance.ready())
    route.down = {"new", "old"}
    assert not route.balance.ready()


async def test_a_sequence_of_a_lost_target_is_lost() -> None:
    """No other target continues the sequence."""
    route = shifted(100)
    await route.target(in_sequence(1, start=True))
    route.down.add("new")
    with pytest.raises(Unavailable, match="sequence 1 is lost"):
        await route.target(in_sequence(1))


async def test_calls_use_the_old_target_while_the_new_is_not_ready() -> None:
    """Clients do not wait for a target whose probe failed."""
    route = shifted(100)
    route.down.add("new")
    assert "old" == await route.target(of_user(1))


async def test_a_retry_uses_the_old_target() -> None:
    """A failed call is not sent to the new target again."""
    route = shifted(100)
    token = ATTEMPT.set(attempt := CallAttempt(("new",)))
    try:
        assert ("old", "old") == (await route.target(of_user(1)), attempt.tried)
        ATTEMPT.set(attempt := CallAttempt())
        assert ("new", "new") == (await route.target(of_user(1)), attempt.tried)
    finally:
        ATTEMPT.reset(token)


async def test_readiness_follows_the_targets_in_use() -> None:
    """At 0 % the new target is ignored."""
    route = shifted(0)
    route.down = {"new"}
    assert route.balance.ready()
    route.down = {"old"}
    assert not route.balance.ready()
    route = Route(shifted(50).shift, Readiness.ALL)
    route.down = {"new"}
    assert not route.balance.ready()
