"""Sessions: whatever runs beside what, every answer is heard, once, and in an order that may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from gateway.session import Session, SessionCall, SessionReply
from tests.properties.conftest import Run

Heard = tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """What one call does: before each answer, and before its end, it waits for so many turns."""

    lane: str | None
    alone: bool
    waits: tuple[int, ...]

    @property
    def answers(self) -> int:
        return 1 if self.alone else len(self.waits) - 1


@dataclass
class Played:
    """What was seen of a session while it was played.

    Attributes:
        answers: Call and answer, by their numbers.
        running: Calls that run now.
        most: So many ran at a time.
    """

    answers: list[Heard] = field(default_factory=list)
    running: dict[int, str | None] = field(default_factory=dict)
    most: int = 0
    starts: list[int] = field(default_factory=list)


PLANS = st.lists(
    st.builds(
        Plan,
        lane=st.sampled_from([None, None, "a", "b"]),
        alone=st.booleans(),
        waits=st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    ),
    max_size=12,
)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def call(number: int, plan: Plan, seen: Played) -> AsyncGenerator[SessionReply[Heard], None]:
    assert plan.lane is None or plan.lane not in seen.running.values(), "two calls of one lane"
    seen.running[number] = plan.lane
    seen.starts.append(number)
    seen.most = max(seen.most, len(seen.running))
    try:
        for answer in range(plan.answers):
            await turns(plan.waits[answer])
            yield SessionReply((number, answer), plan.alone)
        await turns(plan.waits[-1])
    finally:
        del seen.running[number]


async def play(plans: list[Plan], most: int, arrivals: list[int], reader: int) -> Played:
    seen = Played()

    async def coming() -> AsyncIterator[SessionCall[Heard]]:
        for number, plan in enumerate(plans):
            await turns(arrivals[number % len(arrivals)])
            yield SessionCall(partial(call, number, plan, seen), plan.lane)

    async with asyncio.timeout(10):
        async for answer in Session[Heard](most).run(coming()):
            seen.answers.append(answer)
            await turns(reader)
    return seen


@given(
    plans=PLANS,
    most=st.integers(1, 5),
    arrivals=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    reader=st.integers(0, 3),
)
def test_sessions_keep_their_promises(
    run: Run, plans: list[Plan], most: int, arrivals: list[int], reader: int
) -> None:
    """Nothing is lost, doubled or out of its order, and no more runs than may."""
    seen = run(play(plans, most, arrivals, reader))
    expected = {(n, answer) for n, plan in enumerate(plans) for answer in range(plan.answers)}
    assert len(expected) == len(seen.answers)
    assert expected == set(seen.answers)
    assert {} == seen.running
    assert seen.most <= most
    for number, plan in enumerate(plans):
        own = [answer for call_number, answer in seen.answers if call_number == number]
        assert sorted(own) == own
        if plan.alone:  # every call before it has been heard, if it said anything
            place = seen.answers.index((number, 0))
            before = {call_number for call_number, _ in seen.answers[:place]}
            assert {n for n in range(number) if plans[n].answers} <= before
    for lane in ("a", "b"):
        own = [number for number in seen.starts if plans[number].lane == lane]
        assert sorted(own) == own


@given(
    plans=PLANS.filter(bool),
    most=st.integers(1, 5),
    count=st.integers(0, 8),
    late=st.integers(0, 6),
)
def test_who_leaves_leaves_nothing_running(
    run: Run, plans: list[Plan], most: int, count: int, late: int
) -> None:
    """Closed at any moment, a session ends its calls, and has no task left."""

    async def leave() -> None:
        seen = Played()

        async def coming() -> AsyncIterator[SessionCall[Heard]]:
            for number, plan in enumerate(plans):
                yield SessionCall(partial(call, number, plan, seen), plan.lane)

        answers = Session[Heard](most).run(coming())
        async with asyncio.timeout(10):
            for _ in range(count):
                if await anext(answers, None) is None:
                    break
            await turns(late)
            await answers.aclose()
        assert {} == seen.running
        assert {asyncio.current_task()} == asyncio.all_tasks()

    run(leave())
