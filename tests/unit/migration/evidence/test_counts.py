"""The evidence of the shadow calls of a migration."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.config.load import load_text
from gateway.ir.errors import ErrorCode
from gateway.ir.tensors.tensor import array_tensor
from gateway.migration.compare.replies import Result, compare_results
from gateway.migration.compare.rules import OutputRules
from gateway.migration.evidence.counts import MigrationEvidence, ShadowedCall, UnusableEvidence
from gateway.migration.evidence.verdicts import evidence_of
from gateway.migration.settings import MIGRATIONS

FILE = """version: 1
listeners: [{http: 0}]
migrations: {m: {cutover: {guards: {mismatch: {below: 1%}, errors: {below: 1%}}}}}
"""
MINUTE_US = 60_000_000
START_US = 1_700_000_000_000_000 // MINUTE_US * MINUTE_US


def evidence(*, has_noise: bool = False) -> MigrationEvidence:
    guards = MIGRATIONS.of(load_text(FILE).config)["m"].guards
    return MigrationEvidence("m", guards, START_US, has_noise=has_noise)


def result(value: float | ErrorCode) -> Result:
    if isinstance(value, ErrorCode):
        return Result(error=value)
    return Result(((array_tensor("y", np.array([value], np.float32)),),))


def add(
    made: MigrationEvidence,
    old: float | ErrorCode,
    new: float | ErrorCode,
    at_us: int = START_US,
    seconds: tuple[float, float] = (0.01, 0.02),
) -> None:
    a, b = result(old), result(new)
    comparison = compare_results(a, b, OutputRules())
    found = evidence_of(a, b, comparison, seconds, at_us / 1e6)
    made.count_arrival()
    made.add(ShadowedCall(f"s{at_us}", at_us, found, comparison))


def test_every_call_has_one_result() -> None:
    """Sampled calls are the sum of compared, skipped, dropped and pending ones."""
    made = evidence()
    add(made, 1.0, 1.0)
    add(made, 1.0, 2.0)
    add(made, 1.0, ErrorCode.UNAVAILABLE)
    add(made, 1.0, ErrorCode.DEADLINE_EXCEEDED)
    made.report({"sequence": 2}, {"queue": 3})
    for _ in range(3):
        made.count_arrival()
    made.skip("invalid")
    made.drop("internal")
    found = made.document(START_US + 1)
    assert (found["sampled"], found["compared"], found["in_flight"]) == (12, 4, 1)
    assert found["skipped"] == {"sequence": 2, "invalid": 1}
    assert found["dropped"] == {"queue": 3, "internal": 1}
    outcomes = {name: count for name, count in found["outcomes"].items() if count}
    assert outcomes == {"match": 1, "mismatch": 1, "new_error": 1, "timeout": 1}


def test_the_document_has_outputs_timeline_and_latency() -> None:
    """It is JSON; outputs have rates and errors, minutes counts, and targets quantiles."""
    made = evidence()
    for number in range(100):
        add(made, 1.0, 1.0 if number else 3.0, START_US + number // 50 * MINUTE_US)
    found = json.loads(json.dumps(made.document(START_US + 1)))
    (output,) = found["outputs"]
    assert (output["name"], output["compared"], output["mismatched"]) == ("y", 100, 1)
    assert (output["max_abs"], output["worst"]) == (2.0, f"s{START_US}")
    assert output["interval"][0] < 0.01 < output["interval"][1]
    assert found["timeline"] == [
        {"minute_us": START_US, "compared": 50, "mismatched": 1},
        {"minute_us": START_US + MINUTE_US, "compared": 50, "mismatched": 0},
    ]
    assert found["latency"]["old"] == {"p50": 0.01, "p90": 0.01, "p99": 0.01}
    assert found["latency"]["new"]["p99"] == 0.02
    assert found["latency"]["p99_ratio"][1] == 2.0
    assert found["latency"]["median_difference"] == pytest.approx(0.01)


def test_failed_calls_are_no_agreement() -> None:
    """They are in no minute and under no output; the document says how many failed, and why."""
    made = evidence(has_noise=True)
    for number in range(5):
        add(made, 1.0, ErrorCode.INVALID_ARGUMENT, START_US + number)
        refused = result(ErrorCode.UNAVAILABLE)
        made.add_noise(compare_results(refused, refused, OutputRules()))
    add(made, 1.0, 1.0)
    found = made.document(START_US)
    assert (6, 1, 5) == tuple(found[key] for key in ("compared", "replies_compared", "failed"))
    assert [{"minute_us": START_US, "compared": 1, "mismatched": 0}] == found["timeline"]
    assert [1] == [each["compared"] for each in found["outputs"]]
    assert 0 == found["noise"]["compared"]
    (reason,) = found["reasons"]
    assert ("new_error", "invalid_argument", 5) == (
        reason["outcome"],
        reason["code"],
        reason["count"],
    )


def test_the_timeline_has_the_minutes_of_a_day() -> None:
    """Older minutes leave the timeline, but stay in the counts."""
    made = evidence()
    for minute in range(1500):
        add(made, 1.0, 1.0, START_US + minute * MINUTE_US)
    found = made.document(START_US)
    assert (len(found["timeline"]), found["compared"]) == (1440, 1500)
    assert found["timeline"][0]["minute_us"] == START_US + 60 * MINUTE_US


def test_mismatches_trip_their_guard() -> None:
    """A few wrong labels in a row trip no other guard."""
    made = evidence()
    for number in range(10):
        add(made, 1.0, 2.0, START_US + number)
    verdicts = {each["guard"]: each["verdict"] for each in made.document(START_US)["guards"]}
    assert verdicts == {"mismatch.below": "trips", "errors.below": "undecided"}


def test_noise_has_a_rate_and_a_tolerance() -> None:
    """The tolerance covers 99.9 % of 1000 pairs of replies of one server."""
    made = evidence(has_noise=True)
    rules = OutputRules()
    for number in range(1000):
        new = 1.0 + (5.0 if not number else 0.125 if number < 3 else 0.0)
        made.add_noise(compare_results(result(1.0), result(new), rules))
    noise = made.document(START_US)["noise"]
    assert (noise["compared"], noise["mismatched"]) == (1000, 3)
    assert noise["tolerance"] == {"y": 0.125}
    assert evidence().document(START_US)["noise"] is None


def test_the_noise_outputs_are_bounded() -> None:
    """A server with ever new output names cannot exhaust the memory."""
    made = evidence(has_noise=True)
    for number in range(300):
        output = ((array_tensor(f"y{number}", np.ones(1, np.float32)),),)
        made.add_noise(compare_results(Result(output), Result(output), OutputRules()))
    noise = made.document(START_US)["noise"]
    assert (noise["compared"], len(noise["tolerance"])) == (300, 256)


def test_the_document_has_the_metadata_differences() -> None:
    """Each update replaces the earlier ones."""
    made = evidence()
    made.set_metadata(("input 'x' is missing",))
    made.set_metadata(("output 'y' is new",))
    assert made.document(START_US)["metadata"] == ["output 'y' is new"]


def test_guards_resume_earlier_counts() -> None:
    """After a restart the guards trip no later than without it."""
    made, whole = evidence(), evidence()
    for _ in range(3):
        for each in (made, whole):
            add(each, 1.0, 2.0)
    resume = json.loads(json.dumps(made.document(START_US)["resume"]))
    again = evidence()
    again.resume({**resume, "since_us": START_US - 5})
    assert whole.document(START_US)["guards"] == again.document(START_US)["guards"]
    assert START_US - 5 == again.document(START_US)["since_us"]
    assert 0 == again.compared
    for each in (again, whole):
        add(each, 1.0, 2.0)
    verdict = again.document(START_US)["guards"][0]
    assert ("mismatch.below", "trips") == (verdict["guard"], verdict["verdict"])
    assert "4 of the last 4," in verdict["evidence"]
    assert "trips" == whole.document(START_US)["guards"][0]["verdict"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "has format 2; expected 1"),
        ({"since_us": "now"}, "is damaged: Expected `int`, got `str`"),
        ({"guards": {"mismatch.below": "4"}}, "is damaged: Expected `array`"),
        ({"guards": {"mismatch.below": [4]}}, "counts of mismatch.below are damaged"),
    ],
)
def test_damaged_evidence_is_rejected(change: dict[str, Any], reason: str) -> None:
    """The error has the reason, and the guards start from zero."""
    made, fresh = evidence(), evidence()
    add(made, 1.0, 2.0)
    resume = made.document(START_US)["resume"]
    with pytest.raises(UnusableEvidence, match=reason):
        fresh.resume({**resume, **change})
    assert evidence().document(START_US)["guards"] == fresh.document(START_US)["guards"]


def test_evidence_without_a_format_is_accepted() -> None:
    """Earlier versions wrote no format."""
    made, again = evidence(), evidence()
    add(made, 1.0, 2.0)
    resume = made.document(START_US)["resume"]
    del resume["format"]
    again.resume(resume)
    assert made.document(START_US)["guards"] == again.document(START_US)["guards"]
