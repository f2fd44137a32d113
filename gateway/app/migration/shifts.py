"""The cut-overs of one serving process: shares of the new targets, and the guard of its calls."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from gateway.app.migration.targets import LiveMigration, live_migrations
from gateway.config.models import Config
from gateway.ir.errors import ErrorCode
from gateway.migration.guards import GuardVerdict, Standing
from gateway.migration.local_errors import LocalErrors
from gateway.policies.watch_target import WatchTarget
from gateway.routing.balance import Target
from gateway.routing.load_balancing import Key, key_of
from gateway.routing.traffic_shift import TrafficShift

log = structlog.get_logger(__name__)

ShiftWeights = Mapping[str, tuple[float, int, int]]
"""Percentage, epoch and attempt of each migration, by name; lists where JSON carried them."""

NO_WEIGHTS: Final[ShiftWeights] = {}


class ServingShift:
    """One cut-over in a serving process.

    Args:
        live: The migration; it has a cut-over.
        timeout_s: Time after which the route gives up a call.
        on_trip: Called when a guard trips here.

    Attributes:
        shift: Decides which calls go to the new target.
    """

    def __init__(
        self, live: LiveMigration, timeout_s: float | None, on_trip: Callable[[], None]
    ) -> None:
        cutover = live.config.cutover
        assert cutover is not None  # noqa: S101  # the caller looks
        self._name = live.name
        self._old_name = live.old_name
        self._timeout_s = timeout_s
        self._on_trip = on_trip
        self._errors = LocalErrors(cutover.guards.errors)
        self.shift = TrafficShift(live.name, live.new_name, _key(cutover.sticky))

    def watch(self, targets: Sequence[Target]) -> list[Target]:
        """Return the targets of the route, with those of the migration being watched."""
        return [self._watched(target) for target in targets]

    def _watched(self, target: Target) -> Target:
        if target.name == self.shift.target:
            report = self._add_new
        elif target.name == self._old_name and self._errors.watches_old:
            report = self._errors.add_old
        else:
            return target
        return replace(target, service=WatchTarget(target.service, report, self._timeout_s))

    def _add_new(self, code: ErrorCode | None) -> None:
        if self._errors.add_new(code):
            self.shift.trip()
            verdict = self._errors.tripped
            assert verdict is not None  # noqa: S101  # `add_new` says so
            log.warning(
                "cutover tripped",
                migration=self._name,
                guard=verdict.guard,
                evidence=verdict.evidence,
            )
            self._on_trip()

    def apply(self, percent: float, epoch: int, attempt: int) -> None:
        """Put a weight in force, unless it is older than the one in force."""
        is_new_attempt = attempt > self.shift.attempt
        if self.shift.apply(percent, epoch, attempt) and is_new_attempt:
            self._errors.begin()

    def report(self) -> dict[str, Any]:
        """Return the counts since the process began, and what tripped, as JSON values."""
        tripped = self._errors.tripped
        return {
            "epoch": self.shift.epoch,
            "attempt": self.shift.attempt,
            "calls": self._errors.calls,
            "failures": self._errors.failures,
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
                found[live.route] = self._get(live, _timeout_s(live.route, config))
        return found

    def _get(self, live: LiveMigration, timeout_s: float | None) -> ServingShift:
        source = json.dumps(
            [live.route, live.old_name, live.new_name, timeout_s, live.config.model_dump_json()]
        )
        known = self._shifts.get(live.name)
        if known is not None and known[0] == source:
            return known[1]
        serving = ServingShift(live, timeout_s, self._on_trip)
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


def _timeout_s(route: str, config: Config) -> float | None:
    """Return the least time after which the route gives up a call or an attempt."""
    found = next((each for each in config.routes if each.name == route), None)
    own = None if found is None else found.timeout
    retry = (None if found is None else found.retry) or config.policies.retry
    times = [config.policies.timeout if own is None else own]
    if retry is not None and retry.per_try_timeout is not None:
        times.append(retry.per_try_timeout)
    return min([each for each in times if each], default=None)
