"""The commands `replay` and `diff`: recorded calls sent to another server, and two recordings."""

import asyncio
import re
import shlex
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress

from gateway.app import complete_service, connect
from gateway.app.run.run import loop_factory
from gateway.cli.calling.server_flags import ServerFlags, server_flags
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    OutputFormat,
    fail,
    format_table,
    parse_or_fail,
    print_json,
    print_note,
    print_text,
)
from gateway.ir.calls import ServerMetadataRequest
from gateway.ir.context import Context
from gateway.ir.errors import GatewayError
from gateway.ir.texts import printable
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.directory import PERCENT
from gateway.migration.captures.segment_reader import UnreadableSegment
from gateway.migration.captures.segment_writer import SegmentWriter
from gateway.migration.commands.capture import CaptureArgument, open_capture, print_problems
from gateway.migration.commands.comparison import (
    CompareFile,
    CompareOption,
    FailIfOption,
    FailUnlessOption,
    Judgement,
    MismatchesOption,
    judged,
    load_compare_file,
    load_migration,
    open_list,
    parse_conditions,
)
from gateway.migration.commands.report import write_report
from gateway.migration.commands.results import open_results, parse_shard_here, results_folder
from gateway.migration.compare.output_rules import rules_of
from gateway.migration.compare.reasons import reason_line
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.summary import Summary
from gateway.migration.evidence.guards import Guards
from gateway.migration.evidence.verdicts import GuardVerdict
from gateway.migration.package_rules import named_rule
from gateway.migration.replay.differences import ComparedCall, compare_captures
from gateway.migration.replay.forwarded import codec_of
from gateway.migration.replay.mismatch_list import MismatchList
from gateway.migration.replay.replay import (
    LATE_S,
    Replay,
    ReplayOptions,
    ReplayOutcome,
    ReplayReport,
    replayed_call,
)
from gateway.migration.replay.selection import Selection, parse_models, parse_selection
from gateway.migration.replay.shards import SHARD, WHOLE, Shard
from gateway.migration.replay.times import (
    COMMAND,
    REPLAYED,
    SERVER,
    STARTED,
    description,
    replay_problem,
)
from gateway.migration.replay.wire_replay import RecordedRequests
from gateway.migration.settings import MigrationConfig
from gateway.processes.process import freeze_startup_objects
from gateway.service import Service
from gateway.settings.private_files import make_directory
from gateway.settings.units import Url, parse_duration, parse_url
from gateway.shadow.records.records import OK, REFUSED, RecordedCall

_QUESTION_S: Final = 5.0

FormatOption = Annotated[OutputFormat, typer.Option("--output", help="Format of the data.")]


