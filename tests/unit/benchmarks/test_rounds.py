"""Medians and ratios of rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.jobs import Job
from benchmarks.load import Measured
from benchmarks.machine import cpu_ticks
from benchmarks.messages import small
from benchmarks.rounds import BASE, DIRECT, Sample, least_stolen, rows_of

JOB = Job("a job", small(), 32, (), {})


def sample(cpu_us: float, p50_us: float | None = None, errors: int = 0) -> Sample:
    """Return one round of 1000 requests in 2 s; *p50_us* adds a latency."""
    lone = None if p50_us is None else Measured(10, errors, 1.0, p50_us, 2 * p50_us)
    return Sample(cpu_us, Measured(1000, errors, 2.0, 0.0, 0.0), lone)


def test_ratios_are_medians_over_pairs() -> None:
    """A busy round counts once; a system is compared with the gateway of its own round."""
    gateway = [sample(100.0, 1.0), sample(200.0), sample(100.0)]
    peer = [sample(50.0, 1.0), sample(100.0), sample(80.0)]
    own, other = rows_of(JOB, {BASE: gateway, "peer": peer})
    assert (1.0, 100.0, 500.0) == (own.ratio, own.cpu_us, own.rate)
    assert (0.5, 80.0) == (other.ratio, other.cpu_us)
    assert (100.0 - 50.0) / 80.0 == other.spread


def test_added_latency_excludes_the_canned_server() -> None:
    """The p50 of the direct call in the same round is subtracted; that call has none."""
    found = {
        BASE: [sample(1.0, 100.0), sample(1.0, 130.0), sample(1.0)],
        DIRECT: [sample(1.0, 40.0), sample(1.0, 50.0), sample(1.0)],
    }
    own, direct = rows_of(JOB, found)
    assert (70.0, 115.0, 230.0) == (own.added_us, own.p50_us, own.p99_us)
    assert direct.added_us is None


def test_servers_without_a_canned_server_add_no_latency() -> None:
    """Servers with their own models have no added latency."""
    (own,) = rows_of(JOB, {BASE: [sample(1.0, 100.0)]})
    assert own.added_us is None


def test_errors_of_all_rounds_are_counted() -> None:
    """Errors under load and of single requests count."""
    (own,) = rows_of(JOB, {BASE: [sample(1.0, 1.0, errors=1), sample(1.0, 1.0, errors=2)]})
    assert 6 == own.errors


def test_measurements_with_stolen_time_are_repeated() -> None:
    """The first one with little stolen time counts, or else the best of three."""
    messages: list[str] = []
    shares = iter([0.5, 0.1, 0.0])
    found = least_stolen(lambda: replace(sample(1.0), stolen=next(shares)), messages.append)
    assert (0.1, 1) == (found.stolen, len(messages))
    shares = iter([0.5, 0.3, 0.4])
    found = least_stolen(lambda: replace(sample(1.0), stolen=next(shares)), messages.append)
    assert (0.3, 4) == (found.stolen, len(messages))


def test_a_row_has_the_largest_stolen_share() -> None:
    """It is that of the worst round."""
    rounds = [replace(sample(1.0, 1.0), stolen=share) for share in (0.0, 0.2, 0.1)]
    (own,) = rows_of(JOB, {BASE: rounds})
    assert 0.2 == own.stolen


def test_stolen_ticks_cover_all_processors(tmp_path: Path) -> None:
    """The first line of /proc/stat has them; ticks of guests are part of others."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 1 20 60 2 3 4 5 7 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert (5, 105) == cpu_ticks(stat)
