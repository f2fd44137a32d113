"""Traffic between two readings of the metrics page, and the view of `gateway top`."""

from __future__ import annotations

import pytest

from gateway.cli.top import traffic_lines
from gateway.cli.traffic import Reading, Traffic, traffic_between
from gateway.ir.context import Context
from gateway.telemetry.call_log import CallRecord
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics


def count(
    metrics: Metrics,
    route: str,
    target: str,
    seconds: float,
    *,
    code: str = "ok",
    kind: str = "InferRequest",
    times: int = 1,
) -> None:
    for _ in range(times):
        path = CallPath(route=route, target=target, upstream_s=seconds / 2)
        context = Context(protocol="oip.http")
        metrics.call(CallRecord(kind, "m", "", context, path, code, None, seconds, 1.0))


def reading(metrics: Metrics, at_s: float) -> Reading:
    return Reading.of(metrics.page("")[0].decode(), at_s)


def canary() -> Traffic:
    """Return the traffic of 2 s in which a canary was slower and failed."""
    metrics = Metrics("1")
    count(metrics, "r", "stable", 0.3, times=7)
    before = reading(metrics, 10.0)
    count(metrics, "r", "stable", 0.02, times=18)
    count(metrics, "r", "canary", 0.2)
    count(metrics, "r", "canary", 0.2, code="internal")
    count(metrics, "other", "t", 0.001, times=40)
    count(metrics, "other", "t", 0.001, kind="ServerLiveRequest", times=500)
    metrics.attempts.of("stable", "h:1")
    return traffic_between(before, reading(metrics, 12.0))


def test_rates_and_failures_cover_the_time_between_readings() -> None:
    """Earlier calls and health checks do not count; the busiest rows are first."""
    found = canary()
    assert (found.seconds, found.per_s) == (2.0, 30.0)
    assert [(row.names, row.per_s, row.failed) for row in found.routes] == [
        (("other",), 20.0, 0.0),
        (("r",), 10.0, 0.05),
    ]
    assert [(row.names, row.per_s, row.failed) for row in found.targets] == [
        (("other", "t"), 20.0, 0.0),
        (("r", "stable"), 9.0, 0.0),
        (("r", "canary"), 1.0, 0.5),
    ]


def test_percentiles_cover_the_time_between_readings() -> None:
    """They lie in the bucket of the durations: 10 to 25 ms and 100 to 250 ms."""
    _, stable, canary_row = canary().targets
    assert stable.p50_ms == pytest.approx(10 + 15 * 0.5)
    assert stable.p99_ms == pytest.approx(10 + 15 * 0.99)
    assert canary_row.p50_ms == pytest.approx(175)


def test_a_cancelled_call_is_no_failure() -> None:
    """It counts as a call; a client may leave whenever it likes."""
    metrics = Metrics("1")
    before = reading(metrics, 10.0)
    for code in ("ok", "cancelled", "cancelled", "internal"):
        count(metrics, "r", "t", 0.01, code=code)
    found = traffic_between(before, reading(metrics, 12.0))
    assert [(2.0, 0.25)] == [(row.per_s, row.failed) for row in found.routes]


def test_models_show_the_parts_of_the_latency() -> None:
    """The parts are upstream, queue and gateway."""
    (row,) = canary().models
    upstream, queue, own = row.mean_ms
    assert queue == 0
    assert upstream == pytest.approx(own)
    assert upstream == pytest.approx((18 * 20 + 2 * 200 + 40 * 1) / 60 / 2)


@pytest.mark.parametrize(
    ("order", "first"), [("load", "t"), ("errors", "canary"), ("latency", "canary")]
)
def test_rows_are_sorted(order: str, first: str) -> None:
    """The highest value of the selected column is first."""
    metrics = Metrics("1")
    before = reading(metrics, 0.0)
    count(metrics, "r", "t", 0.001, times=9)
    count(metrics, "r", "canary", 0.2, code="internal")
    assert traffic_between(before, reading(metrics, 1.0), order).targets[0].names == ("r", first)


def test_reset_counters_cause_no_negative_rates() -> None:
    """After a restart, the calls since then count."""
    old, new = Metrics("1"), Metrics("1")
    count(old, "r", "t", 0.001, times=100)
    count(new, "r", "t", 0.001, times=4)
    found = traffic_between(reading(old, 0.0), reading(new, 2.0))
    assert [row.per_s for row in found.routes] == [2.0]


def test_a_route_without_calls_has_no_figures() -> None:
    """Nothing is divided by zero, and missing figures are dashes."""
    metrics = Metrics("1")
    count(metrics, "r", "t", 0.001)
    same = reading(metrics, 0.0)
    found = traffic_between(same, reading(metrics, 1.0))
    (row,) = found.routes
    assert (row.per_s, row.failed, row.p50_ms, row.p99_ms) == (0.0, None, None, None)
    lines = [line.split() for line in "\n".join(traffic_lines(found)).splitlines()]
    assert ["r", "0.0", "-", "-", "-", "0", "0"] in lines


def test_rows_that_do_not_fit_are_counted() -> None:
    """A small terminal shows the first rows of each section, and the number of the others."""
    metrics = Metrics("1")
    before = reading(metrics, 0.0)
    for number in range(10):
        count(metrics, f"r{number}", "t", 0.001, times=number + 1)
    found = traffic_between(before, reading(metrics, 1.0))
    small = list(traffic_lines(found, 24))
    assert small.count("and 7 more") == 2
    assert sum(len(part.splitlines()) for part in small) <= 24 + 4
    assert "more" not in "".join(traffic_lines(found))


def test_other_pages_are_rejected() -> None:
    """The command explains the ValueError."""
    with pytest.raises(ValueError, match="convert string"):
        Reading.of("<html><body>hello {</body>", 0.0)
