"""`python -m benchmarks WHAT`: measure the gateway and its peers. The default is `jobs`.

`jobs`: requests per second and CPU time. `codecs`: codecs without I/O. `stages`: the cost of each
stage of a small request. `sharing`: batches and caches. `memory`: memory of large requests.
`workers`: two worker processes and one. `start`: the time until the first response. `tail`:
latencies at a fixed rate. `migration`: recording, replay, mirror. `all`: all above. `profile`:
functions of a small request by the profiler of the interpreter. `path`: the files that it passes.
`report` and `chart` measure nothing: they write the page and the charts of a results.json again.
"""

import argparse
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from benchmarks import (
    batching,
    chart,
    codecs,
    counts,
    kept,
    machine,
    migration,
    report,
    resident,
    rounds,
    stages,
    start,
    tail,
    workers,
)
from benchmarks.goals import judged
from benchmarks.jobs import all_jobs
from benchmarks.progress import say
from benchmarks.rounds import Row, Settings
from benchmarks.store import Store, load
from benchmarks.systems import Absent
from gateway.telemetry.log import logs

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results.json"
_PAGE = _HERE / "RESULTS.md"
_CHART = _HERE / "chart.svg"
_KEPT_PER_ROUND = 100


def main() -> int:
    """Parse the command line, measure, print; return the exit status."""
    arguments = _parsed()
    # SIGTERM raises SystemExit, so that started processes are stopped.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    logs.configure("warning", "json")
    if arguments.what in _WRITERS:
        _WRITERS[arguments.what](arguments, load(arguments.file))
        return 0
    if arguments.what in _PRINTERS:
        print(_PRINTERS[arguments.what](arguments.only or "", say))
        return 0
    if arguments.what == "counts":
        return _counts(arguments)
    about = machine.describe()
    print(machine.text(about), file=sys.stderr)
    words = " ".join(["python -m benchmarks", *sys.argv[1:]])
    store = Store(arguments.output, about, words, resume=arguments.resume)
    failed = [name for name in _SECTIONS[arguments.what] if not _measured(name, arguments, store)]
    sections = store.finish()
    _write_page(arguments, sections)
    _write_chart(arguments, sections)
    if failed:
        say(f"failed sections: {', '.join(failed)}")
    return int(bool(failed))


def _measured(name: str, arguments: Namespace, store: Store) -> bool:
    """Measure one section, and return whether it is complete."""
    if name in store.done(name):
        return True
    try:
        return _MEASURES[name](arguments, store)
    except Absent as error:
        say(f"  skipped: {name}: {error}")
        return True
    except (RuntimeError, OSError, SubprocessError) as error:
        say(f"  failed: {name}: {error}")
        return False


def _counts(arguments: Namespace) -> int:
    """Count, print and compare; return 1 if a way has grown or nothing could be counted."""
    try:
        recorded = {} if arguments.record else counts.load()
        found = counts.measure(arguments.only or "", say)
    except counts.CannotCountError as error:
        say(str(error))
        return 1
    print(counts.table(found, recorded))
    if arguments.record:
        counts.record(found)
    problems = [*counts.grown(found, recorded), *counts.dearer(found, recorded)]
    say("\n".join(problems))
    return int(bool(problems))


def _jobs(arguments: Namespace, store: Store) -> bool:
    settings = Settings(arguments.rounds, arguments.seconds)
    name_parts = frozenset(filter(None, arguments.systems.split(",")))
    done = store.done("jobs")
    rows = [Row(**row) for row in store.sections.get("jobs", {}).get("rows", ())]
    failed = False
    for job in all_jobs():
        if job.name in done or (arguments.only is not None and arguments.only not in job.name):
            continue
        started_s = time.monotonic()
        try:
            rows += rounds.run(job, settings, name_parts, say)
        except (RuntimeError, OSError, SubprocessError) as error:
            say(f"  failed: {job.name}: {error}")
            failed = True
            continue
        done = [*done, job.name]
        documents = [row.document() for row in rows]
        store.put("jobs", documents, report.job_table(rows), done)
        say(f"  done: {job.name}, {time.monotonic() - started_s:.0f} s")
    print(report.job_table(rows), end="\n\n", flush=True)
    goals = [goal for goal in judged(store.sections) if goal.measured is not None]
    if goals:
        print(report.goal_table(goals), end="\n\n", flush=True)
    return not failed


def _codecs(arguments: Namespace, store: Store) -> bool:
    rows = codecs.measure(arguments.only or "")
    return _keep(store, "codecs", rows, report.codec_table(rows))


