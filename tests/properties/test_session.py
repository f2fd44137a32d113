"""Sessions: whatever runs concurrently, every reply is sent once, and in a valid order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from gateway.session import Session, SessionCall, SessionReply
from tests.properties.conftest import Run

Numbers = tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """The behaviour of a call: the loop iterations before each reply and before its end."""

    order_key: str | None
    is_only: bool
    waits: tuple[int, ...]

    @property
    def replies(self) -> int:
        return 1 if self.is_only else len(self.waits) - 1


@dataclass
class Played:
    """The record of a session.

    Attributes:
        replies: Call and reply, by their numbers.
        running: Calls that run now.
        most: The maximum number of concurrent calls.
    """

    replies: list[Numbers] = field(default_factory=list)
    running: dict[int, str | None] = field(default_factory=dict)
    most: int = 0
    starts: list[int] = field(default_factory=list)


PLANS = st.lists(
    st.builds(
        Plan,
        order_key=st.sampled_from([None, None, "a", "b"]),
        is_only=st.booleans(),
        waits=st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    ),
    max_size=12,
)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def call(
    number: int, plan: Plan, seen: Played
) -> AsyncGenerator[SessionReply[Numbers], None]:
    assert plan.order_key is None or plan.order_key not in seen.running.values(), (
        "two calls of one order key"
    )
    seen.running[number] = plan.order_key
    seen.starts.append(number)
    seen.most = max(seen.most, len(seen.running))
    try:
        for reply in range(plan.replies):
            await turns(plan.waits[reply])
            yield SessionReply((number, reply), plan.is_only)
        await turns(plan.waits[-1])
    finally:
        del seen.running[number]


async def play(plans: list[Plan], most: int, arrivals: list[int], reader: int) -> Played:
    seen = Played()

    async def session_calls() -> AsyncIterator[SessionCall[Numbers]]:
        for number, plan in enumerate(plans):
            await turns(arrivals[number % len(arrivals)])
            yield SessionCall(partial(call, number, plan, seen), plan.order_key)

    async with asyncio.timeout(20):
        async for reply in Session[Numbers](most).run(session_calls()):
            seen.replies.append(reply)
            await turns(reader)
    return seen


@given(
    plans=PLANS,
    most=st.integers(1, 5),
    arrivals=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    reader=st.integers(0, 3),
)
def test_sessions_keep_order_and_limit(
    run: Run, plans: list[Plan], most: int, arrivals: list[int], reader: int
) -> None:
    """No reply is lost, repeated or out of order, and no more calls run than allowed."""
    seen = run(play(plans, most, arrivals, reader))
    expected = {(n, reply) for n, plan in enumerate(plans) for reply in range(plan.replies)}
    assert len(expected) == len(seen.replies)
    assert expected == set(seen.replies)
    assert {} == seen.running
    assert seen.most <= most
    for number, plan in enumerate(plans):
        own = [reply for call_number, reply in seen.replies if call_number == number]
        assert sorted(own) == own
        if plan.is_only:  # every earlier call has replied before, if it replies at all
            place = seen.replies.index((number, 0))
            before = {call_number for call_number, _ in seen.replies[:place]}
            assert {n for n in range(number) if plans[n].replies} <= before
    for order_key in ("a", "b"):
        own = [number for number in seen.starts if plans[number].order_key == order_key]
        assert sorted(own) == own


@given(
    plans=PLANS.filter(bool),
    most=st.integers(1, 5),
    count=st.integers(0, 8),
    late=st.integers(0, 6),
)
def test_closing_a_session_ends_its_calls(
    run: Run, plans: list[Plan], most: int, count: int, late: int
) -> None:
    """Closed at any moment, a session leaves no running call and no task."""

    async def leave() -> None:
        seen = Played()

        async def session_calls() -> AsyncIterator[SessionCall[Numbers]]:
            for number, plan in enumerate(plans):
                yield SessionCall(partial(call, number, plan, seen), plan.order_key)

        replies = Session[Numbers](most).run(session_calls())
        async with asyncio.timeout(20):
            for _ in range(count):
                if await anext(replies, None) is None:
                    break
            await turns(late)
            await replies.aclose()
        assert {} == seen.running
        assert {asyncio.current_task()} == asyncio.all_tasks()

    run(leave())
