"""The commands and their functions; only the module of the requested command is imported.

The list of all commands imports none of them, so their summaries stand here, too.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
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
    }
)
"""The functions of the gateway's own commands."""

SUMMARIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "serve": "Serve: `serve CONFIG.yaml`, `serve --upstream URL`, or `serve --demo`.",
        "demo": "Recognise a handwritten digit over every protocol, compare the results, and keep "
        "serving.",
        "init": "Write a configuration with comments, for servers, model files, or both.",
        "validate": "Check a configuration file: print `ok`, or every error and warning with its "
        "line and column.",
        "explain": "Print which route a call would take and why, and whether a client may make it.",
        "schema": "Print the JSON Schema of the configuration file, for editors.",
        "infer": "Run one inference and print its outputs.",
        "models": "List a server's models with their versions and states, or load one.",
        "health": "Check whether a server, or one of its models, is ready, or a gateway alive.",
        "status": "Show listeners, routes, upstreams and warnings of a running gateway.",
        "top": "Show rates, failures and latencies of routes, targets, models and upstreams, until "
        "Ctrl-C.",
        "reload": "Make a running gateway read its configuration file again.",
        "upstream": "Stop new calls to an upstream or one of its endpoints, or allow them again.",
        "route": "Change the weights of a route's targets, or reset them to those of the file.",
        "residency": "Show which models are loaded, or pin, unpin or evict one.",
        "quotas": "Show what clients have used of each quota, over all workers and replicas.",
        "keys": "Add, list, revoke and rotate the API keys of clients, in a file of hashed keys.",
        "capture": "Start and stop recording; show, check, export and redact what is recorded.",
        "stock": "Show who still calls what: clients, protocols, models, inputs or path, rates and "
        "errors.",
        "advise": "Say what each client of a model should change, and print the same call as code.",
        "import": "Write a configuration that replaces a server, or stands before one.",
        "convert": "Translate a message, or every call of a capture, to another protocol without a "
        "server.",
        "replay": "Send the calls of a capture to a server of any protocol, and compare the "
        "replies.",
        "diff": "Compare the replies of two captures, call by call, by their request ids.",
        "report": "Write a report on the replies of two servers to the same calls.",
        "cutover": "Show or control the cut-over of a migration to its new target.",
        "certify": "Ask a server the rules of its protocol, and say which it keeps.",
        "kserve": "Serve as a runtime of KServe: one port for HTTP, HTTP/2, gRPC and /metrics.",
    }
)
"""What the commands do, those of the gateway's own extensions too, in the order of the list."""


def all_commands() -> Mapping[str, str]:
    """Return the functions of all commands, those of extensions too, by name."""
    from gateway.registry import extensions  # noqa: PLC0415  # slow to import

    found: dict[str, str] = {}
    for extension in extensions().values():
        found |= extension.commands
    return {**found, **COMMANDS}


def run(arguments: Sequence[str]) -> int:
    """Run the command that *arguments* name and return the exit status."""
    # The shell asks for completions without arguments, and has the words in a variable.
    words = list(arguments or os.environ.get("COMP_WORDS", "").split()[1:])
    if words[:1] == ["--"]:
        del words[0]
    requested = [word for word in words[:1] if _is_command(word)]
    app = command_line(requested) if requested else overview()
    _log_to_standard_error()
    try:
        app(list(arguments), prog_name="gateway")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def _log_to_standard_error() -> None:
    """Keep the log of what a command imports from its data; `serve` sets up its own."""
    structlog = sys.modules.get("structlog")
    if structlog is not None:  # its import would make `--help` slow
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger("warning"),
            logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        )


def _is_command(word: str) -> bool:
    # Extensions are imported only for a command that is not the gateway's own.
    return not word.startswith("-") and (word in COMMANDS or word in all_commands())


def overview() -> typer.Typer:
    """Return the command line without commands to run: it lists them, and reports unknown ones."""
    app = _empty()
    for name, summary in _summaries().items():
        app.command(name, help=summary)(_not_run)
    return app


def _summaries() -> Mapping[str, str]:
    """Return the summaries of all commands that are shown; packages must be imported for theirs."""
    if not entry_points(group="gateway.extensions"):
        return SUMMARIES
    from gateway.registry import extension_faults  # noqa: PLC0415  # slow to import
    from gateway.telemetry.faults import FAULTS  # noqa: PLC0415  # likewise

    for fault in extension_faults():
        typer.echo(f"warning: {fault}", err=True)
    shown = {}
    for name in all_commands():
        if name not in SUMMARIES:
            try:
                command = typer.main.get_group(command_line([name])).commands[name]
            except FAULTS as error:  # code of a package runs
                typer.echo(f"warning: command {name!r}: {error}", err=True)
                continue
            if not command.hidden:
                shown[name] = command.help or ""
    return {**SUMMARIES, **shown}


def _not_run() -> None:
    """Do nothing: `run` makes a command line with the command that it runs."""


def command_line(names: Sequence[str] = ()) -> typer.Typer:
    """Return the command line with the commands *names*, or with all for none."""
    commands = COMMANDS if names and set(names) <= COMMANDS.keys() else all_commands()
    app = _empty()
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


def _empty() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_gateway)
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
