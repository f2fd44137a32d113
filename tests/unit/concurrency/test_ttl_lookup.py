"""TtlLookup: one question for each key, what is kept and for how long, and what is forgotten."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from gateway.concurrency.ttl_lookup import TtlLookup
from tests.fakes import FakeClock, settle


class Source:
    """Replies to questions when the test does.

    Attributes:
        questions: Keys and further arguments of the questions.
        replies: The futures that the test completes.
    """

    def __init__(self) -> None:
        self.questions: list[tuple[Any, ...]] = []
        self.replies: list[asyncio.Future[str | None]] = []

    async def fetch(self, *key: Any) -> str | None:
        """Wait for the reply of the test."""
        self.questions.append(key)
        reply: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.replies.append(reply)
        return await reply


def lookup(limit: int = 8) -> tuple[TtlLookup[str, str], Source, FakeClock]:
    """Return a lookup that keeps values for 10 s, and absences for 2 s."""
    source, clock = Source(), FakeClock()
    return TtlLookup(source.fetch, 10.0, 2.0, limit, clock), source, clock


async def found(values: TtlLookup[str, str], source: Source, value: str | None) -> str | None:
    """Ask for "a", and reply with *value*."""
    caller = asyncio.ensure_future(values.get("a"))
    await settle()
    source.replies[-1].set_result(value)
    return await caller


async def test_concurrent_callers_share_one_question() -> None:
    """It has the arguments of the first, and continues when that one leaves."""
    values, source, _ = lookup()
    callers = [asyncio.ensure_future(values.get("a", number)) for number in range(3)]
    await settle()
    assert values.is_asked("a")
    callers[0].cancel()
    source.replies[0].set_result("x")
    assert ["x", "x"] == await asyncio.gather(*callers[1:])
    assert [("a", 0)] == source.questions
    assert ("x", False) == (values.peek("a"), values.is_asked("a"))


@pytest.mark.parametrize(("value", "kept_s"), [("x", 10.0), (None, 2.0)])
async def test_values_and_absences_are_kept_for_a_while(value: str | None, kept_s: float) -> None:
    """`peek` shows values only, `has` also that there is none."""
    values, source, clock = lookup()
    assert value == await found(values, source, value)
    clock.advance(kept_s - 0.1)
    assert (value, value, True) == (await values.get("a"), values.peek("a"), values.has("a"))
    clock.advance(0.1)
    assert (None, False) == (values.peek("a"), values.has("a"))
    assert "y" == await found(values, source, "y")
    assert 2 == len(source.questions)


async def test_errors_reach_all_callers_and_are_not_kept() -> None:
    """The next caller asks again; an error that nobody waits for causes no line of asyncio."""
    values, source, _ = lookup()
    lines: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: lines.append(context))
    callers = [asyncio.ensure_future(values.get("a")) for _ in range(2)]
    await settle()
    source.replies[0].set_exception(ValueError("bad"))
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert ["bad", "bad"] == [str(each) for each in results]
    left = asyncio.ensure_future(values.get("a"))
    await settle()
    left.cancel()
    source.replies[1].set_exception(ValueError("bad"))
    await settle()
    del left, callers, results, source.replies[:]
    gc.collect()
    assert (False, []) == (values.has("a"), lines)
    assert "x" == await found(values, source, "x")


async def test_a_value_that_was_forgotten_meanwhile_is_not_kept() -> None:
    """Its callers get it, and later ones ask again: it may be older than the change."""
    values, source, _ = lookup()
    first = asyncio.ensure_future(values.get("a"))
    await settle()
    values.forget("a")
    second = asyncio.ensure_future(values.get("a"))
    await settle()
    source.replies[1].set_result("new")
    assert "new" == await second
    source.replies[0].set_result("old")
    assert ("old", "new") == (await first, values.peek("a"))


async def test_young_values_are_not_stale() -> None:
    """After a second an error discards the value."""
    values, source, clock = lookup()
    assert not values.forget_if_stale("a")
    await found(values, source, "x")
    clock.advance(0.9)
    assert (False, "x") == (values.forget_if_stale("a"), values.peek("a"))
    clock.advance(0.1)
    assert (True, None) == (values.forget_if_stale("a"), values.peek("a"))


async def test_the_oldest_key_makes_room_for_a_new_one() -> None:
    """Clients choose keys, so their number is bounded."""
    values, _, _ = lookup(limit=2)
    for key in "abc":
        values.put(key, key)
    assert [None, "b", "c"] == [values.peek(key) for key in "abc"]


def test_some_values_or_all_are_forgotten() -> None:
    """A condition on keys decides."""
    values, _, _ = lookup()
    for key in "abc":
        values.put(key, key)
    values.forget_if(lambda key: key < "c")
    assert [None, None, "c"] == [values.peek(key) for key in "abc"]
    values.forget_all()
    assert values.peek("c") is None


class Owner:
    """Has a lookup whose questions are its own method."""

    def __init__(self) -> None:
        self.lookup: TtlLookup[str, str] = TtlLookup(self.fetch, 10.0, 2.0)

    async def fetch(self, key: str) -> str:
        """Return the key."""
        return key


async def test_an_owner_is_freed_with_its_last_reference() -> None:
    """A replaced configuration waits for that, so the lookup makes no cycle."""
    owner = Owner()
    assert "a" == await owner.lookup.get("a")
    await settle()
    freed = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert freed() is None
    finally:
        gc.enable()
