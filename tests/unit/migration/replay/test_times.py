"""Times of a replay: judged only under the load of the recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.migration.captures.capture import Capture
from gateway.migration.captures.segment_writer import SegmentWriter
from gateway.migration.compare.conditions import parse_fail_if
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.summary import Summary
from gateway.migration.compare.tensors import Outcome
from gateway.migration.evidence.guards import Guards
from gateway.migration.replay.replay import ReplayOptions
from gateway.migration.replay.times import description, replay_problem, times_problem
from gateway.migration.settings import GuardsConfig, LatencyGuardConfig
from gateway.shadow.records.records import CallRow, ItemRow, RecordedCall

RECORDED = ReplayOptions(speed=1.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (RECORDED, ""),
        (
            ReplayOptions(),
            "the calls were sent as fast as possible, at most 64 in flight; expected",
        ),
        (ReplayOptions(speed=2.0), "the calls were sent at 2 x the pace; expected"),
        (ReplayOptions(rate=500), "the calls were sent 500 calls a second; expected"),
        (ReplayOptions(speed=1.0, concurrency=4), "at the recorded pace, at most 4 in flight;"),
    ],
    ids=str,
)
def test_only_the_recorded_pace_is_judged(options: ReplayOptions, expected: str) -> None:
    """At another one, or with a limit of the calls in flight, the problem says how it was."""
    found = replay_problem(options, lag_s=0.0, recorded_percent=100.0, is_selection=False)
    assert (expected in found) if expected else not found


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"lag_s": 0.5}, "the calls were sent up to 500 ms late"),
        (
            {"recorded_percent": 5.0},
            "5% of the calls were recorded, so the new server had less load",
        ),
        ({"is_selection": True}, "only some of the recorded calls were sent"),
        ({"left_out": 7}, "7 recorded calls were not sent, so the new server had less load"),
        (
            {"dropped_percent": 20.0},
            "the recording lost 20% of its calls, so the new server had less load",
        ),
    ],
    ids=str,
)
def test_less_load_or_late_calls_are_not_judged(found: dict[str, Any], expected: str) -> None:
    """The pace alone does not make the load that of the recorded calls."""
    whole: dict[str, Any] = {"lag_s": 0.0, "recorded_percent": 100.0, "is_selection": False}
    assert replay_problem(RECORDED, **(whole | found)).startswith(expected)
    assert not replay_problem(RECORDED, **whole, dropped_percent=1.0)


def test_times_are_comparable_at_the_recorded_pace_only() -> None:
    """Two recordings of clients do, and two replays that sent the calls in the same way."""
    live = {"pid": "1"}
    fast = {"replayed": "new", **description(ReplayOptions(), "too fast")}
    slow = {"replayed": "new", **description(RECORDED, "")}
    assert "" == times_problem(live, live) == times_problem(live, slow) == times_problem(fast, fast)
    assert "too fast" == times_problem(live, fast) == times_problem(fast, live)
    assert "the two replays sent their calls in different ways" == times_problem(fast, slow)
    assert "it is unknown how" in times_problem(live, {"replayed": "of an earlier version"})


def test_a_recording_keeps_its_description(tmp_path: Path) -> None:
    """What is noted at the end is read with what was noted at the begin."""
    writer = SegmentWriter(tmp_path, {"replayed": "new"})
    writer.begin()
    call = CallRow(at_us=1, took_us=5, request_id="r", kind="InferRequest")
    writer.add(RecordedCall(call, [], [ItemRow(0, 3, "ok")]))
    writer.note({"times": "late"})
    writer.commit()
    writer.seal({})
    assert {"replayed": "new", "times": "late"} == Capture(tmp_path).description()


def test_times_that_do_not_compare_are_not_judged() -> None:
    """Ratios and guards say why; the 99th percentile of the new server is its own."""
    summary = Summary()
    for number in range(500):
        summary.add(f"c{number}", Comparison(Outcome.MATCH), (0.01, 0.2))
    ratio, absolute = parse_fail_if("p99_ratio>1.3"), parse_fail_if("p99>300ms")
    assert "p99_ratio 20 > 1.3" == ratio.failure(summary)
    summary.times_problem = "too fast"
    assert "p99_ratio is not judged: too fast" == ratio.failure(summary)
    assert "" == absolute.failure(summary)
    latency = summary.document()["latency"]
    assert (None, "too fast") == (latency["p99_ratio"], latency["not_judged"])
    limits = LatencyGuardConfig(p99=0.1, p99_ratio=1.3)
    guards = Guards(GuardsConfig(mismatch="off", errors="off", latency=limits))
    guards.ignore_times("too fast")
    assert {("undecided", "not judged: too fast")} == {
        (each.standing.value, each.evidence) for each in guards.verdicts()
    }