@server_flags
def replay(  # noqa: PLR0913, PLR0917  # one for each flag
    capture: CaptureArgument,
    against: Annotated[str, typer.Option("--against", metavar="URL", help="The new server.")],
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="URL", help="Compare with this server's replies."),
    ] = None,
    compare: CompareOption = None,
    fail_if: FailIfOption = None,
    fail_unless: FailUnlessOption = None,
    pace: Annotated[str, typer.Option(metavar="recorded|max", help="When calls are sent.")] = "max",
    speed: Annotated[
        str | None, typer.Option(metavar="2x", help="Multiple of the recorded pace.")
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="500/s", help="Calls per second.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Calls in flight; 64 for --pace max.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of calls to send.")] = None,
    where: Annotated[
        str, typer.Option(metavar="CONDITIONS", help="Such as 'model=fraud and protocol=trtis.*'.")
    ] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW[:VERSION]", help="Another name of a model; repeatable."),
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Timeout of each call.")] = "60s",
    wire: Annotated[
        bool,
        typer.Option("--wire", help="Send the recorded messages to a server of the same protocol."),
    ] = False,
    results: Annotated[
        str | None,
        typer.Option("-o", "--results", metavar="DIR|URL", help="Record the new replies here."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Send only part I of N, from 0; auto/N in a pod of an indexed Job.",
        ),
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write a page on old and new replies."),
    ] = None,
    mismatches: MismatchesOption = None,
    server: ServerFlags = ServerFlags(),  # noqa: B008  # frozen
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Send the calls of a capture to a server of any protocol, and compare the replies.

    Exit status: 0 the conditions hold, 1 they do not or calls could not be sent, 2 wrong usage or
    no capture.

    Example: gateway replay capture --against oip+grpc://127.0.0.1:9001
    """
    compared = load_compare_file(compare)
    guards = Guards(compared.migration.guards)
    conditions = parse_conditions(fail_if, fail_unless)
    options, mode = _options(pace, speed, rate, concurrency, limit, timeout, model or [])
    options = replace(options, is_wire=wire)
    selection = parse_or_fail(parse_selection, where) if where else Selection()
    urls = [parse_or_fail(parse_url, each) for each in (against, reference) if each is not None]
    if wire and (reference is not None or model):
        fail("--wire sends messages as they are; --reference and --model do not apply", WRONG_USAGE)
    if report_file is not None and reference is not None:
        fail("--report shows recorded replies; --reference does not apply", WRONG_USAGE)
    part = _shard(shard, limit, report_file)
    found = open_capture(capture)
    listed = open_list(mismatches)
    freeze_startup_objects()  # a collection takes 40 ms, which makes calls late
    with results_folder(results, part, needs_one=report_file is not None) as directory:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                report = runner.run(
                    _run(
                        found,
                        urls,
                        options,
                        compared,
                        guards,
                        selection,
                        directory,
                        server,
                        listed=listed,
                        part=part,
                    )
                )
        except LookupError as error:
            fail(str(error.args[0]), WRONG_USAGE)
        except (OSError, ValueError, sqlite3.Error) as error:
            fail(f"replay failed: {error}")
        if report_file is not None and directory is not None:
            write_report(capture, [str(directory)], compare, conditions, html=report_file)
    judgement = judged(report.summary, conditions, guards)
    verdict = _verdict(report, judgement, part)
    if output is OutputFormat.JSON:
        print_json(_document(report, mode, verdict, judgement))
    else:
        _print_report(report, mode, verdict, judgement.guards)
    print_problems(found.problems)
    is_empty = not report.sent and part is None
    if judgement.is_failure or report.failed or report.stopped or is_empty:
        raise typer.Exit(FAILED)


def _shard(text: str | None, limit: int | None, report_file: Path | None) -> Shard | None:
    """Return the shard of the flag, with which some others make no sense."""
    if text is None:
        return None
    if limit is not None:
        fail("--limit would leave out calls of every shard; expected --where", WRONG_USAGE)
    if report_file is not None:
        fail("--report needs all shards; expected `gateway report` afterwards", WRONG_USAGE)
    return parse_or_fail(parse_shard_here, text)


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A capture, or results of a replay.")],
    new: Annotated[
        list[str],
        typer.Argument(metavar="B...", help="Others of the same calls, such as all shards."),
    ],
    compare: CompareOption = None,
    fail_if: FailIfOption = None,
    fail_unless: FailUnlessOption = None,
    mismatches: MismatchesOption = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Compare the replies of two captures, call by call, by their request ids.

    Exit status: 0 the conditions hold, 1 they do not or a shard is missing, 2 wrong usage or no
    capture.

    Example: gateway diff capture results --fail-if 'mismatch>0.1%'
    """
    migration = load_migration(compare)
    guards = Guards(migration.guards)
    conditions = parse_conditions(fail_if, fail_unless)
    a, b = open_capture(old), open_results(new)
    skipped: Counter[str] = Counter()
    try:
        summary = _compare(a, b, migration, guards, open_list(mismatches), skipped)
    except UnreadableSegment as error:
        fail(str(error), WRONG_USAGE)
    except OSError as error:
        fail(f"cannot write {mismatches}: {error.strerror}")
    guards.ignore_times(summary.times_problem)
    judgement = judged(summary, conditions, guards)
    if output is OutputFormat.JSON:
        print_json(
            {
                **summary.document(),
                "skipped": dict(skipped),
                "verdict": judgement.text,
                "failures": judgement.failures,
                "guards": [each.document() for each in judgement.guards],
            }
        )
    else:
        print_text(
            f"{summary.compared} calls compared, {_failed_text(summary)}, "
            f"{summary.missing} in one capture only"
        )
        _print_summary(summary, judgement.guards)
        print_text(f"verdict: {judgement.text}")
    if summary.times_problem:
        print_note(f"gateway: times are not judged: {summary.times_problem}")
    for reason, count in skipped.items():
        print_note(printable(f"gateway: {count} calls not compared: {reason}"))
    print_problems([*a.problems, *b.problems])
    if judgement.is_failure or not summary.calls:
        raise typer.Exit(FAILED)


