"""The command `certify`: does a server keep its protocol?"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from gateway.api.start_error import reason_of
from gateway.cli.health import NO_FLAGS
from gateway.cli.output import FAILED, WRONG_USAGE, fail, format_table, print_text
from gateway.cli.server_flags import ServerFlags, server_flags
from gateway.conformance.certify import certify_server, chosen_rules
from gateway.conformance.findings import Findings, Verdict
from gateway.settings.units import Url, parse_duration, parse_url

_HEAD: Final = ("rule", "verdict", "found")


@server_flags
def certify(  # noqa: PLR0913, PLR0917  # one for each flag
    url: Annotated[str, typer.Argument(metavar="URL", help="The server.")],
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
) -> None:
    """Ask a server the rules of its protocol, and say which it keeps.

    The rules are about the server's own models. Nothing is changed without --control.

    Exit status: 0 it keeps them, 1 it differs, 2 usage error, or nothing can be told.

    Example: gateway certify grpc://127.0.0.1:8001 --model copy --expect identity
    """
    names, answers = models or [], expect or []
    if len(answers) > len(names):
        fail("--expect has no --model at the same place; expected one for each", WRONG_USAGE)
    try:
        address, timeout_s = parse_url(url), parse_duration(timeout)
        if show:
            _print_rules(address, only or (), ignore or ())
            return
        found = asyncio.run(
            certify_server(
                address,
                models=names,
                expect=dict(zip(names, answers, strict=False)),
                control=control,
                hurt=hurt,
                only=only or (),
                ignore=ignore or (),
                seed=seed,
                rate=rate,
                timeout_s=timeout_s,
                headers=server.metadata,
                tls=server.tls,
            )
        )
    except LookupError as error:
        fail(str(error.args[0]), WRONG_USAGE)
    except (ValueError, OSError) as error:
        fail(reason_of(error), WRONG_USAGE)
    if found.rules and set(found.counts()) == {Verdict.CANNOT_TELL}:
        fail(f"nothing can be told of {found.subject.url}: {found.rules[0].found}", WRONG_USAGE)
    print_text(format_table(_HEAD, [(each.rule, each.verdict, each.found) for each in found.rules]))
    raise typer.Exit(status_of(found))


def status_of(found: Findings) -> int:
    """Return the exit status: whether the server differs, or nothing can be told."""
    counts = found.counts()
    if counts[Verdict.DIFFERS]:
        return FAILED
    return 0 if counts[Verdict.KEEPS] else WRONG_USAGE


def _print_rules(url: Url, only: Sequence[str], ignore: Sequence[str]) -> None:
    rules = chosen_rules(f"{url.protocol}+{url.carrier}", only, ignore)
    print_text(format_table(("rule", "says", "source"), [(r.id, r.says, r.source) for r in rules]))
