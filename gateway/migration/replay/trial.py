"""Recorded calls of one model, sent to a server that has just loaded it.

The gateway asks for it in a rolling load (`gateway.routing.rolling`), which decides by the result.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from gateway.ir.context import ModelRef
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.segment_reader import UnreadableSegment
from gateway.migration.compare.conditions import Condition, parse_fail_if
from gateway.migration.compare.output_rules import rules_of
from gateway.migration.evidence.verdicts import unjudged_calls
from gateway.migration.package_rules import named_rule
from gateway.migration.replay.replay import Replay, ReplayOptions, ReplayOutcome
from gateway.migration.settings import MIGRATIONS, MigrationConfig
from gateway.routing.rolling.settings import RollingLoadConfig, TrialResult, WarmUpConfig
from gateway.service import Service
from gateway.settings.config_view import ConfigView
from gateway.shadow.records.records import REFUSED, RecordedCall

_CONCURRENCY = 4
"""Calls at the same time: the server serves clients of other models meanwhile."""


async def try_recorded_calls(
    config: ConfigView, rules: RollingLoadConfig, service: Service, model: str, /
) -> TrialResult:
    """Send recorded calls of *model* to *service*, and compare the replies.

    Args:
        config: Has the migration whose rules apply, and the folder of the capture.
        rules: Says which calls to send, and which replies fail the trial.
        service: The server.
        model: The model, in the version that the server serves by default.

    Raises:
        OSError: The capture cannot be read.
        LookupError: The migration does not exist.
        ValueError: The capture or a condition is invalid.
    """
    warm_up = rules.warm_up
    if warm_up is None:
        return TrialResult(0)
    conditions = [parse_fail_if(text) for text in rules.fail_if]
    calls, skipped = await asyncio.to_thread(_calls, config.directory, warm_up, model)
    compare = _migration(config, rules.compare).compare
    options = ReplayOptions(
        concurrency=_CONCURRENCY, timeout_s=warm_up.timeout, models={model: ModelRef(model)}
    )
    errors: list[str] = []

    def note(_record: RecordedCall, outcome: ReplayOutcome, _comparison: object) -> None:
        if outcome.shown_error:
            errors.append(outcome.shown_error)

    replay = Replay(service, options, rules_of(compare, named_rule), on_done=note)
    report = await replay.run(iter(calls))
    if not report.sent:
        return TrialResult(0, () if not skipped else (f"no call can be sent: {skipped[0]}",))
    failures = [_failure(condition, replay) for condition in conditions]
    found = [text for text in failures if text]
    if conditions:  # without any, the calls only warm the model up
        found += unjudged_calls(report.summary, conditions)
    if found and errors:
        found.append(f"the first error is: {errors[0]}")
    return TrialResult(report.sent, tuple(found))


def _failure(condition: Condition, replay: Replay) -> str:
    """Return why a condition fails; one on what was not compared does not."""
    summary = replay.report.summary
    if condition.metric != "errors" and not summary.compared:
        return ""
    return condition.failure(summary)


def _migration(config: ConfigView, name: str | None) -> MigrationConfig:
    if name is None:
        return MigrationConfig()
    found = config.setting(MIGRATIONS).get(name)
    if found is None:
        raise LookupError(f"unknown migration {name!r}")
    return found


def _calls(
    directory: Path, warm_up: WarmUpConfig, model: str
) -> tuple[list[RecordedCall], list[str]]:
    """Return the first calls of a model, and why others are left out."""
    try:
        capture = Capture(directory / warm_up.capture)
    except UnreadableSegment as error:
        raise ValueError(str(error)) from error
    skipped: list[str] = []
    found: list[RecordedCall] = []
    for record in _of_model(capture, model):
        if record.missing or record.is_refused:
            skipped.append(record.missing or REFUSED)
            continue
        found.append(record)
        if len(found) == warm_up.calls:
            break
    return found, skipped + capture.problems


def _of_model(capture: Capture, model: str) -> Iterator[RecordedCall]:
    for record in capture.calls():
        if record.call.model == model:
            yield record
