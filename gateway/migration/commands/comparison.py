"""Flags of the commands that compare replies, and what they become."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.app.build.chain_context import NO_CONTEXT
from gateway.app.build.declarations import described_models, read_declarations
from gateway.app.build.routes import chain_of_target
from gateway.cli.output import WRONG_USAGE, fail, parse_or_fail
from gateway.config.load import ConfigError, LoadedConfig, load_file
from gateway.config.models import UpstreamConfig
from gateway.config.routes import TargetConfig
from gateway.migration.compare.conditions import Condition, parse_fail_if, parse_fail_unless
from gateway.migration.compare.summary import Summary
from gateway.migration.evidence.guards import Guards
from gateway.migration.evidence.verdicts import (
    GuardVerdict,
    Standing,
    unjudged_calls,
    unjudged_mismatches,
    verdict_text,
)
from gateway.migration.replay.mismatch_list import MismatchList
from gateway.migration.settings import MIGRATIONS, MigrationConfig
from gateway.migration.targets import check_migrations, live_migrations
from gateway.policies.rename import TargetModel
from gateway.policies.signatures import DescribedModels
from gateway.service import Service
from gateway.settings.units import Url

CompareOption = Annotated[
    str | None,
    typer.Option(
        "--compare",
        metavar="FILE#NAME",
        help="Rules, guards, names and signatures: `migrations: {NAME: ...}` of a configuration.",
    ),
]
FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="METRIC>VALUE",
        help="Exit with 1 if it holds: mismatch>0.1%, mismatch.OUTPUT>1%, structure>0, errors>1%, "
        "missing>0, refused>0, p99>200ms, p50_ratio>1.2, p99_ratio>1.3; repeatable.",
    ),
]
FailUnlessOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-unless",
        metavar="METRIC<VALUE@CONFIDENCE",
        help="Exit with 1 unless the calls show it, such as mismatch<0.1%@95%; repeatable.",
    ),
]

MismatchesOption = Annotated[
    Path | None,
    typer.Option(
        "--mismatches",
        metavar="FILE",
        help="Write every call whose results differ; FILE ends with .json or .csv.",
    ),
]


def open_list(path: Path | None) -> MismatchList | None:
    """Return the list of --mismatches; end the command if it cannot be written."""
    try:
        return None if path is None else parse_or_fail(MismatchList, path, "--mismatches")
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", WRONG_USAGE)


def load_migration(source: str | None) -> MigrationConfig:
    """Return the migration `FILE#NAME`, or the defaults; end the command if there is none."""
    return MigrationConfig() if source is None else _load(source)[1]


def _load(source: str) -> tuple[LoadedConfig, MigrationConfig]:
    file, _, name = source.rpartition("#")
    if not file:
        fail(f"--compare is {source!r}; expected FILE#NAME", WRONG_USAGE)
    try:
        loaded = load_file(Path(file))
    except ConfigError as error:
        fail(f"the configuration is invalid:\n{error}", WRONG_USAGE)
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}", WRONG_USAGE)
    migrations = MIGRATIONS.of(loaded.config)
    if name not in migrations:
        names = ", ".join(migrations) or "none"
        fail(f"{file} has no migration {name!r}; its migrations are {names}", WRONG_USAGE)
    return loaded, migrations[name]


@dataclass(frozen=True, slots=True)
class CompareFile:
    """What the configuration of `--compare` says besides the rules.

    Attributes:
        migration: The migration.
        described: What it says about models of servers.
        new, old: The targets of its route; None without a route.
        upstreams: The upstreams of the configuration.
    """

    migration: MigrationConfig
    described: DescribedModels
    new: TargetConfig | None = None
    old: TargetConfig | None = None
    upstreams: Mapping[str, UpstreamConfig] = field(default_factory=dict)

    def options(self, target: TargetConfig | None, url: Url) -> Mapping[str, Any]:
        """Return the options of a target's upstream for the server at *url* of its protocol."""
        if target is None or target.upstream is None:
            return {}
        upstream = self.upstreams[target.upstream]
        return upstream.options if upstream.all_urls[0].protocol == url.protocol else {}

    def named(self, target: TargetConfig | None, end: Service, *, has_models: bool) -> Service:
        """Return *end* behind the names that a target of an upstream has.

        Args:
            target: One of the targets.
            end: The server.
            has_models: Whether calls have the names of models there, by --model.
        """
        if target is None or target.upstream is None:
            return end
        model = TargetModel() if has_models else TargetModel(target.model, target.version)
        return chain_of_target(target, model, end, NO_CONTEXT)


def load_compare_file(source: str | None) -> CompareFile:
    """Return what `FILE#NAME` says, or the defaults; end the command if there is no such."""
    if source is None:
        return CompareFile(MigrationConfig(), DescribedModels())
    loaded, migration = _load(source)
    try:
        declarations = read_declarations(loaded.config, loaded.directory)
        described = described_models(loaded.config, declarations)
    except (LookupError, ValueError) as error:
        fail(f"the configuration is invalid: {error.args[0]}", WRONG_USAGE)
    try:
        lives = {each.name: each for each in live_migrations(loaded.config)}
    except KeyError:  # a migration without its route or target
        _, problem = next(check_migrations(loaded.config))
        fail(f"the configuration is invalid: {problem}", WRONG_USAGE)
    live = lives.get(source.rpartition("#")[2])
    if live is None:
        return CompareFile(migration, described)
    return CompareFile(migration, described, live.new, live.old, loaded.config.upstreams)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What conditions and guards say of a comparison.

    Attributes:
        text: The verdict, for people.
        checked: The conditions, as the user wrote them, each with why it fails or "".
        guards: The verdict of each guard.
        is_failure: Whether the command fails: not if guards only need more calls.
    """

    text: str
    checked: Sequence[tuple[str, str]]
    guards: Sequence[GuardVerdict]
    is_failure: bool

    @property
    def failures(self) -> list[str]:
        """Why conditions fail."""
        return [failure for _, failure in self.checked if failure]


def judged(summary: Summary, conditions: Sequence[Condition], guards: Guards) -> Judgement:
    """Judge a comparison by the conditions of the flags and the guards of the migration."""
    checked = [(each.text, each.failure(summary)) for each in conditions]
    failures = [failure for _, failure in checked if failure]
    verdicts = guards.verdicts()
    unjudged = unjudged_calls(summary, conditions, verdicts)
    has_tripped = any(each.standing is Standing.TRIPS for each in verdicts)
    text = verdict_text(
        failures,
        verdicts,
        has_conditions=bool(conditions),
        unjudged=unjudged,
        mismatches=unjudged_mismatches(summary, conditions, verdicts),
    )
    return Judgement(text, checked, verdicts, bool(failures or unjudged or has_tripped))


def parse_conditions(fail_if: list[str] | None, fail_unless: list[str] | None) -> list[Condition]:
    """Return the conditions of the flags; end the command if one is malformed."""
    found = [parse_or_fail(parse_fail_if, each) for each in fail_if or ()]
    return found + [parse_or_fail(parse_fail_unless, each) for each in fail_unless or ()]
