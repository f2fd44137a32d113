"""The view of `gateway top`: the traffic that `/api/v1/status` has."""

from __future__ import annotations

import asyncio

import pytest

from gateway.cli.top import Order, Traffic, traffic_lines, traffic_of
from gateway.ir.context import Context
from gateway.ir.errors import Unavailable
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log.call_log import CallRecord
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.rates import TrafficWindow
from tests.fakes import FakeClock


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


class Viewed:
    """Metrics, and the view of them 2 s after all calls that were counted before."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self.metrics = Metrics("1") if metrics is None else metrics
        self._clock = FakeClock()
        self._window = TrafficWindow(self._clock)
        self._clock.advance(90.0)
        asyncio.run(self._window.update(self.metrics.registry.collect()))

    def traffic(self, order: Order = Order.LOAD) -> Traffic:
        self._clock.advance(2.0)
        asyncio.run(self._window.update(self.metrics.registry.collect()))
        return traffic_of(asyncio.run(self._window.document()), order)


def canary() -> Traffic:
    """Return the traffic of 2 s in which a canary was slower and failed."""
    metrics = Metrics("1")
    count(metrics, "r", "stable", 0.3, times=7)
    viewed = Viewed(metrics)
    count(metrics, "r", "stable", 0.02, times=18)
    count(metrics, "r", "canary", 0.2)
    count(metrics, "r", "canary", 0.2, code="internal")
    count(metrics, "other", "t", 0.001, times=40)
    count(metrics, "other", "t", 0.001, kind="ServerLiveRequest", times=500)
    metrics.attempts.of("stable", "h:1")
    return viewed.traffic()


def test_rates_and_failures_cover_the_window() -> None:
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


def test_percentiles_cover_the_window() -> None:
    """They lie in the bucket of the durations: 10 to 25 ms and 100 to 250 ms."""
    _, stable, canary_row = canary().targets
    assert stable.p50_ms == pytest.approx(10 + 15 * 0.5)
    assert stable.p99_ms == pytest.approx(10 + 15 * 0.99)
    assert canary_row.p50_ms == pytest.approx(175)


def test_a_cancelled_call_is_no_failure() -> None:
    """It counts as a call; a client may leave whenever it likes."""
    viewed = Viewed()
    for code in ("ok", "cancelled", "cancelled", "internal"):
        count(viewed.metrics, "r", "t", 0.01, code=code)
    found = viewed.traffic()
    assert [(2.0, 0.25)] == [(row.per_s, row.failed) for row in found.routes]


def test_models_show_the_parts_of_the_latency() -> None:
    """The parts are upstream, queue and gateway."""
    (row,) = canary().models
    upstream, queue, own = row.mean_ms
    assert queue == 0
    assert upstream == pytest.approx(own)
    assert upstream == pytest.approx((18 * 20 + 2 * 200 + 40 * 1) / 60 / 2, abs=1e-3)


@pytest.mark.parametrize(
    ("order", "first"), [("load", "t"), ("errors", "canary"), ("latency", "canary")]
)
def test_rows_are_sorted(order: str, first: str) -> None:
    """The highest value of the selected column is first."""
    viewed = Viewed()
    count(viewed.metrics, "r", "t", 0.001, times=9)
    count(viewed.metrics, "r", "canary", 0.2, code="internal")
    assert ("r", first) == viewed.traffic(Order(order)).targets[0].names


def test_a_route_without_calls_has_no_figures() -> None:
    """Nothing is divided by zero, and missing figures are dashes."""
    metrics = Metrics("1")
    count(metrics, "r", "t", 0.001)
    found = Viewed(metrics).traffic()
    (row,) = found.routes
    assert (0.0, None, None, None) == (row.per_s, row.failed, row.p50_ms, row.p99_ms)
    lines = [line.split() for line in "\n".join(traffic_lines(found)).splitlines()]
    assert ["r", "0.0", "-", "-", "-", "0", "0"] in lines


def test_rows_that_do_not_fit_are_counted() -> None:
    """A small terminal shows the first rows of each section, and the number of the others."""
    viewed = Viewed()
    for number in range(10):
        count(viewed.metrics, f"r{number}", "t", 0.001, times=number + 1)
    found = viewed.traffic()
    small = list(traffic_lines(found, 24))
    assert small.count("and 7 more") == 2
    assert sum(len(part.splitlines()) for part in small) <= 24 + 4
    assert "more" not in "".join(traffic_lines(found))


def test_the_first_line_has_rejected_requests_and_connections() -> None:
    """They belong to no route."""
    viewed = Viewed()
    viewed.metrics.rejected("oip.http", Unavailable("no room"))
    count(viewed.metrics, "r", "t", 0.001, times=3)
    (first, *_) = traffic_lines(viewed.traffic())
    assert "1.5 calls/s, 0.5 rejected/s, 0 connections, in the last 2.0 s" == first
