"""`python -m benchmarks`: the jobs, or one of the other things that are measured.

`codecs`: codecs; `stages`: what a small request spends where; `sharing`: batches and caches; `all`.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import batching, codecs, kept, machine, rounds, stages
from benchmarks.jobs import all_jobs
from benchmarks.report import (
    batch_table,
    codec_table,
    job_table,
    kept_table,
    page,
    stage_table,
)
from benchmarks.rounds import Row, Settings
from benchmarks.systems import Absent


def main() -> int:
    """Parse the command line, measure, print; return the exit status."""
    arguments = _parser().parse_args()
    about = machine.describe()
    print(machine.text(about), file=sys.stderr)
    results: dict[str, object] = {"machine": about}
    tables: list[str] = []
    # What is measured is kept before the next is begun: that may fail.
    if arguments.what in ("jobs", "all"):
        rows = _jobs(arguments)
        results["jobs"] = [row.document() for row in rows]
        tables.append(job_table(rows))
        _keep(arguments, results, tables)
    if arguments.what in ("codecs", "all"):
        found = codecs.measure(arguments.only or "")
        results["codecs"] = [each.document() for each in found]
        tables.append(codec_table(found))
        _keep(arguments, results, tables)
    if arguments.what in ("stages", "all"):
        pieces = stages.measure(arguments.only or "", _say)
        results["stages"] = [row.document() for row in pieces]
        tables.append(stage_table(pieces))
        _keep(arguments, results, tables)
    if arguments.what in ("sharing", "all"):
        batches = batching.run(arguments.rounds, arguments.seconds, _say)
        results["batches"] = [row.document() for row in batches]
        tables.append(batch_table(batches))
        _keep(arguments, results, tables)
        try:
            answers = kept.run(100 * arguments.rounds, _say)
        except Absent as error:
            _say(f"  skipped: kept answers: {error}")
            return 0
        results["kept"] = [row.document() for row in answers]
        tables.append(kept_table(answers))
        _keep(arguments, results, tables)
    return 0


def _keep(arguments: argparse.Namespace, results: dict[str, object], tables: list[str]) -> None:
    """Print the last table and write what there is so far."""
    print(tables[-1], end="\n\n", flush=True)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.markdown is not None:
        words = " ".join(["python -m benchmarks", *sys.argv[1:]])
        about = results["machine"]
        assert isinstance(about, dict)
        arguments.markdown.write_text(page(words, machine.text(about), tables))


def _jobs(arguments: argparse.Namespace) -> list[Row]:
    wanted = frozenset(filter(None, arguments.systems.split(",")))
    rows: list[Row] = []
    for job in all_jobs():
        if arguments.only is None or arguments.only in job.name:
            settings = Settings(arguments.rounds, arguments.seconds)
            rows += rounds.run(job, settings, wanted, _say)
    return rows


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["jobs", "codecs", "stages", "sharing", "all"],
        default="jobs",
    )
    parser.add_argument("--only", metavar="TEXT", help="jobs or codecs whose name holds TEXT")
    parser.add_argument(
        "--systems", default="", metavar="A,B", help="systems whose names hold A or B"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write a page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
