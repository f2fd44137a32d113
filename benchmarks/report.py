"""The tables and the page of a run, as plain text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import batching, counts, kept, machine, resident, stages, start, tail
from benchmarks.codecs import Timing
from benchmarks.goals import Judged, judged
from benchmarks.rounds import Row

_TITLES = {
    "jobs": "Jobs",
    "codecs": "Codecs",
    "stages": "Stages of a small request",
    "batches": "Batches",
    "kept": "Cached responses",
    "held": "Memory of large requests",
    "workers": "Workers",
    "start": "Start",
    "tail": "Latencies at a fixed rate",
}
_HEAD = (
    "The benchmark runner writes this page from results.json. README.md explains how to read it. "
    "NOTES.md has other measurements."
)
_COUNTS = (
    "`make counts` has counted these, on a simulated processor. *first of a connection* is the "
    "cost of a connection that carries one request. The first 100 requests of a start arrive on 32 "
    "connections, and the figure is that of one of them. The reload replaces the upstream with its "
    "connections, the routes and all layers. It keeps the connections of clients."
)
_GOALS = (
    "Each goal has a *required* value, a *stretch* value, or both. The value of a peer is its CPU "
    "time per request in units of the gateway's, unless the name says otherwise. *by req/s* is the "
    "rate of the gateway in units of the peer's. A dash means that it was not measured, that a "
    "request failed, or that the rounds of a row differ by more than +-15 %."
)


def job_table(rows: Sequence[Row]) -> str:
    """Return the table of jobs, with a blank line between two jobs."""
    head = ["job", "system", "req/s", "cpu us", "x gateway", "+-%", "p50 us", "added us", "p99 us"]
    head += ["errors", "stolen %"]
    return _table(head, [*_job_lines(rows)], left=2)


def _job_lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    before = rows[0].job if rows else ""
    for row in rows:
        if row.job != before:
            yield []
        before = row.job
        yield [
            row.job,
            row.system,
            f"{row.rate:,.0f}",
            f"{row.cpu_us:,.1f}",
            f"{row.ratio:.2f}",
            f"{50 * row.spread:.0f}",
            f"{row.p50_us:,.0f}",
            "" if row.added_us is None else f"{row.added_us:,.0f}",
            f"{row.p99_us:,.0f}",
            str(row.errors),
            f"{100 * row.stolen:.0f}",
        ]


def codec_table(timings: Sequence[Timing]) -> str:
    """Return the table of codecs."""
    head = ["codec", "step", "small us", "602 KB us", "16 MiB us", "16M/602K", "peer", "602 KB us"]
    lines = [
        [
            timing.codec,
            timing.step,
            *(f"{value:,.1f}" for value in timing.micros),
            f"{timing.growth:.2f}",
            timing.peer,
            "" if timing.peer_us is None else f"{timing.peer_us:,.1f}",
        ]
        for timing in timings
    ]
    return _table(head, lines, left=2)


def tail_table(rows: Sequence[tail.Row]) -> str:
    """Return the table of latencies at a fixed rate."""
    head = ["job", "system", "req/s due", "requests", "p50 us", "p99 us", "p99.9 us", "errors"]
    lines = [
        [
            row.job,
            row.system,
            f"{row.rate:,}",
            f"{row.requests:,}",
            f"{row.p50_us:,.0f}",
            f"{row.p99_us:,.0f}",
            f"{row.p99_9_us:,.0f}",
            str(row.errors),
        ]
        for row in rows
    ]
    return _table(head, lines, left=2)


def batch_table(rows: Sequence[batching.Row]) -> str:
    """Return the table of batches."""
    head = ["transport", "batches", "req/s", "x alone", "p50 us", "p50 x alone", "cpu", "errors"]
    lines = [
        [
            row.way,
            "yes" if row.batches else "no",
            f"{row.rate:,.0f}",
            f"{row.speedup:.1f}",
            f"{row.p50_us:,.0f}",
            f"{row.p50_ratio:.2f}",
            f"{row.cpu:.2f}",
            str(row.errors),
        ]
        for row in rows
    ]
    return _table(head, lines, left=2)


def kept_table(rows: Sequence[kept.Row]) -> str:
    """Return the table of cached responses."""
    head = ["request", "measured at", "hit us", "miss us", "hit/miss"]
    lines = [
        [row.size, row.at, f"{row.hit_us:,.0f}", f"{row.miss_us:,.0f}", f"{row.ratio:.3f}"]
        for row in rows
    ]
    return _table(head, lines, left=2)


def held_table(rows: Sequence[resident.Held]) -> str:
    """Return the table of the memory of large requests."""
    head = ["requests", "MiB each", "answered", "refused", "before MiB", "held MiB", "most MiB"]
    lines = [
        [
            f"{row.requests} {row.what}",
            f"{row.size_mib:g}",
            str(row.answered),
            str(row.refused),
            f"{row.base_mib:.1f}",
            f"{row.held_mib:.1f}",
            f"{row.peak_mib:.1f}",
            f"{row.allowed_mib:g}",
        ]
        for row in rows
    ]
    return _table([*head, "allowed MiB"], lines, left=1)


def start_table(rows: Sequence[start.Row]) -> str:
    """Return the table of starts."""
    head = ["system", "first response ms", "least ms", "cpu ms"]
    lines = [
        [row.system, *(f"{value:,.0f}" for value in (row.first_ms, row.least_ms, row.cpu_ms))]
        for row in rows
    ]
    return _table(head, lines, left=1)


def stage_table(rows: Sequence[stages.Row]) -> str:
    """Return the table of stages, with a blank line between two ways."""
    lines: list[list[str]] = []
    for row in rows:
        if lines and lines[-1][0] != row.way:
            lines.append([])
        budget = "" if row.budget_us is None else f"{row.budget_us:.1f}"
        lines.append([row.way, row.stage, f"{row.us:.1f}", budget])
    return _table(["way", "stage", "cpu us", "budget"], lines, left=2)


def goal_table(goals: Sequence[Judged]) -> str:
    """Return the table of goals, with a dash for a goal that was not measured."""
    head = ["goal", "required", "met", "stretch", "met", "measured", "by req/s"]
    lines = [
        [
            goal.what,
            *_judgement(goal, goal.required),
            *_judgement(goal, goal.stretch),
            _number(goal.measured),
            _number(goal.by_rate),
        ]
        for goal in goals
    ]
    return _table(head, lines, left=1)


def _judgement(goal: Judged, limit: float | None) -> list[str]:
    if limit is None:
        return ["", ""]
    reached = goal.reaches(limit)
    judgement = "-" if reached is None else "yes" if reached else "no"
    return [f"{'<=' if goal.most else '>='} {limit:g}", judgement]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def page(sections: Mapping[str, Any]) -> str:
    """Return RESULTS.md: the goals, each section with its command and machine, and the counts."""
    parts = ["# Results", _HEAD]
    if "jobs" in sections:
        on = f"Measured on {machine.caption(sections['jobs']['about'])}."
        parts += ["## Goals", on, _GOALS, f"```\n{goal_table(judged(sections))}\n```"]
    for name, section in sections.items():
        about = f"`{section['words']}`\n\n```\n{machine.text(section['about'])}\n```"
        parts += [f"## {_TITLES.get(name, name)}", about, f"```\n{section['table']}\n```"]
    parts += [
        "## Instructions of a request",
        _COUNTS,
        counts.table(counts.recorded("compiled"), {}),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: list[str], lines: list[list[str]], left: int) -> str:
    widths = [
        max(len(line[index]) for line in [head, *lines] if line) for index in range(len(head))
    ]
    texts = []
    for line in [head, *lines]:
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=bool(line)))
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)
