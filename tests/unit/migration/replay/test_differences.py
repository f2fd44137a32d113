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


def capture(
    directory: Path, values: list[list[float]], shape: str = "[2]", **numbers: list[int]
) -> Capture:
    """Return a capture of one reply each.

    Args:
        directory: Its directory, which does not exist.
        values: The elements of the replies.
        shape: Their shape.
        numbers: `ids` and `starts` of the calls, if not 0 to the last.
    """
    directory.mkdir()
    writer = SegmentWriter(directory, {})
    writer.begin()
    ids, starts = (numbers.get(name, list(range(len(values)))) for name in ("ids", "starts"))
    for each, request_id, at_us in zip(values, ids, starts, strict=True):
        data = np.array(each, np.float32).tobytes()
        call = CallRow(at_us=at_us, took_us=5, request_id=f"r{request_id}", kind="InferRequest")
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


@pytest.mark.parametrize(("after_us", "expected"), [(0, (0, 4, 1)), (100, (2, 4, 1))])
def test_repeated_request_ids_are_calls_of_their_own(
    tmp_path: Path, after_us: int, expected: tuple[int, int, int]
) -> None:
    """Calls of one id are paired by their starts, which a replay keeps, or else in their order."""
    values = [[float(each)] for each in range(5)]
    # The replay wrote the calls as they ended, and left the second one out.
    starts = [3, 0, 2, 4]
    old = capture(tmp_path / "old", values, "[1]", ids=[7, 7, 7, 7, 8])
    found = compare_captures(
        old,
        capture(
            tmp_path / "new",
            [values[each] for each in starts],
            "[1]",
            ids=[7, 7, 7, 8],
            starts=[each + after_us for each in starts],
        ),
        OutputRules(),
        pytest.fail,
    )
    assert (*found.counts("mismatch"), found.missing) == expected


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
