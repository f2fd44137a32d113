"""The commands `validate` and `explain`, and the loading of configurations for all commands."""

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
import yaml

from gateway.api.access import ExampleCall, ExplainedAccess
from gateway.api.layer import Calls, Layer
from gateway.app import check
from gateway.app.chains.rows import End
from gateway.app.check.here import check_here
from gateway.app.check.unused_addresses import unused_addresses
from gateway.app.layers import LAYERS, layers_of
from gateway.cli.config_flags import ConfigArgument, ConfigOption, config_path
from gateway.cli.explanation import Explanation, explain_call
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    in_colour,
    parse_or_fail,
    print_json,
    print_note,
    print_text,
)
from gateway.cli.serving.sidecar import load_mapping
from gateway.cli.validation.config_warnings import warnings
from gateway.config.load import ConfigError, LoadedConfig, is_secret_text, load_file
from gateway.config.yaml_tree import Problem
from gateway.policies.access.operations import INFERENCE, OPERATIONS
from gateway.registry import extensions
from gateway.settings.units import parse_size

_TITLES: Final[Mapping[str, str]] = MappingProxyType({"model": "model in process"})
_PASSED: Final[Mapping[Calls, str]] = MappingProxyType(
    {
        Calls.ALL: "",
        Calls.QUESTIONS: " (not for inference)",
        Calls.INFERENCE: " (for inference only)",
    }
)


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


def validate(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for warnings, too.")] = False,
    here: Annotated[
        bool,
        typer.Option(
            "--here",
            help="Check this machine, too, as a start of this user would: files, folders, sockets, "
            "callables and addresses.",
        ),
    ] = False,
    release: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="VERSION", help="Report keys, too, that this release does not have."
        ),
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check a configuration file: print `ok`, or every error and warning with its line and column.

    The file alone is judged, wherever it is. With --here, so is all that a start on this machine
    needs; nothing is written, and no model is loaded.
    Exit status: 0 no errors, 1 errors, or warnings with --strict, 2 usage error.

    Example: gateway validate gateway.yaml --strict --here
    """
    path = _require(config_path(config, config_option))
    if release is not None:
        parse_or_fail(check_release, release, "--for")
    problems: list[Problem] = []
    advice: list[Problem] = []
    try:
        loaded = load_checked(path)
        advice = [*warnings(loaded), *_unused_addresses(loaded)]
        problems = [*_later_keys(loaded, path, release), *(check_here(loaded) if here else ())]
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


def _unused_addresses(loaded: LoadedConfig) -> list[Problem]:
    found = asyncio.run(unused_addresses(loaded.config))
    return [loaded.problem(path, message) for path, message in found]


def _later_keys(loaded: LoadedConfig, path: Path, release: str | None) -> list[Problem]:
    """Return the keys of a file that a release does not have."""
    if release is None:
        return []
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        loaded.problem(at, f"came with version {later}; expected a key of {release}")
        for at, later in later_keys(document, release)
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
    client: Annotated[
        str | None, typer.Option(help="Client of the call, or anonymous: may it make the call?")
    ] = None,
    operation: Annotated[
        str, typer.Option(help="Operation of the call, as in security.rules.")
    ] = INFERENCE,
    listener: Annotated[str, typer.Option(help="Listener; the first one by default.")] = "",
    group: Annotated[
        list[str] | None, typer.Option(help="Another group of the client; repeatable.")
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A claim of its token; repeatable."),
    ] = None,
    elements: Annotated[int, typer.Option(min=0, help="Elements of all inputs.")] = 0,
    size: Annotated[str, typer.Option("--bytes", help="Size of all inputs, as in 4MiB.")] = "0",
    layers: Annotated[
        bool, typer.Option("--layers", help="Print the layers that every call passes, in order.")
    ] = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Print which route a call would take and why, and whether a client may make it.

    With --layers, print the order of the layers. Exit status: 0 success, 1 no route matches or the
    client may not make the call, 2 usage or configuration error.

    Example: gateway explain gateway.yaml --model fraud --client web
    """
    if layers:
        print_text("\n".join(describe_layers()))
        return
    if not model and client is None:
        fail("--model is missing; expected --model NAME, --client NAME or --layers", WRONG_USAGE)
    if operation not in OPERATIONS:
        expected = ", ".join(OPERATIONS)
        fail(f"--operation is {operation!r}; expected one of {expected}", WRONG_USAGE)
    path = _require(config_path(config, config_option))
    headers = dict(_pair("--header", text) for text in header or ())
    try:
        loaded = load_checked(path)
    except ConfigError as error:
        fail(f"the configuration is invalid:\n{error}", WRONG_USAGE)
    explanation = access = None
    if model:
        explanation = explain_call(
            loaded.config, model=model, version=version, protocol=protocol, headers=headers
        )
    if client is not None:
        claims: dict[str, list[str]] = {}
        for name, value in (_split("--claim", text) for text in claim or ()):
            claims.setdefault(name, []).append(value)
        try:
            example = ExampleCall(
                client=client,
                operation=operation,
                model=model,
                version=version,
                protocol=protocol,
                listener=listener,
                route=explanation.route or "" if explanation is not None else "",
                groups=group or (),
                claims=claims,
                elements=elements,
                size_bytes=parse_size(size),
            )
            access = ExplainedAccess()
            for extension in extensions().values():
                access = extension.explain_access(loaded, example, access)
        except (LookupError, ValueError) as error:
            fail(str(error.args[0]), WRONG_USAGE)
    _print_explanation(output, f"{model} over {protocol}", explanation, access)