def _compare(
    a: Capture,
    b: Capture,
    migration: MigrationConfig,
    guards: Guards,
    listed: MismatchList | None,
    skipped: Counter[str],
) -> Summary:
    """Compare two captures, and list the calls that differ."""

    def add(call: ComparedCall) -> None:
        if listed is not None:
            listed.add(call.old, call.comparison, call.new.call.code, call.new.call.error)

    rules = rules_of(migration.compare, named_rule)
    summary = compare_captures(a, b, rules, lambda reason: skipped.update([reason]), add, guards)
    if listed is not None:
        listed.close()
    return summary


_SPEED: Final = re.compile(r"([0-9.]+)x?")
_RATE: Final = re.compile(r"([0-9.]+)(/s)?")


def _options(  # one for each flag
    pace: str,
    speed: str | None,
    rate: str | None,
    concurrency: int | None,
    limit: int | None,
    timeout: str,
    models: list[str],
) -> tuple[ReplayOptions, str]:
    """Return the options, and the flags that say when calls are sent."""
    if pace not in {"recorded", "max"}:
        fail(f"--pace is {pace!r}; expected recorded or max", WRONG_USAGE)
    if speed is not None and rate is not None:
        fail("--speed and --rate exclude each other", WRONG_USAGE)
    factor = 1.0 if pace == "recorded" else None
    mode = f"--pace {pace}"
    if speed is not None:
        factor, mode = _number(_SPEED, speed, "--speed", "2x"), f"--speed {speed}"
    per_s = None
    if rate is not None:
        per_s, mode = _number(_RATE, rate, "--rate", "500/s"), f"--rate {rate}"
    options = ReplayOptions(
        speed=factor,
        rate=per_s,
        concurrency=concurrency,
        limit=limit,
        timeout_s=parse_or_fail(parse_duration, timeout),
        models=parse_or_fail(parse_models, models),
    )
    return options, mode


def _number(form: re.Pattern[str], text: str, flag: str, example: str) -> float:
    found = form.fullmatch(text)
    try:
        value = float(found[1]) if found is not None else 0.0
    except ValueError:
        value = 0.0
    if value <= 0:
        fail(f"{flag} is {text!r}; expected a number above 0, such as {example}", WRONG_USAGE)
    return value


