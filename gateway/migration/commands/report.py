"""The command `report`: two recordings of the same calls, as a page and as Markdown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gateway import __version__
from gateway.cli.output import FAILED, WRONG_USAGE, fail, print_note, write_bytes
from gateway.cli.report.blocks import html_page, markdown_page
from gateway.ir.texts import utc_text
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.directory import UPSTREAM
from gateway.migration.captures.segment_reader import UnreadableSegment
from gateway.migration.commands.capture import open_capture
from gateway.migration.commands.comparison import (
    CompareOption,
    FailIfOption,
    FailUnlessOption,
    judged,
    load_migration,
    parse_conditions,
)
from gateway.migration.commands.results import open_results
from gateway.migration.compare.conditions import Condition
from gateway.migration.compare.output_rules import rules_of
from gateway.migration.evidence.guards import Guards
from gateway.migration.package_rules import named_rule
from gateway.migration.replay.differences import compare_captures
from gateway.migration.replay.times import COMMAND, REPLAYED, SERVER, STARTED
from gateway.migration.report.report import (
    RecordedSide,
    ReportEvidence,
    ReportFacts,
    report_sections,
)
from gateway.migration.settings import CompareConfig, RuleChoice


def report(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A capture of the old server.")],
    new: Annotated[
        list[str],
        typer.Argument(
            metavar="NEW...", help="Results of `replay -o`, of all shards; or another capture."
        ),
    ],
    html: Annotated[
        Path | None, typer.Option("-o", "--html", metavar="FILE", help="Write a page of HTML.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown; - for standard output.")
    ] = None,
    compare: CompareOption = None,
    fail_if: FailIfOption = None,
    fail_unless: FailUnlessOption = None,
) -> None:
    """Write a report on the replies of two servers to the same calls.

    It shows elements of tensors where both recordings have them. Equal recordings give equal bytes.

    Exit status: 0 conditions and guards hold, 1 they do not or a shard is missing, 2 wrong usage or
    no capture.

    Example: gateway report capture results -o report.html
    """
    if html is None and markdown is None:
        fail("nothing to write; expected -o FILE or --markdown FILE", WRONG_USAGE)
    conditions = parse_conditions(fail_if, fail_unless)
    verdict, holds = write_report(old, new, compare, conditions, html=html, markdown=markdown)
    print_note(f"verdict: {verdict}")
    if not holds:
        raise typer.Exit(FAILED)


def write_report(
    old: str,
    new: Sequence[str],
    compare: str | None,
    conditions: Sequence[Condition],
    *,
    html: Path | None = None,
    markdown: Path | None = None,
) -> tuple[str, bool]:
    """Write the report on two recordings; return its verdict, and whether all conditions hold.

    Args:
        old: The capture of the old server.
        new: The captures of the new server.
        compare: The flag --compare.
        conditions: The conditions that the flags name.
        html: File of the page; None for none.
        markdown: File of the same in Markdown; None for none.
    """
    migration = load_migration(compare)
    guards, evidence = Guards(migration.guards), ReportEvidence()
    a, b = open_capture(old), open_results(new)
    lost: Counter[str] = Counter()

    try:
        rules = rules_of(migration.compare, named_rule)
        summary = compare_captures(
            a, b, rules, lambda reason: lost.update([reason]), evidence.add, guards
        )
    except UnreadableSegment as error:
        fail(str(error), WRONG_USAGE)
    lost["in one recording only"] = summary.missing
    for side, capture in (("old", a), ("new", b)):
        for reason, count in capture.dropped_calls().items():
            lost[f"not recorded, {side}: {reason}"] += count
        lost[f"unreadable, {side}"] = len(capture.problems)
    guards.ignore_times(summary.times_problem)
    judgement = judged(summary, conditions, guards)
    name = compare.rpartition("#")[2] if compare is not None else "replies of two servers"
    facts = ReportFacts(
        title=f"Migration report: {name}",
        verdict=judgement.text,
        summary=summary,
        evidence=evidence,
        guards=judgement.guards,
        conditions=judgement.checked,
        lost=lost,
        servers=[
            server_row("old", evidence.old, a.description()),
            server_row("new", evidence.new, b.description()),
        ],
        command=b.description().get(COMMAND, ""),
        method=[*_rules(migration.compare), *_files("old", a), *_files("new", b), _VERSION],
    )
    sections = report_sections(facts)
    if html is not None:
        write_bytes(_file_of(html), html_page(facts.title, sections))
    if markdown is not None:
        write_bytes(_file_of(markdown), markdown_page(facts.title, sections))
    return judgement.text, not judgement.is_failure and bool(summary.calls)


def _file_of(path: Path) -> Path | None:
    """Return the file of a flag; None for "-", standard output."""
    return None if str(path) == "-" else path


_VERSION = ("gateway", __version__)


def server_row(
    side: str, found: RecordedSide, notes: Mapping[str, str]
) -> tuple[str, str, str, str, str]:
    """Return a server as the recording names it, with its version, models and calls."""
    names = [notes[REPLAYED]] if REPLAYED in notes else _targets(found, notes)
    calls = f"{found.calls}"
    if STARTED in notes:
        calls += f", sent from {notes[STARTED]} UTC on"
    elif found.calls:
        calls += f", from {utc_text(found.first_us)} to {utc_text(found.last_us)} UTC"
    texts = (", ".join(names), notes.get(SERVER, ""), ", ".join(found.models))
    server, version, models = (text or "unknown" for text in texts)
    return side, server, version, models, calls


def _targets(found: RecordedSide, notes: Mapping[str, str]) -> list[str]:
    """Return the targets of the calls of a gateway, each with the addresses of its upstream."""
    urls = [notes.get(f"{UPSTREAM}{each.partition('/')[0]}") for each in found.targets]
    return [
        f"{each} ({url})" if url else each for each, url in zip(found.targets, urls, strict=True)
    ]


def _rules(config: CompareConfig) -> list[tuple[str, str]]:
    named = [("rule of other outputs", config.default)]
    named += [(f"rule of {name}", choice) for name, choice in config.outputs.items()]
    return [(name, _rule_text(choice)) for name, choice in named]


def _rule_text(choice: RuleChoice) -> str:
    if isinstance(choice, str):
        return choice
    keys = choice.model_dump(exclude_defaults=True)
    return ", ".join(f"{key} {value}" for key, value in keys.items()) or "tolerance of the datatype"


def _files(side: str, capture: Capture) -> list[tuple[str, str]]:
    """Return the files of a capture, with the SHA-256 that its manifest has of them."""
    sums = capture.checksums()
    return [
        (f"{side} file", f"{it.name} {sums.get(it.name, '')}".strip()) for it in capture.segments
    ]