def _print_explanation(
    output: OutputFormat,
    example: str,
    explanation: Explanation | None,
    access: ExplainedAccess | None,
) -> None:
    """Print what is known of a call, and exit with 1 if no route or no rule takes it."""
    if output is OutputFormat.JSON:
        found = {} if explanation is None else dataclasses.asdict(explanation)
        print_json(found if access is None else {**found, "access": dataclasses.asdict(access)})
    else:
        if explanation is not None:
            _print_route(example, explanation)
        if access is not None:
            print_text(f"access: {access}")
            if access.rehearsed is not None:
                print_text(
                    f"rehearsed: {access.rehearsed}, if rules of 'mode: shadow' were enforced"
                )
            if access.quotas:
                print_text(f"quotas: {', '.join(access.quotas)}")
    if explanation is not None and explanation.route is None:
        print_note(f"gateway: no route matches {example}")
        raise typer.Exit(FAILED)
    if access is not None and not access.is_allowed:
        raise typer.Exit(FAILED)


def _print_route(example: str, explanation: Explanation) -> None:
    rows = [
        (name, "yes" if matched else "no", reason) for name, matched, reason in explanation.verdicts
    ]
    print_text(format_table(("route", "matches", "why"), rows))
    if explanation.route is not None:
        model = example.rpartition(" over ")[0]
        print_text(f"\n{model} uses route {explanation.route}, to:")
        print_text("\n".join(f"  {target}" for target in explanation.targets))
        print_text("Failed calls are retried:")
        print_text("\n".join(f"  {line}" for line in explanation.retries))


def _require(path: Path | None) -> Path:
    if path is None:
        fail("the configuration file is missing; expected CONFIG.yaml", WRONG_USAGE)
    return path


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, value = _split(flag, text)
    return name.lower(), value


def _split(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        fail(f"{flag} is {text!r}; expected NAME=VALUE", WRONG_USAGE)
    return name.strip(), value.strip()


def describe_layers() -> Iterator[str]:
    """Yield the lines of a table of all chains."""
    rows: dict[str, list[Layer | End]] = {
        chain: [*layers_of(chain), *(row for row in LAYERS[chain] if isinstance(row, End))]
        for chain in LAYERS
    }
    width = max(len(row.name) for each in rows.values() for row in each)
    for chain, each in rows.items():
        yield _TITLES.get(chain, chain)
        for row in each:
            passed = _PASSED[row.calls] if isinstance(row, Layer) else ""
            yield f"  {row.name:{width}}  {row.purpose}{passed}"


ADDED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"0.1.0": ()})
"""The releases, and the keys that each added, such as `upstreams.*.residency`; oldest first.

`gateway validate --for VERSION` reads them."""


def later_keys(
    document: Any, version: str, added: Mapping[str, tuple[str, ...]] = ADDED
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the paths of keys that *version* does not know, with the release that added each.

    Args:
        document: The configuration as plain values.
        version: One of the releases.
        added: The keys that each release added.

    Raises:
        ValueError: There is no such release.
    """
    check_release(version, added)
    releases = list(added)
    for later in releases[releases.index(version) + 1 :]:
        for path in _paths(document):
            name = ".".join(str(part) for part in path)
            # A star is one name: it matches no key below it.
            if any(
                fnmatchcase(name, key) and name.count(".") == key.count(".") for key in added[later]
            ):
                yield path, later


def check_release(version: str, added: Mapping[str, tuple[str, ...]] = ADDED) -> None:
    """Raise ValueError if there is no such release."""
    if version not in added:
        raise ValueError(f"version is {version!r}; expected one of {', '.join(added)}")


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))
