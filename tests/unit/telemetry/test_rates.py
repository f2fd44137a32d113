"""Rates, errors and latencies of the last minute."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from gateway.ir.calls import InferRequest, ServerReadyRequest
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.rates import TrafficWindow
from tests.fakes import FakeClock


def families(ok: float, failed: float, fast: float, slow: float) -> list[Metric]:
    """Return counters of one route; its calls take up to 10 ms, or up to 1 s."""
    labels = ("route", "model", "protocol", "kind", "code", "target")
    requests = CounterMetricFamily("gateway_requests", "", labels=labels)
    requests.add_metric(("r", "m", "oip.http", "InferRequest", "ok", "t"), ok)
    requests.add_metric(("r", "m", "oip.http", "InferRequest", "unavailable", "t"), failed)
    requests.add_metric(("r", "m", "oip.http", "MetadataRequest", "ok", "t"), 1e6)
    duration = HistogramMetricFamily(
        "gateway_request_duration_seconds", "", labels=("route", "protocol", "kind", "target")
    )
    buckets = [("0.01", fast), ("1.0", fast + slow), ("+Inf", fast + slow)]
    duration.add_metric(("r", "oip.http", "InferRequest", "t"), buckets, 1.0)
    attempts = CounterMetricFamily(
        "gateway_upstream_attempts", "", labels=("upstream", "endpoint", "kind", "code")
    )
    attempts.add_metric(("u", "a:1", "InferRequest", "ok"), ok)
    seconds = CounterMetricFamily(
        "gateway_upstream_attempt_seconds", "", labels=("upstream", "endpoint", "kind")
    )
    seconds.add_metric(("u", "a:1", "InferRequest"), ok * 0.25)
    seconds.add_metric(("u", "a:1", "ServerReadyRequest"), 1e3)
    return [requests, duration, attempts, seconds]


async def test_the_first_reading_counts_from_the_start() -> None:
    """The first window begins at the start; metadata calls are not counted."""
    clock = FakeClock()
    window = TrafficWindow(clock)
    clock.advance(10.0)
    await window.update(families(ok=80, failed=20, fast=90, slow=10))
    document = await window.document()
    (route,) = document["routes"]
    assert 10.0 == document["window_s"]
    assert ("r", 100, 10.0, 20, 0.2) == tuple(
        route[key] for key in ("route", "calls", "per_s", "errors", "error_share")
    )
    assert 5.556 == route["p50_ms"]
    assert 901.0 == route["p99_ms"]
    (target,) = document["targets"]
    assert target == {key: route[key] for key in route if key in target} | {"target": "t"}
    (endpoint,) = document["endpoints"]
    assert ("u", "a:1", 80, 250.0) == tuple(
        endpoint[key] for key in ("upstream", "address", "calls", "mean_ms")
    )


async def test_probes_are_no_calls_of_an_endpoint() -> None:
    """They are in no mean time, and cancelled calls are no errors."""
    clock, metrics = FakeClock(), Metrics("1")
    endpoint = metrics.attempts.of("u", "a:1")
    assert 0.0 == endpoint.mean_s
    for kind, seconds, code in (
        (ServerReadyRequest, 0.001, "ok"),
        (ServerReadyRequest, 9.0, "unavailable"),
        (InferRequest, 0.25, "ok"),
        (InferRequest, 0.25, "cancelled"),
    ):
        endpoint.record(kind, None, seconds, code)
    assert 0.25 == endpoint.mean_s
    window = TrafficWindow(clock)
    clock.advance(10.0)
    await window.update(metrics.registry.collect())
    (found,) = (await window.document())["endpoints"]
    assert (2, 0, 250.0) == (found["calls"], found["errors"], found["mean_ms"])


async def test_only_the_last_minute_counts() -> None:
    """Readings older than the window are dropped while newer ones exist."""
    clock = FakeClock()
    window = TrafficWindow(clock)
    await window.update(families(ok=1000, failed=0, fast=1000, slow=0))
    for second in range(1, 200):
        clock.advance(1.0)
        await window.update(
            families(ok=1000 + 2 * second, failed=0, fast=1000 + 2 * second, slow=0)
        )
    document = await window.document()
    assert document["window_s"] <= 60.0
    assert 2.0 == document["routes"][0]["per_s"]


async def test_the_window_spans_a_pause_between_readings() -> None:
    """Without newer readings, the rate covers the whole pause."""
    clock = FakeClock()
    window = TrafficWindow(clock)
    await window.update(families(ok=0, failed=0, fast=0, slow=0))
    clock.advance(600.0)
    await window.update(families(ok=600, failed=0, fast=600, slow=0))
    assert (600.0, 1.0) == (
        (await window.document())["window_s"],
        (await window.document())["routes"][0]["per_s"],
    )


async def test_a_reset_counter_counts_from_zero() -> None:
    """A worker that died takes its counters along."""
    clock = FakeClock()
    window = TrafficWindow(clock)
    clock.advance(1.0)
    await window.update(families(ok=100, failed=0, fast=100, slow=0))
    clock.advance(70.0)
    await window.update(families(ok=100, failed=0, fast=100, slow=0))
    clock.advance(10.0)
    await window.update(families(ok=20, failed=0, fast=20, slow=0))
    assert 20 == (await window.document())["routes"][0]["calls"]


async def test_tables_are_empty_without_metrics() -> None:
    """A gateway without traffic shows empty tables."""
    window = TrafficWindow(FakeClock())
    await window.update(CollectorRegistry().collect())
    document = await window.document()
    assert ([], [], []) == (document["routes"], document["targets"], document["endpoints"])


async def test_windows_without_calls_have_no_latency() -> None:
    """The rows stay; their latencies are unknown."""
    clock = FakeClock()
    window = TrafficWindow(clock)
    for _ in range(3):
        clock.advance(40.0)
        await window.update(families(ok=9, failed=0, fast=9, slow=0))
    for rows in ("routes", "targets", "endpoints"):
        (row,) = (await window.document())[rows]
        assert (0, None, None, None) == tuple(
            row[key] for key in ("calls", "mean_ms", "p50_ms", "p99_ms")
        )


async def test_readings_within_a_second_replace_one_another() -> None:
    """Somebody who looks a thousand times a second fills no memory, and changes no number."""
    clock = FakeClock()
    window = TrafficWindow(clock)
    for number in range(100_000):
        clock.advance(0.001)
        await window.update(
            families(ok=number, failed=0, fast=number, slow=0) if number % 500 == 0 else ()
        )
    assert len(window._readings) <= 64
    assert 59.0 <= (await window.document())["window_s"] <= 61.0
