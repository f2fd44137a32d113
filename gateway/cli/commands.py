"""The verbs, and where each lives; only the module of the verb that was asked for is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gateway import __version__

VERBS = {
    "serve": "gateway.cli.serve",
    "demo": "gateway.cli.demo",
    "validate": "gateway.cli.configuration",
    "explain": "gateway.cli.configuration",
    "schema": "gateway.cli.schema",
    "infer": "gateway.cli.client",
    "models": "gateway.cli.client",
    "health": "gateway.cli.client",
}


def run(arguments: Sequence[str]) -> int:
    """Run the verb that *arguments* name and return the exit status."""
    asked = [word for word in arguments[:1] if word in VERBS]
    try:
        command_line(asked or tuple(VERBS))(list(arguments), prog_name="gateway")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0


def command_line(verbs: Sequence[str] = tuple(VERBS)) -> typer.Typer:
    """Return the command line with some of the verbs, or all of them."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_gateway)
    for verb in verbs:
        app.command(verb)(getattr(importlib.import_module(VERBS[verb]), verb))
    return app


def _print_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"gateway {__version__}\n")
        raise typer.Exit


def _gateway(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Let any inference client talk to any model server.

    Exit status: 0 done, 1 failed or the answer is no, 2 wrong usage or configuration.
    """
