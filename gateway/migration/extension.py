"""MigrationExtension: the migration kit as the gateway finds it, by `gateway.api.Extension`.

This module is imported at every start, so it imports the folders of the kit on use only.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from gateway.api.extension import (
    Extension,
    LeadingPart,
    Processes,
    ServingPart,
    ServingProcess,
)
from gateway.config.load import LoadedConfig
from gateway.migration.names import METRICS
from gateway.migration.settings import CAPTURE, MIGRATIONS, STOCK
from gateway.routing.rolling.settings import ROLLING_LOAD
from gateway.settings.config_view import ConfigView, Finding

_COMMANDS: Final = "gateway.migration.commands"


class MigrationExtension(Extension):
    """Records, compares and moves calls from an old to a new server."""

    name = "migration"
    settings = (STOCK, CAPTURE, MIGRATIONS)
    metrics = METRICS
    recorded_calls = "gateway.migration.replay.trial:try_recorded_calls"
    commands: Mapping[str, str] = MappingProxyType(
        {
            "capture": f"{_COMMANDS}.capture:capture",
            "stock": f"{_COMMANDS}.stock:stock",
            "advise": f"{_COMMANDS}.advise:advise",
            "import": f"{_COMMANDS}.import_command:import_",
            "convert": f"{_COMMANDS}.convert:convert",
            "replay": f"{_COMMANDS}.replay:replay",
            "diff": f"{_COMMANDS}.replay:diff",
            "report": f"{_COMMANDS}.report:report",
            "cutover": f"{_COMMANDS}.cutover:cutover",
            "kserve": f"{_COMMANDS}.kserve:kserve",
            "migration-demo": "gateway.migration.demo.command:migration_demo",
        }
    )

    def check(self, config: ConfigView, /) -> Iterator[Finding]:
        """Yield what is wrong with captures, migrations and the stock of callers."""
        yield from _check_trials(config)
        if not _is_used(config):
            return
        from gateway.migration.options import check_captures  # noqa: PLC0415  # if it is used
        from gateway.migration.targets import check_migrations  # noqa: PLC0415  # if it is used

        loaded = LoadedConfig.of(config)
        if STOCK.of(loaded.config) is not None and loaded.config.state is None:
            yield ("stock",), "needs 'state: {directory: DIR}', where the counts are kept"
        yield from check_captures(loaded.config)
        yield from check_migrations(loaded.config)

    def warnings(self, config: ConfigView, /) -> Iterator[Finding]:
        """Yield the cut-overs that nothing stops before a server that fails or is wrong."""
        for name, migration in config.setting(MIGRATIONS).items():
            cutover = migration.cutover
            if cutover is None:
                continue
            path = ("migrations", name, "cutover", "guards")
            if migration.guards.mismatch_limit is None:
                text = "no guard watches replies: calls move on to a server with wrong results"
                yield (*path, "mismatch"), text
            if cutover.guards.error_limits is None:
                text = "no guard watches errors: calls move on to a server that fails them"
                yield (*path, "errors"), text

    def apply_changes(self, config: ConfigView, changes: Mapping[str, Any], /) -> ConfigView:
        """Return the configuration with another `capture`, and check the weights of targets.

        Raises:
            LookupError: The configuration has no capture.
            ValueError: A value of the capture is invalid, or a cut-over moves the target.
        """
        if not _is_used(config) and "capture" not in changes:
            return config
        from gateway.migration.runtime_changes import apply_changes  # noqa: PLC0415  # if it is used

        return apply_changes(LoadedConfig.of(config), changes)

    def serve(self, process: ServingProcess, /) -> ServingPart | None:
        """Return what records, mirrors and moves calls; None without a key of the kit."""
        if not _is_used(process.config):
            return None
        from gateway.migration.serving import MigrationServing  # noqa: PLC0415  # if it is used

        return MigrationServing(LoadedConfig.of(process.config), process)

    def lead(self, processes: Processes, /) -> LeadingPart:
        """Return what decides about cut-overs; without a key of the kit only its admin routes.

        Raises:
            StartError: A directory of states cannot be used.
        """
        if not _is_used(processes.config):
            from gateway.migration.admin import MigrationPages  # noqa: PLC0415  # if it leads

            return MigrationPages()
        from gateway.migration.leading import MigrationLeading  # noqa: PLC0415  # if it is used

        return MigrationLeading(LoadedConfig.of(processes.config), processes)


def _check_trials(config: ConfigView) -> Iterator[Finding]:
    """Yield the migrations and conditions of rolling loads that do not exist."""
    for path, rules in config.values(ROLLING_LOAD):
        if rules is None:
            continue
        migrations = config.setting(MIGRATIONS)
        if rules.compare is not None and rules.compare not in migrations:
            names = ", ".join(migrations) or "none"
            found = f"unknown migration {rules.compare!r}; expected one of {names}"
            yield (*path, "compare"), found
        from gateway.migration.compare.conditions import parse_fail_if  # noqa: PLC0415  # if it is used

        for number, text in enumerate(rules.fail_if):
            try:
                parse_fail_if(text)
            except ValueError as error:
                yield (*path, "fail_if", number), str(error)


def _is_used(config: ConfigView) -> bool:
    stock, capture = config.setting(STOCK), config.setting(CAPTURE)
    return stock is not None or capture is not None or bool(config.setting(MIGRATIONS))


EXTENSION: Final = MigrationExtension()
