"""The cut-overs of one serving process: shares of the new targets, and the guard of its calls."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gateway.config.models import Config
from gateway.ir.call_keys import Key, key_of
from gateway.ir.errors import ErrorCode
from gateway.migration.cutover.shift import CutoverShift
from gateway.migration.evidence.local_errors import LocalErrors
from gateway.migration.evidence.verdicts import GuardVerdict, Standing
from gateway.migration.targets import LiveMigration, live_migrations

log = structlog.get_logger(__name__)

ShiftWeights = Mapping[str, tuple[float, int, int]]
"""Percentage, epoch and attempt of each migration, by name; lists where JSON carried them."""


class ServingShift(CutoverShift):
    """One cut-over in a serving process.

    Args:
        live: The migration; it has a cut-over.
        on_trip: Called when a guard trips here.
    """

    def __init__(self, live: LiveMigration, on_trip: Callable[[], None]) -> None:
        cutover = live.config.cutover
        assert cutover is not None  # noqa: S101  # the caller looks
        super().__init__(live.name, live.new_name, _key(cutover.sticky))
        self._name = live.name
        self._old_name = live.old_name
        self._on_trip = on_trip
        self._errors = LocalErrors(cutover.guards.error_limits)

    @property
    def watched(self) -> frozenset[str]:
        """The new target, and the old one if a guard compares their errors."""
        old = {self._old_name} if self._errors.watches_old else set()
        return frozenset({self.target, *old})

    def ended(self, target: str, code: ErrorCode | None, /) -> None:
        """Count how an inference ended, and trip if a guard does."""
        if target != self.target:
            self._errors.add_old(code)
        elif self._errors.add_new(code):
            self.trip()
            verdict = self._errors.tripped
            assert verdict is not None  # noqa: S101  # `add_new` says so
            log.warning(
                "cutover tripped",
                migration=self._name,
                guard=verdict.guard,
                evidence=verdict.evidence,
            )
            self._on_trip()

    def apply(self, percent: float, epoch: int, attempt: int) -> bool:
        """Put a weight in force, unless it is older than the one in force."""
        is_new_attempt = attempt > self.attempt
        is_applied = super().apply(percent, epoch, attempt)
        if is_applied and is_new_attempt:
            self._errors.begin()
        return is_applied

    def report(self) -> dict[str, Any]:
        """Return the counts since the process began, and what tripped, as JSON values."""
        tripped = self._errors.tripped
        return {
            "epoch": self.epoch,
            "attempt": self.attempt,
            "calls": self._errors.calls,
            "failures": self._errors.failures,
            "unanswered": self._errors.unanswered,
            "tripped": None if tripped is None else tripped.document(),
        }


class ServingShifts:
    """All cut-overs of a serving process; a reload keeps them.

    Args:
        weights: The weights at the start.
        on_trip: Called when a guard trips here.
    """

    def __init__(self, weights: ShiftWeights, on_trip: Callable[[], None]) -> None:
        self._weights = dict(weights)
        self._on_trip = on_trip
        self._shifts: dict[str, tuple[str, ServingShift]] = {}

    def of_routes(self, config: Config) -> dict[str, ServingShift]:
        """Return the cut-over of each route that has one, for a configuration."""
        found = {}
        for live in live_migrations(config):
            if live.config.cutover is not None:
                found[live.route] = self._get(live)
        return found

    def _get(self, live: LiveMigration) -> ServingShift:
        source = json.dumps(
            [live.route, live.old_name, live.new_name, live.config.model_dump_json()]
        )
        known = self._shifts.get(live.name)
        if known is not None and known[0] == source:
            return known[1]
        serving = ServingShift(live, self._on_trip)
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
