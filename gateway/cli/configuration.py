"""The commands `validate` and `explain`, and the loading of configurations for all commands."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from gateway.app import check, describe_layers, explain_call
from gateway.app.config_warnings import warnings
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    in_colour,
    print_json,
    print_note,
    print_text,
)
from gateway.cli.sidecar import load_mapping
from gateway.config.load import ConfigError, LoadedConfig, is_secret_text, load_file
from gateway.config.releases import later_keys
from gateway.config.yaml_tree import Problem

ConfigArgument = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.yaml", exists=True, dir_okay=False)
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", exists=True, dir_okay=False, help="The same as CONFIG.yaml."),
]


def load_checked(path: Path, *, workers: int | None = None) -> LoadedConfig:
    """Read and check a configuration file.

    Args:
        path: The file.
        workers: Overrides `workers` of the file.

    Raises:
        ConfigError: The configuration has errors.
    """
    return _check(load_file(path), workers)


def load_checked_mapping(config: Mapping[str, Any], *, workers: int | None = None) -> LoadedConfig:
    """Check a configuration that comes from flags; see `load_checked`.

    Raises:
        ConfigError: The configuration has errors.
    """
    return _check(load_mapping(config, "flags"), workers)


def _check(loaded: LoadedConfig, workers: int | None) -> LoadedConfig:
    if workers is not None:
        loaded = loaded.changed(workers=workers)
    problems = check(loaded)
    if problems:
        raise ConfigError(loaded.source, problems)
    return loaded


def config_path(argument: Path | None, option: Path | None) -> Path | None:
    """Return the configuration file of the argument or the option; fail if both are present."""
    if argument is not None and option is not None:
        fail("two configuration files; expected either CONFIG.yaml or --config", WRONG_USAGE)
    return option if argument is None else argument


def validate(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for warnings, too.")] = False,
    release: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="VERSION", help="Report keys, too, that this release does not have."
        ),
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check a configuration file: print `ok`, or every error and warning with its line and column.

    Exit status: 0 no errors, 1 errors, or warnings with --strict, 2 usage error.
    """
    path = _require(config_path(config, config_option))
    problems: list[Problem] = []
    advice: list[Problem] = []
    try:
        loaded = load_checked(path)
        advice = warnings(loaded)
        problems = _later_keys(loaded, path, release)
    except ConfigError as error:
        problems = error.problems
    ok = not problems and not (strict and advice)
    if output is OutputFormat.JSON:
        entries = [problem.entry() for problem in problems]
        found = {"file": str(path), "ok": ok, "problems": entries}
        print_json(found | {"warnings": [one.entry() for one in advice]})
    else:
        for problem in problems:
            print_text(f"{path}:{problem}{_excerpt(path, problem)}")
        for one in advice:
            place = f"{path}:{one.position[0]}:{one.position[1]}"
            print_text(f"{place}: {in_colour('warning', 'yellow')}: {_of_key(one)}")
        if ok:
            print_text(in_colour("ok", "green"))
    if not ok:
        raise typer.Exit(FAILED)


def _later_keys(loaded: LoadedConfig, path: Path, release: str | None) -> list[Problem]:
    """Return the keys of a file that a release does not have."""
    if release is None:
        return []
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        found = list(later_keys(document, release))
    except ValueError as error:
        fail(f"--for: {error}", WRONG_USAGE)
    return [
        loaded.problem(at, f"came with version {later}; expected a key of {release}")
        for at, later in found
    ]


def _of_key(problem: Problem) -> str:
    return f"{problem.path}: {problem.message}" if problem.path else problem.message


def _excerpt(path: Path, problem: Problem) -> str:
    """Return the line of a problem with a caret below it; "" if the file has no such line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    number, column = problem.position
    if not 0 < number <= len(lines) or not lines[number - 1].isprintable():
        return ""
    line = lines[number - 1][:_EXCERPT]
    if is_secret_text(line):
        return ""
    return f"\n    {line}\n    {' ' * (min(column, len(line) + 1) - 1)}{in_colour('^', 'red')}"


_EXCERPT = 120


def explain(  # noqa: PLR0913, PLR0917  # one for each flag
    model: Annotated[str, typer.Option("--model", "-m", help="Model of the call.")] = "",
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    version: Annotated[str, typer.Option(help="Requested version; none by default.")] = "",
    protocol: Annotated[
        str, typer.Option("--protocol", "-p", help="Protocol and carrier of the caller.")
    ] = "oip.http",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; repeatable."),
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
        print_text("\n".join(describe_layers()))
        return
    if not model:
        fail("--model is missing; expected --model NAME, or --layers", WRONG_USAGE)
    path = _require(config_path(config, config_option))
    headers = dict(_pair(text) for text in header or ())
    try:
        loaded = load_checked(path)
    except ConfigError as error:
        fail(f"the configuration is invalid:\n{error}", WRONG_USAGE)
    explanation = explain_call(
        loaded.config, model=model, version=version, protocol=protocol, headers=headers
    )
    if output is OutputFormat.JSON:
        print_json(dataclasses.asdict(explanation))
    else:
        rows = [
            (name, "yes" if matched else "no", reason)
            for name, matched, reason in explanation.verdicts
        ]
        print_text(format_table(("route", "matches", "why"), rows))
        if explanation.route is not None:
            print_text(f"\n{model} uses route {explanation.route}, to:")
            print_text("\n".join(f"  {target}" for target in explanation.targets))
            print_text("Failed calls are retried:")
            print_text("\n".join(f"  {line}" for line in explanation.retries))
    if explanation.route is None:
        print_note(f"gateway: no route matches {model} over {protocol}")
        raise typer.Exit(FAILED)


def _require(path: Path | None) -> Path:
    if path is None:
        fail("the configuration file is missing; expected CONFIG.yaml", WRONG_USAGE)
    return path


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        fail(f"--header is {text!r}; expected NAME=VALUE", WRONG_USAGE)
    return name.strip().lower(), value.strip()
