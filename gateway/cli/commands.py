"""The commands and their modules; only the module of the requested command is imported."""

import importlib
import sys
from collections.abc import Sequence
from keyword import iskeyword
from typing import Annotated

import typer

from gateway import __version__
from gateway.accelerator import BUILD

COMMANDS = {
    "serve": "gateway.cli.serve",
    "demo": "gateway.cli.demo.command",
    "init": "gateway.cli.init",
    "validate": "gateway.cli.configuration",
    "explain": "gateway.cli.configuration",
    "schema": "gateway.cli.schema",
    "infer": "gateway.cli.client",
    "models": "gateway.cli.client",
    "health": "gateway.cli.client",
    "status": "gateway.cli.status",
    "top": "gateway.cli.top",
    "reload": "gateway.cli.admin",
    "upstream": "gateway.cli.admin",
    "route": "gateway.cli.admin",
    "capture": "gateway.migration.commands.capture",
    "stock": "gateway.migration.commands.stock",
    "advise": "gateway.migration.commands.advise",
    "import": "gateway.migration.commands.import_command",
    "convert": "gateway.migration.commands.convert",
    "replay": "gateway.migration.commands.replay",
    "diff": "gateway.migration.commands.replay",
    "report": "gateway.migration.commands.report",
    "cutover": "gateway.migration.commands.cutover",
}


def run(arguments: Sequence[str]) -> int:
    """Run the command that *arguments* name and return the exit status."""
    requested = [word for word in arguments[:1] if word in COMMANDS]
    try:
        command_line(requested or tuple(COMMANDS))(list(arguments), prog_name="gateway")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def command_line(names: Sequence[str] = tuple(COMMANDS)) -> typer.Typer:
    """Return the command line with the commands *names*."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_gateway)
    for name in names:
        # The function of a command that is a keyword ends in an underscore.
        attribute = f"{name}_" if iskeyword(name) else name
        command = getattr(importlib.import_module(COMMANDS[name]), attribute)
        if isinstance(command, typer.Typer):  # a command with commands of its own
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _print_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"gateway {__version__} ({BUILD})\n")
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

    Exit status: 0 success, 1 failure or negative result, 2 usage or configuration error.
    """
