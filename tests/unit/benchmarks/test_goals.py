"""Goals: how rows are compared with each of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.goals import FLOATS, GOALS, HTTP_602K, JSON, NOOP, Judged, judged
from benchmarks.jobs import all_jobs
from benchmarks.report import goal_table
from benchmarks.rounds import Row

PAIR = ("gateway", "triton")


def row(job: str, system: str, **fields: Any) -> dict[str, object]:
    """Return a row in the form of results.json."""
    values = {"rate": 1000.0, "cpu_us": 50.0, "ratio": 1.0, "spread": 0.1, "p50_us": 100.0}
    values |= {"added_us": 60.0, "p99_us": 140.0, "errors": 0}
    return Row(job, system, **(values | fields)).document()


def jobs(*rows: dict[str, object]) -> dict[str, Any]:
    return {"jobs": {"rows": list(rows)}}


def goal(sections: dict[str, Any], what: str) -> Judged:
    (found,) = (each for each in judged(sections) if each.what == what)
    return found


def test_a_peer_is_measured_by_its_cost() -> None:
    """The ratio of a peer is compared with both limits, and the rates are included."""
    rows = row(JSON, "gateway", rate=3000.0), row(JSON, "envoy transcoder", ratio=1.7)
    found = goal(jobs(*rows), f"{JSON}: envoy transcoder")
    assert (1.7, 3.0) == (found.measured, found.by_rate)
    assert (True, False) == (found.reaches(found.required), found.reaches(found.stretch))


def test_the_extra_cost_over_a_peer_is_limited() -> None:
    """If a peer does less work, the ratio is inverted and has an upper limit."""
    found = goal(
        jobs(row(JSON, "gateway"), row(JSON, "nginx proxy (nt)", ratio=0.4)),
        f"{JSON}: gateway / nginx proxy (nt)",
    )
    assert (2.5, False) == (found.measured, found.reaches(found.stretch))


def test_added_latency_is_compared_with_the_transcoders() -> None:
    """The latency of the canned server is not included."""
    rows = row(JSON, "gateway", added_us=40.0), row(JSON, "envoy transcoder", added_us=100.0)
    found = goal(jobs(*rows), f"{JSON}: added p50, gateway / transcoder")
    assert (0.4, True) == (found.measured, found.reaches(found.stretch))


def test_jobs_are_compared_with_one_another() -> None:
    """HTTP to gRPC is compared with HTTP to HTTP."""
    rows = (
        row(HTTP_602K, "gateway", cpu_us=100.0),
        row("binary-grpc 602KB", "gateway", cpu_us=140.0),
    )
    assert 1.4 == goal(jobs(*rows), "602KB: binary-grpc / binary-http").measured


def test_parsing_is_compared_with_simdjson_alone() -> None:
    """Codecs and jobs of one run are combined for one goal."""
    sections = jobs(row(FLOATS, "gateway", cpu_us=2200.0))
    timing = {"codec": "simdjson alone", "step": "decode", "micros": [1.0, 2000.0, None]}
    sections["codecs"] = {"rows": [timing | {"growth": None, "peer_us": None}]}
    found = goal(sections, f"{FLOATS}: gateway / simdjson alone")
    assert (1.1, True) == (found.measured, found.reaches(found.stretch))


def test_rows_with_errors_are_ignored() -> None:
    """A row with failed requests counts as missing."""
    rows = row(NOOP, "gateway"), row(NOOP, "triton", ratio=3.0, errors=1)
    found = goal(jobs(*rows), f"{NOOP}: triton")
    assert (None, None) == (found.measured, found.reaches(found.required))


@pytest.mark.parametrize("system", ["gateway", "triton"])
def test_rows_with_a_large_spread_are_ignored(system: str) -> None:
    """More than +-15 % on either side makes the ratio meaningless."""
    sections = jobs(
        *(row(NOOP, name, ratio=3.0, spread=0.31 if name == system else 0.3) for name in PAIR)
    )
    assert goal(sections, f"{NOOP}: triton").measured is None
    steady = jobs(*(row(NOOP, name, ratio=3.0, spread=0.3) for name in PAIR))
    assert 3.0 == goal(steady, f"{NOOP}: triton").measured


def test_goals_without_results_are_open() -> None:
    """The table lists every goal with dashes."""
    found = judged({})
    assert [each.what for each in GOALS] == [each.what for each in found]
    assert {None} == {each.measured for each in found}
    lines = goal_table(found).splitlines()
    assert {"-"} == {word for line in lines[1:] for word in line.split()[-2:]}


def test_goals_refer_to_measured_systems() -> None:
    """Each goal about a system of a job names an existing one; rest-proxy is not available."""
    available = {f"{job.name}: {each.name}" for job in all_jobs() for each in job.contenders}
    named = {each.what for each in GOALS if each.by_rate is not None}
    assert {f"{JSON}: rest-proxy"} == named - available


@pytest.mark.parametrize("what", [each.what for each in GOALS])
def test_goals_have_a_limit(what: str) -> None:
    """Each goal is unique and has at least one limit."""
    (found,) = (each for each in GOALS if each.what == what)
    assert (found.required, found.stretch) != (None, None)


def test_memory_is_reported_per_request() -> None:
    """The memory of eight forwarded requests is divided by eight."""
    row = {"what": "passed on", "requests": 8, "peak_mib": 4.0, "allowed_mib": 8.0}
    found = goal({"held": {"rows": [row]}}, "memory: MiB for each forwarded 16 MiB")
    assert (0.5, True) == (found.measured, found.reaches(found.required))


def test_two_workers_are_compared_with_one() -> None:
    """The goal is the ratio of the second row, and open without a measurement."""
    what = f"{JSON}: cpu us with 2 workers / 1"
    assert goal({}, what).measured is None
    rows = [row(JSON, "gateway"), row(JSON, "gateway, 2 workers", ratio=1.04)]
    found = goal({"workers": {"rows": rows}}, what)
    assert (1.04, True) == (found.measured, found.reaches(found.required))