async def _run(  # noqa: PLR0913, PLR0917  # what the flags become
    capture: Capture,
    urls: Sequence[Url],
    options: ReplayOptions,
    compared: CompareFile,
    guards: Guards,
    selection: Selection,
    results: Path | None,
    server: ServerFlags,
    *,
    listed: MismatchList | None,
    part: Shard | None,
) -> ReplayReport:
    """Connect, send the calls, and close; Ctrl-C ends the sending."""
    adapt = partial(RecordedRequests, headers=server.metadata) if options.is_wire else None
    targets = compared.new, compared.old
    forms = [compared.options(each, url) for each, url in zip(targets, urls, strict=False)]
    connections = [
        (connect(url, options=form, adapt=adapt, tls=server.tls), url)
        for url, form in zip(urls, forms, strict=True)
    ]
    # A layer that completes a call would write its message anew.
    services = [
        connected.service
        if options.is_wire
        else compared.named(
            target,
            complete_service(connected, url, server.headers, compared.described),
            has_models=bool(options.models),
        )
        for (connected, url), target in zip(connections, targets, strict=False)
    ]
    writer = await _results_writer(results, str(urls[0]), part, services[0])
    is_terminal = sys.stderr.isatty()
    progress = Progress(console=Console(stderr=True), disable=not is_terminal)
    task = progress.add_task("replay", total=options.limit)

    def done(record: RecordedCall, outcome: ReplayOutcome, found: Comparison | None) -> None:
        if is_terminal:
            progress.advance(task)
        if writer is not None:
            writer.add(record, outcome)
        if listed is not None and found is not None:
            error = outcome.result.error
            listed.add(record, found, OK if error is None else error.value, outcome.error)

    running = Replay(
        services[0],
        options,
        rules_of(compared.migration.compare, named_rule),
        reference=services[1] if len(services) > 1 else None,
        codec=codec_of(urls[0], forms[0]),
        on_done=done,
        guards=guards,
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, running.stop)
    recorded_percent = _percent(capture)
    dropped = sum(capture.dropped_calls().values())
    try:
        with progress:
            report = await running.run(_selected(capture, selection, part))
        if writer is not None and not report.stopped:
            writer.has_all = True
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for connected, _ in connections:
            await connected.close()
        problem = replay_problem(
            options,
            lag_s=running.report.lag_p99_s,
            recorded_percent=recorded_percent,
            is_selection=selection != Selection() or part is not None,
            left_out=running.report.left_out.total(),
            dropped_percent=100 * dropped / max(1, dropped + running.report.sent),
        )
        if writer is not None:
            writer.close(description(options, problem))
        if listed is not None:
            listed.close()
    if len(urls) == 1:  # else both servers got the calls at the same time
        report.summary.times_problem = problem
        guards.ignore_times(problem)
    return report


async def _server_text(service: Service) -> str:
    """Return the name and version that a server says of itself; "" where its protocol has none."""
    context = Context(deadline=monotonic() + _QUESTION_S)
    try:
        found = await service(ServerMetadataRequest(context=context))
    except GatewayError:  # the report says that it is unknown
        return ""
    return f"{found.name} {found.version}".strip()


def shown_command(arguments: Sequence[str]) -> str:
    """Return a command as a shell reads it, without the values of headers."""
    shown = []
    for before, each in zip(("", *arguments), arguments, strict=False):
        flag, equals, header = each.rpartition("--header=")
        if before == "--header" or (equals and not flag):
            name = (header if equals else each).partition("=")[0]
            shown.append(f"{equals}{name}=...")
        else:
            shown.append(each)
    return shlex.join(shown)


def _percent(capture: Capture) -> float:
    """Return the share of the calls of clients that were recorded, in percent."""
    try:
        return float(capture.description().get(PERCENT, 100.0))
    except ValueError:
        return 0.0


def _selected(capture: Capture, selection: Selection, part: Shard | None) -> Iterator[RecordedCall]:
    calls = (call for call in capture.calls() if selection.includes(call))
    return calls if part is None else filter(part.includes, calls)


class _ResultsWriter:
    """Writes the new replies as a capture, which `gateway diff` reads.

    Attributes:
        has_all: Whether the replies of all calls are written.
    """

    def __init__(self, directory: Path, target: str, part: Shard | None, server: str) -> None:
        make_directory(directory)
        notes = {
            COMMAND: shown_command(["gateway", *sys.argv[1:]]),
            STARTED: f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
            SERVER: server,
        }
        shard = {} if part is None else {SHARD: str(part)}
        self.has_all = False
        self._segment = SegmentWriter(directory, {REPLAYED: target, **notes, **shard})
        self._segment.begin()
        self._target = target

    def add(self, record: RecordedCall, outcome: ReplayOutcome) -> None:
        self._segment.add(replayed_call(record, outcome, self._target))
        if not self._segment.calls % 64:
            self._segment.commit()
            self._segment.begin()

    def close(self, notes: Mapping[str, str]) -> None:
        self._segment.begin()
        self._segment.note({**notes, **({WHOLE: "yes"} if self.has_all else {})})
        self._segment.commit()
        self._segment.seal({})


