"""Instructions and cache misses of a request: how they are counted and compared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import counts
from benchmarks.counts import (
    CannotCountError,
    Count,
    all_ways,
    dearer,
    events,
    grown,
    load,
    measure,
    table,
)
from benchmarks.counts import record as write
from benchmarks.stages import REBUILT, RELOAD, SENT_ON, START, Bench, first_ways, run

_ROOT = Path(__file__).parents[3]

COUNT = Count("json-grpc", 400_000, 9_000, 7_000, 5)


def test_reads_the_totals_of_cachegrind() -> None:
    """Two lines of the output file have the names of the events and their sums."""
    text = "desc: I1 cache: 32768 B\nevents: Ir I1mr\nfl=x.c\nfn=main\n7 10 2\nsummary: 12 3\n"
    assert events(text) == {"Ir": 12, "I1mr": 3}


@pytest.mark.parametrize(("instructions", "problems"), [(412_000, 0), (412_001, 1), (1, 0)])
def test_reports_growth_of_more_than_three_percent(instructions: int, problems: int) -> None:
    """3 % more than recorded is allowed, and one instruction above it is not."""
    found = [Count("json-grpc", instructions, 0, 0, 0), Count("new", 10**9, 0, 0, 0)]
    assert problems == len([*grown(found, {"json-grpc": COUNT})])


@pytest.mark.parametrize(("instructions", "problems"), [(460_000, 0), (460_001, 1)])
def test_reports_kinds_of_requests_beyond_their_bounds(
    instructions: int, problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 forms may cost 15 % more than one, which was counted now or was recorded."""
    monkeypatch.setattr(counts, "BUILD", "compiled")
    forms = Count("json-grpc forms", instructions, 0, 0, 0)
    assert problems == len([*dearer([forms], {"json-grpc": COUNT})])
    assert problems == len([*dearer([COUNT, forms], {})])
    assert [] == [*dearer([forms], {})]


@pytest.mark.parametrize(("instructions", "problems"), [(399_999, 0), (400_000, 1)])
def test_a_message_that_is_sent_on_is_cheaper(instructions: int, problems: int) -> None:
    """It is read as one that is written anew, and nothing is written."""
    rebuilt, passed = (
        replace(COUNT, way=way, instructions=each)
        for way, each in ((REBUILT, 400_000), (SENT_ON, instructions))
    )
    assert problems == len([*dearer([rebuilt, passed], {})])
    assert problems == len([*dearer([passed], {REBUILT: rebuilt})])
    assert [] == [*dearer([passed], {})]


def test_shows_the_change_since_the_record() -> None:
    """Each way has a row, with the change of its instructions."""
    text = table([Count("json-grpc", 500_000, 1, 2, 3)], {"json-grpc": COUNT})
    assert text.splitlines()[-1] == "| json-grpc | 500,000 | +25.0% | 1 | 2 | 3 |"


def test_recorded_counts_round_trip(tmp_path: Path) -> None:
    """They are compared only within the same version of Python."""
    path = tmp_path / "counts.json"
    write([COUNT], path)
    assert load(path) == {"json-grpc": COUNT}
    path.write_text(json.dumps({**json.loads(path.read_text()), "python": "3.4.0"}))
    with pytest.raises(CannotCountError, match=r"recorded with Python 3\.4\.0"):
        load(path)


def test_keeps_the_record_of_the_other_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each build is compared with its own counts."""
    path = tmp_path / "counts.json"
    for build, instructions in (("compiled", 300_000), ("plain Python", 400_000)):
        monkeypatch.setattr(counts, "BUILD", build)
        write([Count("json-grpc", instructions, 0, 0, 0)], path)
    assert load(path)["json-grpc"].instructions == 400_000
    monkeypatch.setattr(counts, "BUILD", "compiled")
    assert load(path)["json-grpc"].instructions == 300_000


def test_first_requests_are_counted_without_a_warm_up() -> None:
    """The 100 requests after a start are compared with none."""
    assert {(0, 100)} == {way.runs for way in first_ways() if way.moment == START}


def test_a_reload_replaces_the_upstream_before_the_first_requests() -> None:
    """Requests pass before it and after it, on the same connections."""

    async def reload(bench: Bench) -> Mapping[str, list[str]]:
        send = bench.load()
        await send(32)
        changes = await bench.reload()
        await send(32)
        return changes

    for way in first_ways():
        if way.moment == RELOAD:
            changes = run(way, reload)
            assert "upstream server" in changes["replaced"]
            assert [each for each in changes["replaced"] if each.startswith("route ")]


def test_every_way_is_recorded() -> None:
    """The record in the repository has every way of both builds."""
    document = json.loads((_ROOT / "benchmarks" / "counts.json").read_text())
    names = [way.name for way in all_ways()]
    recorded = {
        build: [count["way"] for count in counts] for build, counts in document["builds"].items()
    }
    assert {"compiled": names, "plain Python": names} == recorded


def test_reports_a_missing_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CannotCountError, match="apt-get install valgrind"):
        measure("", lambda _text: None)


def test_an_unknown_way_lists_the_known_ones() -> None:
    """A name without a match is an error."""
    with pytest.raises(CannotCountError, match="no way has 'x' in its name: json-grpc"):
        measure("x", lambda _text: None)


@pytest.mark.timeout(120)
def test_runs_each_way_in_two_processes(tmp_path: Path) -> None:
    """The process below valgrind forks a short and a long run, which both succeed."""
    words = [sys.executable, "-m", "benchmarks.counted", str(tmp_path), "json-noop"]
    subprocess.run(words, check=True, cwd=_ROOT)
    short, long = json.loads((tmp_path / "json-noop.json").read_text())
    assert short != long
