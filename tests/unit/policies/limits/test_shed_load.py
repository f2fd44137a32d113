"""Load shedding: only inferences are rejected while the process is overloaded."""

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


async def is_rejected(shed: ShedLoad) -> bool:
    try:
        await shed(CALL)
    except Overloaded:
        return True
    return False


async def test_memory_above_its_limit_rejects_inferences() -> None:
    """Calls pass again well below the limit, and both changes are logged once."""
    memory = [0]
    load = ProcessLoad(lambda: memory[0])
    shed = ShedLoad(ScriptedService(always=REPLY), load, RULES)
    found = []
    with capture_logs() as lines:
        for size in (1000, 1001, 950, 901, 900, 950):
            memory[0] = size
            load.measure(0.0)
            found.append(await is_rejected(shed))
    assert [False, True, True, True, False, False] == found
    assert ["load is shed", "load is no longer shed"] == [line["event"] for line in lines]


async def test_single_long_step_is_no_overload() -> None:
    """Load is shed after two long measurements in a row."""
    load = ProcessLoad(lambda: 0)
    shed = ShedLoad(ScriptedService(always=REPLY), load, RULES)
    found = []
    for lag_s in (0.5, 0.0, 0.5, 0.3, 0.3, 0.0):
        load.measure(lag_s)
        found.append(await is_rejected(shed))
    assert [False, False, False, True, True, False] == found


@pytest.mark.parametrize("call", [CALL, StreamInferRequest(model=M, request=CALL)])
async def test_error_names_the_limit(call: Call[Any]) -> None:
    """The text names the setting, and the error has the name of the limit for the metrics."""
    load = ProcessLoad(lambda: 2000)
    load.measure(0.0)
    shed = ShedLoad(ScriptedService(always=REPLY), load, RULES)
    with pytest.raises(
        Overloaded, match=r"memory is 2000 bytes \(policies.overload.memory\)"
    ) as at:
        await shed(call)
    assert "memory" == at.value.limit


async def test_health_calls_are_not_rejected() -> None:
    """Probes must not fail because the gateway is busy."""
    load = ProcessLoad(lambda: 2000)
    load.measure(0.0)
    assert await ShedLoad(ScriptedService(always=True), load, RULES)(ServerReadyRequest())


async def test_limits_are_optional() -> None:
    """Without a limit no call is rejected."""
    load = ProcessLoad(lambda: 2000)
    load.measure(9.0)
    load.measure(9.0)
    assert not await is_rejected(ShedLoad(ScriptedService(always=REPLY), load, ShedRules()))


def test_resident_memory_of_this_process() -> None:
    """The value is plausible for a Python process."""
    assert 5 << 20 < resident_bytes() < 64 << 30
