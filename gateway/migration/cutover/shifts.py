"""The cut-overs of one serving process: shares of the new targets, and the guard of its calls."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from gateway.config.models import Config
from gateway.ir.call_keys import Key, key_of
from gateway.migration.cutover.shift import CutoverShift
from gateway.migration.evidence.local_errors import LocalErrors
from gateway.migration.evidence.verdicts import GuardVerdict, Standing
from gateway.migration.targets import LiveMigration, live_migrations

ShiftWeights = Mapping[str, tuple[float, int, int]]
"""Percentage, epoch and attempt of each migration, by name; lists where JSON carried them."""


class ServingShifts:
    """All cut-overs of a serving process; a reload keeps them.

    Args:
        weights: The weights at the start.
        on_trip: Called when a guard trips here.
    """

    def __init__(self, weights: ShiftWeights, on_trip: Callable[[], None]) -> None:
        self._weights = dict(weights)
        self._on_trip = on_trip
        self._shifts: dict[str, tuple[str, CutoverShift]] = {}

    def of_routes(self, config: Config) -> dict[str, CutoverShift]:
        """Return the cut-over of each route that has one, for a configuration."""
        found = {}
        for live in live_migrations(config):
            if live.config.cutover is not None:
                found[live.route] = self._get(live)
        return found

    def _get(self, live: LiveMigration) -> CutoverShift:
        source = json.dumps(
            [live.route, live.old_name, live.new_name, live.config.model_dump_json()]
        )
        known = self._shifts.get(live.name)
        if known is not None and known[0] == source:
            return known[1]
        cutover = live.config.cutover
        assert cutover is not None  # noqa: S101  # the caller looks
        serving = CutoverShift(
            live.name,
            live.new_name,
            _key(cutover.sticky),
            old=live.old_name,
            errors=LocalErrors(cutover.guards.error_limits),
            on_trip=self._on_trip,
        )
        if live.name in self._weights:
            serving.apply(*self._weights[live.name])
        self._shifts[live.name] = source, serving
        return serving

    def exchange(self, weights: ShiftWeights) -> dict[str, Any]:
        """Put weights in force, and return the report of each cut-over."""
        self._weights = dict(weights)
        for name, weight in weights.items():
            if name in self._shifts:
                self._shifts[name][1].apply(*weight)
        return {name: serving.report() for name, (_, serving) in self._shifts.items()}


def tripped_guard(report: Mapping[str, Any], attempt: int) -> GuardVerdict | None:
    """Return the guard that tripped in this attempt, by the report of a process."""
    found = report["tripped"]
    if found is None or report["attempt"] != attempt:
        return None
    return GuardVerdict(found["guard"], Standing(found["verdict"]), found["evidence"])


def _key(sticky: str) -> Key | None:
    if sticky == "none":
        return None
    return key_of("address" if sticky == "client" else sticky)
