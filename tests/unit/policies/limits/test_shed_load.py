"""Shedding load: inferences are refused while the process is overloaded, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import Overloaded
from gateway.policies.limits.shed_load import ProcessLoad, ShedLoad, ShedRules, resident_bytes
from tests.fakes import ScriptedService

M = ModelRef("m")
CALL = InferRequest(model=M)
REPLY = InferResponse(model=M, outputs=())
RULES = ShedRules(memory_bytes=1000, lag_s=0.1)


async def is_refused(shed: ShedLoad) -> bool:
    try:
        await shed(CALL)
    except Overloaded:
        return True
    return False


async def test_memory_above_its_bound_refuses_inferences() -> None:
    """Calls pass again when the memory is well below the bound; both changes are logged once."""
    memory = [0]
    load = ProcessLoad(lambda: memory[0])
    shed = ShedLoad(ScriptedService(always=REPLY), load, RULES)
    found = []
    with capture_logs() as lines:
        for size in (1000, 1001, 950, 901, 900, 950):
            memory[0] = size
            load.measure(0.0)
            found.append(await is_refused(shed))
    assert [False, True, True, True, False, False] == found
    assert ["load is shed", "load is no longer shed"] == [line["event"] for line in lines]


async def test_one_long_step_is_no_overload() -> None:
    """Two measurements in a row decide."""
    load = ProcessLoad(lambda: 0)
    shed = ShedLoad(ScriptedService(always=REPLY), load, RULES)
    found = []
    for lag_s in (0.5, 0.0, 0.5, 0.3, 0.3, 0.0):
        load.measure(lag_s)
        found.append(await is_refused(shed))
    assert [False, False, False, True, True, False] == found


@pytest.mark.parametrize("call", [CALL, StreamInferRequest(model=M, request=CALL)])
async def test_the_error_names_the_bound(call: Call[Any]) -> None:
    """The operator learns which key to change, and the counter of limits has its name."""
    load = ProcessLoad(lambda: 2000)
    load.measure(0.0)
    shed = ShedLoad(ScriptedService(always=REPLY), load, RULES)
    with pytest.raises(
        Overloaded, match=r"memory is 2000 bytes \(policies.overload.memory\)"
    ) as at:
        await shed(call)
    assert "memory" == at.value.limit


async def test_questions_are_answered() -> None:
    """Probes must not fail because the gateway has much to do."""
    load = ProcessLoad(lambda: 2000)
    load.measure(0.0)
    assert await ShedLoad(ScriptedService(always=True), load, RULES)(ServerReadyRequest())


async def test_bounds_are_optional() -> None:
    """Without a bound nothing is refused."""
    load = ProcessLoad(lambda: 2000)
    load.measure(9.0)
    load.measure(9.0)
    assert not await is_refused(ShedLoad(ScriptedService(always=REPLY), load, ShedRules()))


def test_the_memory_of_this_process() -> None:
    """It is that of a Python process."""
    assert 5 << 20 < resident_bytes() < 64 << 30
