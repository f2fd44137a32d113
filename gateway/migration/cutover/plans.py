"""The plan of each cut-over of a configuration, and the directory of its files."""

from pathlib import Path
from typing import Any

from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.config.routes import TargetConfig
from gateway.migration.cutover.steps import CutoverPlan
from gateway.migration.evidence.guards import Guards
from gateway.migration.settings import MIGRATIONS
from gateway.migration.targets import LiveMigration, live_migrations

_FOLDER = "cutover"
# Keys that came after the first states were written. Without a value they leave a plan as it was,
# so that a gateway continues with the state of another version.
_LATER_KEYS = frozenset({"rule", "transform", "shapes"})


def cutover_plans(config: Config) -> dict[str, CutoverPlan]:
    """Return the plans of the cut-overs by the names of their migrations."""
    return {
        live.name: _plan(live, config)
        for live in live_migrations(config)
        if live.config.cutover is not None
    }


def cutover_directory(loaded: LoadedConfig, migration: str) -> Path:
    """Return the directory of the files of a cut-over."""
    cutover, state = MIGRATIONS.of(loaded.config)[migration].cutover, loaded.config.state
    if cutover is not None and cutover.directory is not None:
        return loaded.directory / cutover.directory
    assert state is not None  # noqa: S101  # `check_migrations` refuses a cut-over without it
    return loaded.directory / state.directory / _FOLDER


def _plan(live: LiveMigration, config: Config) -> CutoverPlan:
    cutover = live.config.cutover
    assert cutover is not None  # noqa: S101  # the caller looks
    guards = live.config.guards
    errors = guards.error_limits
    configured = guards.model_dump(mode="json")
    implied = []
    if cutover.guards.has_default_mismatch:
        configured["mismatch"] = None
        implied.append("mismatch.below")
    if guards.has_default_errors:
        configured["errors"] = None
        implied.append("errors.above_old")
    return CutoverPlan(
        migration=live.name,
        new=live.new_name,
        steps=cutover.steps,
        bake_s=cutover.bake,
        min_calls=cutover.min_calls,
        max_wait_s=cutover.max_wait,
        approve=cutover.approve,
        pauses_on_trip=cutover.on_trip == "pause",
        guards=tuple(verdict.guard for verdict in Guards(guards).verdicts()),
        implied_guards=tuple(implied),
        errors_below=None if errors is None else errors.below,
        identity={
            "route": live.route,
            "old": _identity(live.old, config),
            "new": _identity(live.new, config),
            "sticky": cutover.sticky,
            "guards": configured,
            "compare": _without_later(live.config.compare.model_dump(mode="json")),
        },
    )


def _identity(target: TargetConfig, config: Config) -> dict[str, Any]:
    """Return what makes a target: its servers, and its model there."""
    upstream = None if target.upstream is None else config.upstreams[target.upstream]
    return {
        "urls": [] if upstream is None else sorted(map(str, upstream.all_urls)),
        "target": _without_later(target.model_dump(mode="json", exclude={"weight", "priority"})),
    }


def _without_later(values: dict[str, Any]) -> dict[str, Any]:
    """Return *values* without the later keys that have no value."""
    return {
        key: _without_later(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None or key not in _LATER_KEYS
    }
