"""The commands `gateway capture`: what a gateway has recorded, and whether it records."""

import enum
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin import (
    asks_admin,
    get_document,
    get_metrics,
    post_change,
    split_address,
)
from gateway.cli.calling.liveness import DEFAULT_ADMIN
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    print_json,
    print_note,
    print_text,
)
from gateway.ir.errors import GatewayError
from gateway.ir.texts import printable
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.location import open_captures
from gateway.migration.captures.redact import Redaction, redact
from gateway.migration.captures.segment_reader import UnreadableSegment
from gateway.migration.commands.export import WRITERS, call_document
from gateway.shadow.objects import is_object_url
from gateway.shadow.records.privacy import Payload
from gateway.shadow.records.records import INVALID_VALUES, RecordedCall

capture = typer.Typer(
    help="Start and stop recording; show, check, export and redact what is recorded.\n\n"
    "Example: gateway capture start fraud --percent 10",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_COUNTER: Final = re.compile(
    r'^gateway_capture_(sampled|calls|dropped|unread)_total(?:\{reason="(\w+)"\})? (\S+)$',
    re.MULTILINE,
)

CaptureArgument = Annotated[
    str,
    typer.Argument(
        metavar="DIR|URL",
        help="Directory of a capture, one of its files, or a URL such as s3://BUCKET/PREFIX.",
    ),
]


class ExportFormat(enum.Enum):
    """A format of `gateway capture export`."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    NPZ = "npz"
    PERF_ANALYZER = "perf-analyzer"


def open_capture(*locations: str) -> Capture:
    """Return the capture at one or several places; fail with status 2 if there is none."""
    try:
        return open_captures(locations)
    except (UnreadableSegment, ValueError) as error:
        fail(str(error), WRONG_USAGE)


def print_problems(problems: Sequence[str]) -> None:
    """Print what could not be read, the first ten and the number of the others."""
    for problem in problems[:10]:
        print_note(printable(f"gateway: skipped: {problem}"))
    if len(problems) > 10:  # noqa: PLR2004
        print_note(f"gateway: skipped: {len(problems) - 10} more")


@capture.command()
@asks_admin(metavar=None)
def start(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]... [ADDR]", help="Only calls of these models."),
    ] = None,
    percent: Annotated[
        float | None, typer.Option(metavar="5", help="Share of the calls to record.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="none|hash|full", help="What of tensors is written.")
    ] = None,
    admin: str = DEFAULT_ADMIN,
) -> None:
    """Make a running gateway record calls. Absent options are as in `capture` of its file.

    Reloads keep the change; a restart ends it. Exit status: 0 success, 1 failure, 2 usage error.

    Example: gateway capture start fraud --percent 10
    """
    models, admin = split_address(models or (), admin)
    found = {
        "models": models or None,
        "percent": percent,
        "payload": None if payload is None else _payload_of(payload, "--payload"),
    }
    given = {key: value for key, value in found.items() if value is not None}
    post_change(admin, "/capture/start", given)


@capture.command()
@asks_admin()
def stop(admin: str) -> None:
    """Make a running gateway stop recording.

    Exit status: 0 success, 1 failure, 2 usage error.

    Example: gateway capture stop
    """
    post_change(admin, "/capture/stop", {})


@capture.command()
@asks_admin()
def status(admin: str, output: OutputOption = OutputFormat.TEXT) -> None:
    """Show whether a running gateway records calls, and the counts of all its processes.

    Exit status: 0 success, 1 failure, 2 usage error.

    Example: gateway capture status
    """
    found = get_document(admin, "/capture")
    counts = _counts_of(get_metrics(admin))
    if output is OutputFormat.JSON:
        print_json(found | counts)
        return
    models = ", ".join(found["models"]) or "all models"
    what = f"{found['percent']:g}% of {models}, payload {found['payload']}"
    print_text(f"{'on' if found['enabled'] else 'off'}: {what}, in {found['directory']}")
    left_out = [f"{reason} {count}" for reason, count in counts["left_out"].items()]
    line = f"{counts['sampled']} sampled, {counts['recorded']} recorded, "
    line += f"{counts['forwarded']} forwarded, {counts['refused']} refused by the gateway, "
    print_text(f"{line}{counts['in_flight']} in flight, left out: {', '.join(left_out) or 'none'}")


def _counts_of(metrics: str) -> dict[str, Any]:
    """Return the counts of a capture in a metrics page."""
    found = {(name, reason): int(float(value)) for name, reason, value in _COUNTER.findall(metrics)}
    sampled, recorded = found.get(("sampled", ""), 0), found.get(("calls", ""), 0)
    left_out = {reason: count for (name, reason), count in found.items() if name == "dropped"}
    return {
        "sampled": sampled,
        "recorded": recorded,
        "forwarded": found.get(("unread", "forwarded"), 0),
        "refused": found.get(("unread", "refused"), 0),
        "in_flight": sampled - recorded - sum(left_out.values()),
        "left_out": left_out,
    }


@capture.command("ls")
def list_segments(directory: CaptureArgument, output: OutputOption = OutputFormat.TEXT) -> None:
    """List the files of a capture: calls, times, models, clients, dropped calls.

    Example: gateway capture ls capture
    """
    found = open_capture(directory)
    summaries = list(found.summaries())
    if output is OutputFormat.JSON:
        print_json(
            [
                {
                    "segment": each.name,
                    "open": each.is_open,
                    "calls": each.calls,
                    "forwarded": each.forwarded,
                    "refused": each.refused,
                    "bytes": each.nbytes,
                    "percent": each.percent or None,
                    "from": _time(each.first_us),
                    "to": _time(each.last_us),
                    "models": each.models,
                    "clients": each.clients,
                    "dropped": each.dropped,
                }
                for each in summaries
            ]
        )
    else:
        numbers = ("calls", "forwarded", "refused", "bytes")
        head = ("segment", *numbers, "percent", "from", "to", "models", "clients", "dropped")
        rows = [
            (
                each.name,
                str(each.calls),
                str(each.forwarded),
                str(each.refused),
                str(each.nbytes),
                each.percent or "-",
                _time(each.first_us),
                _time(each.last_us),
                _counts(each.models),
                str(len(each.clients)),
                str(sum(each.dropped.values())),
            )
            for each in summaries
        ]
        print_text(format_table(head, rows, right=(1, 2, 3, 4, 5, 9, 10)))
    print_problems(found.problems)


@capture.command()
def show(
    directory: CaptureArgument,
    call_id: Annotated[
        str, typer.Option("--id", help="Id of the call, its request id, or the id in its body.")
    ],
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show one call; all of it with `--output json`.

    Example: gateway capture show capture --id 191b-c7
    """
    found = open_capture(directory)
    try:
        call = found.call(call_id)
    except UnreadableSegment as error:
        fail(str(error))
    if call is None:
        print_problems(found.problems)
        fail(f"no call {call_id!r} in {directory}")
    try:
        document = call_document(call)
    except (GatewayError, *INVALID_VALUES) as error:
        fail(f"call {call_id} is malformed: {error}")
    if output is OutputFormat.JSON:
        print_json(document)
        return
    keys = ("id", "at", "took_us", "request_id", "client_id", "agent", "protocol", "path", "model")
    for key in (*keys, "code", "refused", "error"):
        if document[key] not in {"", None}:
            print_text(printable(f"{key:<11} {document[key]}"))
    rows = [
        (
            row.side,
            row.name,
            row.datatype or "-",
            row.shape or "-",
            str(row.size),
            _payload(row.data is not None, row.digest),
        )
        for row in call.tensors
    ]
    print_text(format_table(("side", "tensor", "datatype", "shape", "bytes", "payload"), rows))


def _payload(has_data: bool, digest: bytes | None) -> str:
    if has_data:
        return "full"
    return "not recorded" if digest is None else f"hmac {digest.hex()[:16]}"


@capture.command()
def verify(
    directory: CaptureArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Keep the calls of damaged files that are intact.")
    ] = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check checksums and manifest. Exit status: 0 whole, 1 damaged, 2 no capture.

    Example: gateway capture verify capture --repair
    """
    found = open_capture(directory)
    calls, problems = found.verify()
    kept: int | None = None
    if repair and is_object_url(directory):
        fail("--repair writes to a directory; objects stay as they are", WRONG_USAGE)
    if repair and problems:
        try:
            kept = found.repair()
        except (OSError, sqlite3.Error) as error:
            fail(f"cannot repair {directory}: {error}")
    if output is OutputFormat.JSON:
        print_json({"calls": calls, "problems": problems, "kept": kept})
    else:
        for problem in problems:
            print_text(problem)
        print_text(f"{calls} whole calls, {len(problems)} problems")
        if kept is not None:
            print_text(f"{kept} calls kept of damaged files, which have the ending .damaged")
    if problems:
        raise typer.Exit(FAILED)


@capture.command()
def export(
    directory: CaptureArgument,
    to: Annotated[ExportFormat, typer.Option("--to", help="Format.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write.", dir_okay=False)],
) -> None:
    """Write a capture as Parquet (needs the extra `parquet`), JSON lines, npz, or perf input.

    Example: gateway capture export capture --to perf-analyzer -o data.json
    """
    found = open_capture(directory)
    omissions: Counter[str] = Counter()

    def leave_out(_call: RecordedCall, reason: str) -> None:
        omissions[reason] += 1

    try:
        count = WRITERS[to.value](found.calls(), out, leave_out)
    except ImportError:
        fail("parquet needs pyarrow: pip install 'tensor-gateway[parquet]'", WRONG_USAGE)
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror}")
    except (GatewayError, *INVALID_VALUES) as error:
        fail(f"{directory}: a call is malformed: {error}")
    print_text(f"{count} calls written to {out}")
    for reason, number in omissions.items():
        print_note(printable(f"gateway: {number} calls left out: {reason}"))
    print_problems(found.problems)
    if omissions and not count:
        raise typer.Exit(FAILED)


@capture.command("redact")
def redact_command(  # one for each flag
    directory: CaptureArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="New directory.", file_okay=False)],
    tensor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=none|hash", help="What stays of a tensor; repeatable."),
    ] = None,
    payload: Annotated[
        str, typer.Option(metavar="none|hash|full", help="What stays of the other tensors.")
    ] = "full",
    drop_headers: Annotated[bool, typer.Option("--drop-headers", help="Remove headers.")] = False,
    drop_parameters: Annotated[
        bool, typer.Option("--drop-parameters", help="Remove parameters.")
    ] = False,
    drop_clients: Annotated[
        bool, typer.Option("--drop-clients", help="Remove addresses and agents of clients.")
    ] = False,
) -> None:
    """Copy a capture without some of its data.

    The recorded messages of clients stay only if nothing is removed.

    Example: gateway capture redact capture -o clean --drop-headers
    """
    redaction = Redaction(
        tensors=dict(map(_choice, tensor or ())),
        others=_payload_of(payload, "--payload"),
        headers=drop_headers,
        parameters=drop_parameters,
        clients=drop_clients,
    )
    found = open_capture(directory)
    if out.exists() and any(out.iterdir()):
        fail(f"{out} is not empty", WRONG_USAGE)
    try:
        count = redact(found, out, redaction)
    except (OSError, sqlite3.Error) as error:
        fail(f"cannot write {out}: {error}")
    print_text(f"{count} calls written to {out}")
    print_problems(found.problems)


def _choice(text: str) -> tuple[str, Payload]:
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        fail(f"--tensor is {text!r}; expected NAME=none or NAME=hash", WRONG_USAGE)
    return name, _payload_of(value, "--tensor")


_PAYLOADS: Final[Mapping[str, Payload]] = {"none": "none", "hash": "hash", "full": "full"}


def _payload_of(value: str, flag: str) -> Payload:
    if value not in _PAYLOADS:
        fail(f"{flag} is {value!r}; expected none, hash or full", WRONG_USAGE)
    return _PAYLOADS[value]


def _time(at_us: int) -> str:
    if not at_us:
        return "-"
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name or '-'} {count}" for name, count in sorted(counts.items()))
