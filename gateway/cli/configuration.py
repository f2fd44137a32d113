"""`gateway validate`, `gateway explain`: what a configuration says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.app import check, describe_layers, explain_call
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    note,
    say,
    say_json,
    table,
)
from gateway.config.load import ConfigError, LoadedConfig, load_file
from gateway.config.sidecar import load_mapping
from gateway.config.yaml_tree import Problem

ConfigArgument = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.yaml", exists=True, dir_okay=False)
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", exists=True, dir_okay=False, help="The same as CONFIG.yaml."),
]


def checked(path: Path, *, workers: int | None = None) -> LoadedConfig:
    """Read a configuration file and check it as far as can be without starting.

    Args:
        path: Of the file.
        workers: How many, where a flag says it and not the file.

    Raises:
        ConfigError: Anything is wrong with it.
    """
    return _checked(load_file(path), workers)


def checked_mapping(config: Mapping[str, Any], *, workers: int | None = None) -> LoadedConfig:
    """Do the same with a configuration that flags made.

    Raises:
        ConfigError: Anything is wrong with it.
    """
    return _checked(load_mapping(config, "flags"), workers)


def _checked(loaded: LoadedConfig, workers: int | None) -> LoadedConfig:
    if workers is not None:
        loaded = loaded.changed(workers=workers)
    problems = check(loaded)
    if problems:
        raise ConfigError(loaded.source, problems)
    return loaded


def chosen(argument: Path | None, option: Path | None) -> Path | None:
    """Return the configuration file given as argument or as option; both end the command."""
    if argument is not None and option is not None:
        fail("give the configuration once, as CONFIG.yaml or with --config", WRONG_USAGE)
    return option if argument is None else argument


def validate(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check a configuration file: `ok`, or every problem with its line and column.

    Exit status: 0 it is right, 1 it is not, 2 wrong usage.
    """
    path = _needed(chosen(config, config_option))
    problems: list[Problem] = []
    try:
        checked(path)
    except ConfigError as error:
        problems = error.problems
    if output is OutputFormat.JSON:
        entries = [_entry(problem) for problem in problems]
        say_json({"file": str(path), "ok": not problems, "problems": entries})
    elif problems:
        say("\n".join(f"{path}:{problem}" for problem in problems))
    else:
        say("ok")
    if problems:
        raise typer.Exit(FAILED)


def explain(  # noqa: PLR0913, PLR0917  # one for each flag
    model: Annotated[str, typer.Option("--model", "-m", help="Model of the call.")] = "",
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    version: Annotated[str, typer.Option(help="Version asked for; left out: any.")] = "",
    protocol: Annotated[
        str, typer.Option("--protocol", "-p", help="Codec the caller speaks.")
    ] = "oip.http",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated."),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Print the layers that every call passes, in order.")
    ] = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Print which route a call would take and why, or the order of the layers.

    Exit status: 0 success, 1 no route matches, 2 usage or configuration error.
    """
    if layers:
        say("\n".join(describe_layers()))
        return
    if not model:
        fail("--model is missing: the model of the call, or --layers", WRONG_USAGE)
    path = _needed(chosen(config, config_option))
    headers = dict(_pair(text) for text in header or ())
    try:
        loaded = checked(path)
    except ConfigError as error:
        fail(f"the configuration cannot be used:\n{error}", WRONG_USAGE)
    found = explain_call(
        loaded.config, model=model, version=version, protocol=protocol, headers=headers
    )
    if output is OutputFormat.JSON:
        say_json(dataclasses.asdict(found))
    else:
        rows = [(name, "yes" if matched else "no", why) for name, matched, why in found.verdicts]
        say(table(("route", "matches", "why"), rows))
        if found.route is not None:
            say(f"\n{model} takes route {found.route}, to:")
            say("\n".join(f"  {target}" for target in found.targets))
    if found.route is None:
        note(f"gateway: no route takes {model} over {protocol}")
        raise typer.Exit(FAILED)


def _needed(path: Path | None) -> Path:
    if path is None:
        fail("which configuration? Name it: CONFIG.yaml", WRONG_USAGE)
    return path


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        fail(f"--header {text!r} is not NAME=VALUE", WRONG_USAGE)
    return name.strip().lower(), value.strip()


def _entry(problem: Problem) -> dict[str, str | int]:
    line, column = problem.position
    return {
        "line": line,
        "column": column,
        "path": problem.path,
        "message": problem.message,
    }