async def _results_writer(
    directory: Path | None, target: str, part: Shard | None, service: Service
) -> _ResultsWriter | None:
    """Return what writes the results to a directory; None without one."""
    if directory is None:
        return None
    return _ResultsWriter(directory, target, part, await _server_text(service))


def _verdict(report: ReplayReport, judgement: Judgement, part: Shard | None) -> str:
    if report.stopped:
        return "interrupted"
    if report.failed:
        return f"failed, {report.failed} calls could not be sent"
    if not report.sent:
        return "failed, no call was sent" if part is None else f"no call is in shard {part}"
    return judgement.text


def _failed_text(summary: Summary) -> str:
    """Return how many calls failed at the new server, or never came to one or to be compared."""
    alike = f" ({summary.failed_alike} as at the old server)" if summary.failed_alike else ""
    refused = f", {summary.refused} {REFUSED}" if summary.refused else ""
    forwarded = f", {summary.forwarded} forwarded unread" if summary.forwarded else ""
    return f"{summary.failed} failed{alike}{refused}{forwarded}"


def _print_report(
    report: ReplayReport, mode: str, verdict: str, verdicts: Sequence[GuardVerdict]
) -> None:
    left_out = sum(report.left_out.values())
    print_text(
        f"{report.sent} calls in {report.seconds:.1f} s ({mode}), "
        f"{_failed_text(report.summary)}, {left_out} left out"
    )
    for reason, count in report.left_out.items():
        print_text(printable(f"left out: {count} calls: {reason}"))
    if report.uncompared:
        print_text(f"not compared: {report.uncompared} calls without recorded outputs")
    for reason, count in report.unreadable.items():
        print_text(printable(f"not compared: {count} calls: {reason}"))
    if report.summary.times_problem:
        print_note(f"gateway: times are not judged: {report.summary.times_problem}")
    elif report.lag_p99_s > LATE_S:
        lag_ms = report.lag_p99_s * 1e3
        print_note(f"gateway: the schedule was late: 99% of the calls within {lag_ms:.0f} ms")
    _print_summary(report.summary, verdicts)
    print_text(f"verdict: {verdict}")


def _print_summary(summary: Summary, verdicts: Sequence[GuardVerdict]) -> None:
    rows = []
    for name, each in summary.outputs.items():
        error = "-" if each.errors is None else f"{each.errors.max_abs:.2g}"
        rows.append((name, *each.rate_texts(), error, each.worst or "-"))
    if rows:
        head = ("output", "compared", "mismatched", "rate", "95% interval", "max abs", "worst call")
        print_text(format_table(head, rows, right=(1, 2, 3, 4, 5)))
    for name, each in summary.outputs.items():
        if each.shape_text:
            print_text(printable(f"output {name}: {each.shape_text}"))
    for reason in summary.reasons:
        print_text(reason_line(reason.document()))
    if verdicts:
        found = [(each.guard, each.standing.value, each.evidence) for each in verdicts]
        print_text(format_table(("guard", "verdict", "evidence"), found))


def _document(
    report: ReplayReport, mode: str, verdict: str, judgement: Judgement
) -> dict[str, Any]:
    return {
        "mode": mode,
        "sent": report.sent,
        "not_received": report.failed,
        "left_out": dict(report.left_out),
        "not_compared": report.uncompared + report.unreadable.total(),
        "seconds": report.seconds,
        "lag_p99_s": report.lag_p99_s,
        **report.summary.document(),
        "verdict": verdict,
        "failures": judgement.failures,
        "guards": [each.document() for each in judgement.guards],
    }