def _stages(arguments: Namespace, store: Store) -> bool:
    rows = stages.measure(arguments.only or "", say)
    return _keep(store, "stages", rows, report.stage_table(rows))


def _workers(arguments: Namespace, store: Store) -> bool:
    rows = workers.run(Settings(arguments.rounds, arguments.seconds), say)
    return _keep(store, "workers", rows, report.job_table(rows))


def _batches(arguments: Namespace, store: Store) -> bool:
    rows = batching.run(arguments.rounds, arguments.seconds, say)
    return _keep(store, "batches", rows, report.batch_table(rows))


def _caching(arguments: Namespace, store: Store) -> bool:
    rows = kept.run(_KEPT_PER_ROUND * arguments.rounds, say)
    return _keep(store, "kept", rows, report.kept_table(rows))


def _memory(_arguments: Namespace, store: Store) -> bool:
    rows = resident.run(say)
    return _keep(store, "held", rows, report.held_table(rows))


def _start(arguments: Namespace, store: Store) -> bool:
    name_parts = frozenset(filter(None, arguments.systems.split(",")))
    rows = start.run(arguments.rounds, name_parts, say)
    return _keep(store, "start", rows, report.start_table(rows))


def _tail(arguments: Namespace, store: Store) -> bool:
    name_parts = frozenset(filter(None, arguments.systems.split(",")))
    rows = tail.run(arguments.rounds, name_parts, say)
    return _keep(store, "tail", rows, report.tail_table(rows))


def _migration(arguments: Namespace, store: Store) -> bool:
    rows = migration.run(arguments.rounds, say)
    return _keep(store, "migration", rows, migration.table(rows))


def _keep(store: Store, name: str, rows: Any, table: str) -> bool:
    """Print and store a complete section."""
    print(table, end="\n\n", flush=True)
    store.put(name, [row.document() for row in rows], table, [name])
    return True


def _write_page(arguments: Namespace, sections: Mapping[str, Any]) -> None:
    if arguments.markdown is not None:
        arguments.markdown.write_text(report.page(sections))


def _write_chart(arguments: Namespace, sections: Mapping[str, Any]) -> None:
    if arguments.svg is not None and "jobs" in sections:
        arguments.svg.write_text(chart.svg(sections))
        curves = chart.curves(sections)
        if curves is not None:
            arguments.svg.with_name("curves.svg").write_text(curves)


_MEASURES: dict[str, Callable[[Namespace, Store], bool]] = {
    "jobs": _jobs,
    "codecs": _codecs,
    "stages": _stages,
    "batches": _batches,
    "kept": _caching,
    "held": _memory,
    "workers": _workers,
    "start": _start,
    "tail": _tail,
    "migration": _migration,
}
_SECTIONS = {
    "all": [*_MEASURES],
    "jobs": ["jobs"],
    "codecs": ["codecs"],
    "stages": ["stages"],
    "sharing": ["batches", "kept"],
    "memory": ["held"],
    "workers": ["workers"],
    "start": ["start"],
    "tail": ["tail"],
    "migration": ["migration"],
}
_PRINTERS = {"profile": stages.profile, "path": stages.path}
_WRITERS = {"report": _write_page, "chart": _write_chart}


def _parsed() -> Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=[*_SECTIONS, *_PRINTERS, *_WRITERS, "counts"], default="jobs"
    )
    parser.add_argument(
        "file", nargs="?", type=Path, default=_RESULTS, help="results.json for report and chart"
    )
    parser.add_argument("--only", metavar="TEXT", help="measure only names that contain TEXT")
    parser.add_argument(
        "--systems",
        default="",
        metavar="A,B",
        help="measure only systems whose names contain A or B",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write JSON to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page to FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the chart to FILE")
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"write {_RESULTS.name}, {_PAGE.name} and {_CHART.name} in benchmarks/; "
        f"counts: write {counts.RECORDED.name}",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue an interrupted run that wrote JSON"
    )
    arguments = parser.parse_args()
    writes = arguments.what in _WRITERS
    if arguments.record and (arguments.only is not None or arguments.systems):
        parser.error("--record needs a complete run: remove --only and --systems")
    if arguments.record or arguments.what == "report":
        arguments.markdown = arguments.markdown or _PAGE
    if arguments.record or arguments.what == "chart":
        arguments.svg = arguments.svg or _CHART
    if arguments.record and not writes:
        arguments.output = arguments.output or _RESULTS
    if arguments.resume and arguments.output is None:
        parser.error("--resume needs --record or --output, the file of the interrupted run")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
