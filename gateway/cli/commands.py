"""The commands and their functions; only the module of the requested command is imported."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final

import typer

from gateway import __version__
from gateway.accelerator import BUILD

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "serve": "gateway.cli.serve:serve",
        "demo": "gateway.cli.demo.command:demo",
        "init": "gateway.cli.init:init",
        "validate": "gateway.cli.configuration:validate",
        "explain": "gateway.cli.configuration:explain",
        "schema": "gateway.cli.schema:schema",
        "infer": "gateway.cli.client:infer",
        "models": "gateway.cli.client:models",
        "health": "gateway.cli.health:health",
        "status": "gateway.cli.status:status",
        "top": "gateway.cli.top:top",
        "reload": "gateway.cli.admin:reload",
        "upstream": "gateway.cli.admin:upstream",
        "route": "gateway.cli.admin:route",
        "residency": "gateway.cli.residency:residency",
        "keys": "gateway.cli.keys:keys",
    }
)
"""The functions of the gateway's own commands."""


def all_commands() -> Mapping[str, str]:
    """Return the functions of all commands, those of extensions too, by name."""
    from gateway.registry import extensions  # noqa: PLC0415  # slow to import

    found = dict(COMMANDS)
    for extension in extensions().values():
        found |= extension.commands
    return found


def run(arguments: Sequence[str]) -> int:
    """Run the command that *arguments* name and return the exit status."""
    # The shell asks for completions without arguments, and has the words in a variable.
    words = arguments or os.environ.get("COMP_WORDS", "").split()[1:]
    requested = [word for word in words[:1] if word in COMMANDS or word in all_commands()]
    try:
        command_line(requested)(list(arguments), prog_name="gateway")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def command_line(names: Sequence[str] = ()) -> typer.Typer:
    """Return the command line with the commands *names*, or with all for none."""
    # Extensions are imported only for a command that is not the gateway's own.
    commands = COMMANDS if names and set(names) <= COMMANDS.keys() else all_commands()
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_gateway)
    for name in names or commands:
        module, _, attribute = commands[name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):  # a command with commands of its own
            app.add_typer(command, name=name)
        else:
            app.command(
                name,
                hidden=getattr(command, "is_hidden", False),
                context_settings=_UNKNOWN if hasattr(command, "passes_unknown") else None,
            )(command)
    return app


_UNKNOWN: Final = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Of a command that gets the options that it does not have as its further arguments."""


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
