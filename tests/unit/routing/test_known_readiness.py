"""Whether a model is ready, without waiting for it."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.ir.calls import Call
from gateway.ir.context import NO_CONTEXT, ModelRef
from gateway.ir.errors import ModelNotFound
from gateway.routing import router
from gateway.routing.router import KnownReadiness
from tests.fakes import FakeClock

M = ModelRef("m")


class Model:
    """A model that says whether it is ready, once it answers."""

    def __init__(self) -> None:
        self.is_ready = True
        self.count = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, _call: Call[Any], /) -> Any:
        self.count += 1
        await self.answers.wait()
        return self.is_ready


async def test_the_last_state_is_kept_for_a_second() -> None:
    """Probes do not become questions one by one."""
    clock, model = FakeClock(), Model()
    known = KnownReadiness(clock)
    assert [await known.is_ready(M, NO_CONTEXT, model) for _ in range(3)] == [True] * 3
    assert model.count == 1
    model.is_ready = False
    clock.advance(1.1)
    assert not await known.is_ready(M, NO_CONTEXT, model)


async def test_a_silent_model_keeps_its_state(monkeypatch: Any) -> None:
    """The probe is answered nevertheless; one that never answered is not ready."""
    monkeypatch.setattr(router, "_WAIT_S", 0.0)
    clock, model = FakeClock(), Model()
    known = KnownReadiness(clock)
    model.answers.clear()
    assert not await known.is_ready(M, NO_CONTEXT, model)
    model.answers.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await known.is_ready(M, NO_CONTEXT, model)
    model.answers.clear()
    clock.advance(1.1)
    assert await known.is_ready(M, NO_CONTEXT, model)
    model.answers.set()


async def test_a_model_that_is_not_there_is_not_ready() -> None:
    """An error is no answer of the model."""

    async def missing(_call: Call[Any], /) -> Any:
        raise ModelNotFound("no such model")

    assert not await KnownReadiness(FakeClock()).is_ready(M, NO_CONTEXT, missing)
