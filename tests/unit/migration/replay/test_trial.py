"""A loaded model gets recorded calls, and conditions decide about their replies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.app import check
from gateway.config.load import LoadedConfig, load_text
from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import UpstreamError
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.migration.replay.trial import try_recorded_calls
from gateway.registry import recorded_calls
from gateway.routing.rolling.settings import ROLLING_LOAD, TrialResult
from tests.unit.migration.replay.test_replay import calls_of, request

FILE = """
version: 1
listeners: [{{http: 127.0.0.1:8000}}]
state: {{directory: state}}
upstreams:
  old: {{url: "http://127.0.0.1:9001"}}
  new:
    url: http://127.0.0.1:9002
    rolling_load: {rolling}
routes:
  - name: m
    targets: [{{upstream: old}}, {{upstream: new, weight: 0}}]
migrations:
  m:
    route: m
    old: old
    new: new
    compare: {{default: {{atol: 0.5}}}}
"""
WARM_UP = "warm_up: {capture: capture, calls: 5}"


def config(folder: Path, rolling: str) -> LoadedConfig:
    """Return a configuration in a folder."""
    return load_text(FILE.format(rolling=rolling), directory=folder)


def server(change: Callable[[float], float]) -> Any:
    """Return a server that changes each number, and notes the models of its calls."""

    async def infer(call: Call[Any], /) -> Any:
        assert isinstance(call, InferRequest)
        assert call.model == ModelRef("m")
        value = change(float(as_numpy(call.inputs[0])[0]))
        output = array_tensor("y", np.array([value], np.float32))
        return InferResponse(model=ModelRef("m", "2"), outputs=(output,))

    return infer


async def trial(folder: Path, service: Any, rolling: str = f"{{{WARM_UP}}}") -> TrialResult:
    """Try calls whose recorded replies equal their requests."""
    calls_of(folder / "capture", *(request(number) for number in range(8)))
    loaded = config(folder, rolling)
    ((_, rules),) = loaded.values(ROLLING_LOAD)
    assert rules is not None
    return await try_recorded_calls(loaded, rules, service, "m")


def test_the_registry_finds_the_trial() -> None:
    """The core knows it by its name only."""
    assert recorded_calls() is try_recorded_calls


async def test_equal_replies_pass(tmp_path: Path) -> None:
    """No more calls are sent than the configuration allows."""
    assert TrialResult(5) == await trial(tmp_path, server(lambda value: value))


async def test_other_replies_fail(tmp_path: Path) -> None:
    """The condition that fails is named."""
    result = await trial(tmp_path, server(lambda value: value + 0.25))
    assert ("mismatch 100.00% > 0.10%",) == result.failures


async def test_the_rules_of_a_migration_apply(tmp_path: Path) -> None:
    """Its tolerances are those of the comparison."""
    rolling = f"{{{WARM_UP}, compare: m}}"
    assert () == (await trial(tmp_path, server(lambda value: value + 0.25), rolling)).failures
    other = tmp_path / "other"
    assert (await trial(other, server(lambda value: value + 2), rolling)).failures


async def test_errors_fail(tmp_path: Path) -> None:
    """A version that fails calls is no good one."""

    async def fail(_call: Call[Any], /) -> Any:
        raise UpstreamError("no")

    result = await trial(tmp_path, fail)
    assert result.failures[0].startswith("errors 100.00%")
    assert "the first error is: no" == result.failures[-1]


async def test_calls_that_nothing_judges_fail(tmp_path: Path) -> None:
    """A condition on replies is none on errors: a version that fails each call passed with it."""

    async def fail(_call: Call[Any], /) -> Any:
        raise UpstreamError("no")

    result = await trial(tmp_path, fail, f"{{{WARM_UP}, fail_if: [mismatch>0.1%]}}")
    assert result.failures[0].startswith("5 of 5 calls failed at the new server, and nothing")
    assert "the first error is: no" == result.failures[-1]
    rolling = f"{{{WARM_UP}, fail_if: []}}"
    assert TrialResult(5) == await trial(tmp_path / "other", fail, rolling)


async def test_calls_of_other_models_are_not_sent(tmp_path: Path) -> None:
    """A capture without calls of the model shows nothing."""
    calls_of(tmp_path / "capture", request(1))
    loaded = config(tmp_path, f"{{{WARM_UP}}}")
    ((_, rules),) = loaded.values(ROLLING_LOAD)
    assert rules is not None
    result = await try_recorded_calls(loaded, rules, server(lambda value: value), "other")
    assert TrialResult(0) == result


async def test_a_capture_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The load then fails, as `layer.py` says."""
    loaded = config(tmp_path, f"{{{WARM_UP}}}")
    ((_, rules),) = loaded.values(ROLLING_LOAD)
    assert rules is not None
    with pytest.raises(ValueError, match="no capture there"):
        await try_recorded_calls(loaded, rules, server(lambda value: value), "m")


@pytest.mark.parametrize(
    ("rolling", "message"),
    [
        (f"{{{WARM_UP}, compare: x}}", "unknown migration 'x'; expected one of m"),
        (f"{{{WARM_UP}, fail_if: [wrong]}}", "'wrong' is not METRIC>VALUE"),
        ("{compare: m}", "needs 'warm_up'"),
    ],
)
def test_wrong_keys_are_found(tmp_path: Path, rolling: str, message: str) -> None:
    """`gateway validate` names them."""
    problems = check(config(tmp_path, rolling))
    assert any(message in problem.message for problem in problems)
