"""Balance: shares by weight, readiness by rule."""

from __future__ import annotations

from collections import Counter

import pytest
from structlog.testing import capture_logs

from gateway.ir.attempts import ATTEMPT, CallAttempt
from gateway.ir.call_keys import key_of
from gateway.ir.calls import InferRequest, InferResponse, ModelReadyRequest
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.errors import ModelNotFound, Unavailable
from gateway.routing.balance import (
    Balance,
    Random,
    Readiness,
    SmoothRoundRobin,
    Target,
    always_ready,
)
from gateway.telemetry.call_path import CALL_PATH, CallPath
from tests.fakes import ScriptedService

M = ModelRef("m")
CALL = InferRequest(model=M)
REPLY = InferResponse(model=M, outputs=())
READY = ModelReadyRequest(model=M)


def target(name: str, weight: int = 1, *, ready: bool = True, reply: object = REPLY) -> Target:
    return Target(name, ScriptedService(always=reply), weight, lambda: ready)


async def replying_targets(balance: Balance, times: int) -> str:
    """Return the names of the targets that replied, joined."""
    names = ""
    for _ in range(times):
        token = CALL_PATH.set(path := CallPath())
        await balance(CALL)
        CALL_PATH.reset(token)
        names += path.target
    return names


async def names(balance: Balance, times: int, call: InferRequest = CALL) -> list[str]:
    """Return the names of the targets that replied to *call*."""
    found = []
    for _ in range(times):
        token = CALL_PATH.set(path := CallPath())
        await balance(call)
        CALL_PATH.reset(token)
        found.append(path.target)
    return found


async def test_smooth_round_robin_has_no_bursts() -> None:
    """Weights 5, 1, 1 give nginx's published order."""
    balance = Balance("r", [target("a", 5), target("b"), target("c")])
    assert "aabacaa" * 2 == await replying_targets(balance, 14)


async def test_a_retry_uses_another_target() -> None:
    """A small share does not send the retry to the failed target."""
    balance = Balance("r", [target("a", 99), target("b", 1)])
    token = ATTEMPT.set(attempt := CallAttempt(("a",)))
    try:
        assert "bbb" == await replying_targets(balance, 3)
        assert "b" == attempt.tried
    finally:
        ATTEMPT.reset(token)


async def test_a_fallback_target_takes_over() -> None:
    """It receives calls only while no target of an earlier rank is ready; changes are logged."""
    ready = True
    first = Target("first", ScriptedService(always=REPLY), 1, lambda: ready)
    balance = Balance("r", [Target("last", ScriptedService(always=REPLY), 9, priority=1), first])
    with capture_logs() as lines:
        assert ["first"] * 3 == await names(balance, 3)
        ready = False
        assert ["last"] * 3 == await names(balance, 3)
        ready = True
        assert ["first"] * 3 == await names(balance, 3)
    changes = [line["priority"] for line in lines if line["event"] == "target priority changed"]
    assert [1, 0] == changes


async def test_a_retry_uses_the_next_rank() -> None:
    """It does so once every target of the first rank has been tried."""
    balance = Balance("r", [target("a"), Target("b", ScriptedService(always=REPLY), priority=1)])
    token = ATTEMPT.set(CallAttempt(("a",)))
    try:
        assert ["b"] == await names(balance, 1)
    finally:
        ATTEMPT.reset(token)


async def test_new_sequences_start_at_the_first_rank() -> None:
    """A sequence that started at a fallback stays there."""
    ready = False
    first = Target("first", ScriptedService(always=REPLY), 1, lambda: ready)
    balance = Balance("r", [first, Target("last", ScriptedService(always=REPLY), 9, priority=1)])
    old, new = (CALL.changed(sequence=CallSequence(n, start=True)) for n in (1, 2))
    assert ["last"] == await names(balance, 1, old)
    ready = True
    assert ["first"] == await names(balance, 1, new)
    assert ["last"] == await names(balance, 1, CALL.changed(sequence=CallSequence(1)))


async def test_a_key_keeps_its_target() -> None:
    """Calls of one key have one target; over many keys the weights hold."""
    balance = Balance("r", [target("a", 9), target("b", 1)], key=key_of("header:x-user"))
    found = Counter[str]()
    for n in range(1000):
        call = CALL.changed(context=Context(metadata=(("x-user", f"u{n}"),)))
        once, again = await names(balance, 2, call)
        assert once == again
        found[once] += 1
    assert 70 < found["b"] < 130


async def test_calls_without_a_key_are_balanced_by_weight() -> None:
    """They are balanced as on a route without keys."""
    balance = Balance("r", [target("a", 3), target("b", 1)], key=key_of("header:x-user"))
    assert {"a": 6, "b": 2} == Counter(await names(balance, 8))


