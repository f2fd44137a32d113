"""Tables of plain text."""

from collections.abc import Iterator, Sequence

from benchmarks import batching, kept, stages
from benchmarks.codecs import Timing
from benchmarks.rounds import Row


def job_table(rows: Sequence[Row]) -> str:
    """Return the table of jobs; a blank line between one and the next."""
    head = ["job", "system", "req/s", "cpu us", "x gateway", "+-%", "p50 us", "p99 us", "errors"]
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
            f"{row.p99_us:,.0f}",
            str(row.errors),
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
    """Return the table of kept answers."""
    head = ["request", "measured at", "hit us", "miss us", "hit/miss"]
    lines = [
        [row.size, row.at, f"{row.hit_us:,.0f}", f"{row.miss_us:,.0f}", f"{row.ratio:.3f}"]
        for row in rows
    ]
    return _table(head, lines, left=2)


def stage_table(rows: Sequence[stages.Row]) -> str:
    """Return the table of stages; a blank line between one way and the next."""
    lines: list[list[str]] = []
    for row in rows:
        if lines and lines[-1][0] != row.way:
            lines.append([])
        budget = "" if row.budget_us is None else f"{row.budget_us:.1f}"
        lines.append([row.way, row.stage, f"{row.us:.1f}", budget])
    return _table(["way", "stage", "cpu us", "budget"], lines, left=2)


def page(words: str, about: str, tables: Sequence[str]) -> str:
    """Return RESULTS.md: how it was made, where, and the tables."""
    parts = ["# Results", f"Written by `{words}`; README.md says how to read it."]
    return "\n\n".join([*parts, *(f"```\n{text}\n```" for text in (about, *tables))]) + "\n"


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
