"""The command `certify`: does a server keep its protocol?"""

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from gateway.api.start_error import reason_of
from gateway.cli.calling.health import NO_FLAGS
from gateway.cli.calling.server_flags import ServerFlags, server_flags
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    fail,
    format_table,
    print_json,
    print_text,
    write_bytes,
)
from gateway.conformance.certify import certify_server, chosen_rules
from gateway.conformance.findings import Findings, PairVerdict, Verdict
from gateway.conformance.output import (
    CertifyFormat,
    differences,
    json_document,
    junit_document,
    report_page,
    text_page,
)
from gateway.conformance.pairs import certify_upstream
from gateway.ir.errors import GatewayError
from gateway.settings.units import Url, parse_duration, parse_url


@server_flags
def certify(  # noqa: PLR0913, PLR0917  # one for each flag
    url: Annotated[str, typer.Argument(metavar="[URL]", help="The server.")] = "",
    upstream: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Send calls of each client protocol to this server instead, through a gateway "
            "without a listener.",
        ),
    ] = "",
    against: Annotated[
        str,
        typer.Option(metavar="URL", help="Ask this server the same, and show what differs."),
    ] = "",
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Ask about this model only, unless --expect is given; repeatable.",
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            metavar="identity|sum|FILE",
            help="What the model at the same place of --model returns; repeatable.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="GROUP|ID", help="Ask only these rules; repeatable."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="GROUP|ID", help="Leave these rules out; repeatable."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Print the rules with their sources, and ask nothing.")
    ] = False,
    control: Annotated[
        bool, typer.Option("--control", help="Also load and unload models.")
    ] = False,
    hurt: Annotated[
        bool, typer.Option("--hurt", help="Also send what harms some servers.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Chooses the order of values, and ids.")] = 0,
    rate: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0.1, help="Most requests in a second.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="For each reply.")] = "5s",
    server: ServerFlags = NO_FLAGS,
    output: Annotated[
        CertifyFormat, typer.Option("--output", "-o", help="Format of the findings.")
    ] = CertifyFormat.TEXT,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the findings as a page of HTML.")
    ] = None,
) -> None:
    """Ask a server the rules of its protocol, and say which it keeps.

    The rules are about the server's own models. Nothing is changed without --control.
    With --upstream, say which clients a gateway before the server works with, and what they lose.

    Exit status: 0 it keeps them, 1 it differs, 2 usage error, or nothing can be told.

    Example: gateway certify grpc://127.0.0.1:8001 --model copy --expect identity
    """
    _check_usage(url, upstream, against, bool(only or ignore or control or hurt))
    names, answers = models or [], expect or []
    if len(answers) > len(names):
        fail("--expect has no --model at the same place; expected one for each", WRONG_USAGE)
    known = dict(zip(names, answers, strict=False))
    try:
        if show:
            _print_rules(parse_url(url or upstream), only or (), ignore or ())
            return
        timeout_s = parse_duration(timeout)
        progress = Progress(
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        )
        task = progress.add_task("certify", total=None)
        ask = partial(
            certify_server,
            models=names,
            expect=known,
            control=control,
            hurt=hurt,
            only=only or (),
            ignore=ignore or (),
            seed=seed,
            rate=rate,
            timeout_s=timeout_s,
            headers=server.metadata,
            tls=server.tls,
            on_finding=lambda _: progress.advance(task),
        )
        with progress:
            if upstream:
                address = parse_url(upstream)
                found = asyncio.run(
                    certify_upstream(
                        address, server, names, expect=known, timeout_s=timeout_s, rate=rate
                    )
                )
            else:
                rules = chosen_rules(parse_url(url).form, only or (), ignore or ())
                progress.update(task, total=len(rules) * (2 if against else 1))
                found = asyncio.run(ask(url))
            other = asyncio.run(ask(against)) if against else None
    except LookupError as error:
        fail(str(error.args[0]), WRONG_USAGE)
    except (ValueError, OSError, GatewayError) as error:
        fail(reason_of(error), WRONG_USAGE)
    for each in (found, other):
        if each is not None and each.rules and set(each.counts()) == {Verdict.CANNOT_TELL}:
            fail(f"nothing can be told of {each.subject.url}: {each.rules[0].found}", WRONG_USAGE)
    if report is not None:
        write_bytes(report, report_page(found, other))
    _print_findings(found, other, output)
    raise typer.Exit(status_of(found, other))


def _check_usage(url: str, upstream: str, against: str, has_rule_flags: bool) -> None:
    """End the command if its servers and flags do not belong together."""
    if bool(url) is bool(upstream) or (upstream and against):
        fail("expected URL, URL --against URL, or --upstream URL", WRONG_USAGE)
    if upstream and has_rule_flags:
        fail("--upstream asks no rules: expected no flag that chooses them", WRONG_USAGE)


def _print_findings(found: Findings, other: Findings | None, output: CertifyFormat) -> None:
    if output is CertifyFormat.JUNIT:
        write_bytes(None, junit_document(found, other))
    elif output is CertifyFormat.JSON:
        print_json(json_document(found, other))
    else:
        print_text(text_page(found, other))


def status_of(found: Findings, other: Findings | None = None) -> int:
    """Return the exit status: whether the server differs, or nothing can be told.

    Of two servers, it says whether one keeps what the other does not.
    """
    counts = found.counts()
    differs = counts[Verdict.DIFFERS] > 0
    if other is not None:
        both = [{each.verdict, its.verdict} for each, its in differences(found, other)]
        differs = {Verdict.KEEPS, Verdict.DIFFERS} in both
    if differs:
        return FAILED
    is_known = any(counts[each] for each in (Verdict.KEEPS, PairVerdict.WORKS, PairVerdict.LOSES))
    return 0 if is_known else WRONG_USAGE


def _print_rules(url: Url, only: Sequence[str], ignore: Sequence[str]) -> None:
    rules = chosen_rules(url.form, only, ignore)
    print_text(format_table(("rule", "says", "source"), [(r.id, r.says, r.source) for r in rules]))