async def test_errors_name_the_failed_target_or_endpoint() -> None:
    """The retry avoids the endpoint, if it is known, and the target otherwise."""
    of_endpoint = Unavailable("down")
    of_endpoint.attempted = "e1"
    for error, named in ((Unavailable("down"), "a"), (of_endpoint, "e1")):
        balance = Balance("r", [target("a", reply=error), target("b", 0), target("c", ready=False)])
        with pytest.raises(Unavailable) as caught:
            await balance(CALL)
        assert named == caught.value.attempted


async def test_random_maps_the_draw_to_shares() -> None:
    """The drawn number falls into the shares in order of the targets."""
    draws = iter([0.0, 0.74, 0.75, 0.999])
    balance = Balance("r", [target("a", 3), target("b")], choose=Random(lambda: next(draws)))
    assert "aabb" == await replying_targets(balance, 4)


def test_random_accepts_a_draw_of_one() -> None:
    """A draw that rounds up to 1 selects the last target."""
    targets = [target("a"), target("b")]
    assert "b" == Random(lambda: 1.0)(targets).name


async def test_weight_0_receives_no_calls() -> None:
    """A target of weight 0 does not count for readiness either."""
    balance = Balance("r", [target("a", 0, ready=False), target("b")], readiness=Readiness.ALL)
    assert "bbb" == await replying_targets(balance, 3)
    assert balance.ready()


async def test_unready_targets_are_skipped() -> None:
    """Without a ready target, all receive calls."""
    down = [target("a", ready=False), target("b", ready=False)]
    assert "cc" == await replying_targets(Balance("r", [*down, target("c")]), 2)
    assert "abab" == await replying_targets(Balance("r", down), 4)


@pytest.mark.parametrize(
    ("rule", "parts", "expected"),
    [
        (Readiness.ANY, [True, False], True),
        (Readiness.ANY, [False, False], False),
        (Readiness.ALL, [True, False], False),
        (Readiness.ALL, [True, True], True),
    ],
)
async def test_readiness_follows_the_rule(
    rule: Readiness, parts: list[bool], expected: bool
) -> None:
    """The route, and a model on it, are ready by the route's rule."""
    targets = [target(str(n), ready=part, reply=part) for n, part in enumerate(parts)]
    balance = Balance("r", targets, readiness=rule)
    assert (expected, expected) == (balance.ready(), await balance(READY))


async def test_model_ready_counts_failures_as_not_ready() -> None:
    """When all targets fail, the first error is raised."""
    lost = target("a", reply=ModelNotFound("no m"))
    down = target("b", reply=Unavailable("down"))
    assert await Balance("r", [lost, target("c", reply=True)])(READY) is True
    assert (
        await Balance("r", [lost, target("c", reply=True)], readiness=Readiness.ALL)(READY) is False
    )
    with pytest.raises(ModelNotFound, match="no m"):
        await Balance("r", [lost, down])(READY)


async def test_a_single_target_replies_to_model_ready_itself() -> None:
    """Its error is raised unchanged."""
    with pytest.raises(Unavailable, match="down"):
        await Balance("r", [target("a", reply=Unavailable("down"))])(READY)


async def test_a_sequence_stays_at_one_target() -> None:
    """All its requests reach one target, and sequences spread over the targets."""
    services = {name: ScriptedService(always=REPLY) for name in "ab"}
    balance = Balance("r", [Target(name, service) for name, service in services.items()])
    for number in range(1, 41):
        for start in (True, False):
            await balance(CALL.changed(sequence=CallSequence(number, start=start)))
    for service in services.values():
        seen = Counter(
            c.sequence.id for c in service.calls if isinstance(c, InferRequest) and c.sequence
        )
        assert {2} == set(seen.values())


def test_invalid_targets_are_rejected() -> None:
    """A route needs a target with a weight above 0, and distinct names."""
    with pytest.raises(ValueError, match="route 'r' has no target with a weight above 0"):
        Balance("r", [target("a", 0)])
    with pytest.raises(ValueError, match="route 'r' has two targets with the same name"):
        Balance("r", [target("a"), target("a")])


def test_unwatched_target_is_ready() -> None:
    """A target without a watcher counts as ready."""
    assert Balance("r", [Target("a", ScriptedService())]).ready()
    assert always_ready()


def test_round_robin_state_is_per_instance() -> None:
    """Each route has its own round robin."""
    first, second = SmoothRoundRobin(), SmoothRoundRobin()
    targets = [target("a"), target("b")]
    assert ("a", "b", "a") == (
        first(targets).name,
        first(targets).name,
        second(targets).name,
    )
