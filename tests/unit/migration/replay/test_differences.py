"""Comparison of captures: equal bytes are compared once, with the same counts as all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.migration.captures.capture import Capture
from gateway.migration.captures.segment_writer import SegmentWriter
from gateway.migration.compare.rules import OutputRule, OutputRules
from gateway.migration.compare.summary import Summary
from gateway.migration.compare.tensors import Outcome
from gateway.migration.evidence.guards import Guards
from gateway.migration.replay.differences import compare_captures
from gateway.migration.settings import ErrorsGuardConfig, GuardsConfig
from gateway.shadow.records.records import CallRow, ItemRow, RecordedCall, TensorRow

NAN = float("nan")


def capture(directory: Path, values: list[list[float]], shape: str = "[2]") -> Capture:
    directory.mkdir()
    writer = SegmentWriter(directory, {})
    writer.begin()
    for number, each in enumerate(values):
        data = np.array(each, np.float32).tobytes()
        call = CallRow(at_us=number, took_us=5, request_id=f"r{number}", kind="InferRequest")
        row = TensorRow("old", 0, 0, "y", "FP32", shape, "raw", None, 8, None, data)
        writer.add(RecordedCall(call, [row], [ItemRow(0, 3, "ok")]))
    writer.commit()
    writer.seal({})
    return Capture(directory)


def compared(
    tmp_path: Path, old: list[list[float]], new: list[list[float]], **rule: Any
) -> tuple[Summary, list[Outcome]]:
    outcomes: list[Outcome] = []
    rules = OutputRules(OutputRule(**rule))
    summary = compare_captures(
        capture(tmp_path / "old", old),
        capture(tmp_path / "new", new),
        rules,
        outcomes.append,  # type: ignore[arg-type]  # nothing is skipped
        lambda call: outcomes.append(call.comparison.outcome),
    )
    return summary, outcomes


def test_cached_comparisons_have_the_same_counts(tmp_path: Path) -> None:
    """Three calls are equal, of which two reuse the result of the first one."""
    old = [[1.0, 2.0], [3.0, 0.0], [1.0, 2.0], [5.0, 6.0]]
    new = [[1.0, 2.0], [3.0, 0.0], [1.5, 2.0], [5.0, 6.0]]
    summary, outcomes = compared(tmp_path, old, new, atol=0.1)
    assert [Outcome.MATCH, Outcome.MATCH, Outcome.MISMATCH, Outcome.MATCH] == outcomes
    output = summary.outputs["y"]
    assert (4, 1, 4) == (output.compared, output.mismatched, len(summary.new_s))
    assert output.errors is not None
    assert (8, 0.5, 0.5) == (output.errors.count, output.errors.max_abs, output.errors.sum_abs)


@pytest.mark.parametrize(
    ("nan", "expected"), [("equal", Outcome.MATCH), ("differ", Outcome.MISMATCH)]
)
def test_equal_bytes_with_nan_may_differ(tmp_path: Path, nan: str, expected: Outcome) -> None:
    """The result of an earlier call without NaN is not reused."""
    values = [[1.0, 2.0], [NAN, 2.0], [1.0, 2.0]]
    _, outcomes = compared(tmp_path, values, values, nan=nan)
    assert [Outcome.MATCH, expected, Outcome.MATCH] == outcomes


def test_calls_without_recorded_outputs_are_among_those_of_a_guard_of_errors(
    tmp_path: Path,
) -> None:
    """A condition on errors has them among all calls, and so has the guard."""
    for name in ("old", "new"):
        writer = SegmentWriter(tmp_path, {})
        writer.begin()
        for number in range(5):
            failed = name == "new" and not number
            row = CallRow(
                at_us=number,
                took_us=5,
                request_id=f"r{number}",
                kind="InferRequest",
                code="internal" if failed else "ok",
            )
            output = TensorRow("old", 0, 0, "y", "FP32", "[1]", "raw", None, 4, None, None)
            items = [] if failed else [ItemRow(0, 3, "ok")]
            writer.add(RecordedCall(row, [] if failed else [output], items))
        writer.commit()
        writer.seal({}).rename(tmp_path / f"{name}.capture")
    guards = Guards(GuardsConfig(mismatch="off", errors=ErrorsGuardConfig(below=0.5)))
    reasons: list[str] = []
    summary = compare_captures(
        Capture(tmp_path / "old.capture"),
        Capture(tmp_path / "new.capture"),
        OutputRules(),
        reasons.append,
        guards=guards,
    )
    assert ["payload not recorded"] * 4 == reasons
    assert (1, 5) == summary.counts("errors")
    assert guards.verdicts()[0].evidence.startswith("1 of 5, ")
