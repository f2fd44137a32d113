"""The executor: order, failure and cancellation of steps."""

from __future__ import annotations

import asyncio

import pytest

from gateway.ir.context import ModelRef
from gateway.pipelines.graph import Step, parse_source
from gateway.pipelines.pipeline import run_steps
from tests.fakes import settle


def step(name: str, *needs: str) -> Step:
    sources = {f"x{n}": parse_source(f"{other}.y") for n, other in enumerate(needs)}
    return Step(name, ModelRef("m"), sources or {"x": parse_source("request.x")})


class Steps:
    """Runs steps by hand: each waits for the test."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self.cancelled: list[str] = []

    async def __call__(self, one: Step) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[one.name] = future
        try:
            await future
        except asyncio.CancelledError:
            self.cancelled.append(one.name)
            raise
        finally:
            del self.waiting[one.name]

    async def end(self, name: str) -> None:
        self.waiting[name].set_result(None)
        await settle()


DIAMOND = (step("d", "b", "c"), step("b", "a"), step("c", "a"), step("a"), step("e"))


async def test_step_runs_as_soon_as_its_sources_are_done() -> None:
    """A step waits for its own sources and for no other step."""
    steps = Steps()
    task = asyncio.ensure_future(run_steps(DIAMOND, steps))
    await settle()
    assert {"a", "e"} == steps.waiting.keys()
    await steps.end("a")
    assert {"e", "b", "c"} == steps.waiting.keys()
    await steps.end("c")
    assert {"e", "b"} == steps.waiting.keys()
    await steps.end("b")
    assert {"e", "d"} == steps.waiting.keys()
    await steps.end("d")
    assert not task.done()
    await steps.end("e")
    await task


async def test_running_no_steps_returns_at_once() -> None:
    """Outputs that come from the request need no step."""
    await run_steps((), Steps())


async def test_failure_cancels_the_other_steps() -> None:
    """The failure is raised after the other steps end; dependent steps never run."""
    steps = Steps()
    task = asyncio.ensure_future(run_steps(DIAMOND, steps))
    await settle()
    await steps.end("a")
    steps.waiting["b"].set_exception(ValueError("b"))
    with pytest.raises(ValueError, match="b"):
        await task
    assert (["c", "e"], {}) == (sorted(steps.cancelled), steps.waiting)


async def test_first_failure_in_order_is_raised() -> None:
    """The choice between several failures does not depend on timing."""
    steps = Steps()
    task = asyncio.ensure_future(run_steps((step("a"), step("b")), steps))
    await settle()
    for name in ("b", "a"):
        steps.waiting[name].set_exception(ValueError(name))
    with pytest.raises(ValueError, match="a"):
        await task


async def test_cancelling_the_caller_cancels_every_step() -> None:
    """No step runs without a caller."""
    steps = Steps()
    task = asyncio.ensure_future(run_steps(DIAMOND, steps))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["a", "e"] == sorted(steps.cancelled)
