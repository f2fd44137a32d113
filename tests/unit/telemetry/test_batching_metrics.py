"""Metrics of batches and caches."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.telemetry.batching_metrics import SharingMetrics
from gateway.telemetry.usage.model_usage import Usage


def test_batches_are_counted_by_model() -> None:
    """The metrics are rows and requests of calls, waits of requests, and rejected calls."""
    registry = CollectorRegistry()
    meter = SharingMetrics(registry, Usage()).batches("m")
    meter.sent(rows=5, waits_s=[0.001, 0.002])
    meter.sent(rows=1, waits_s=[0.003])
    meter.rejected()

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"model": "m"})

    assert (6, 2) == (value("gateway_batch_rows_sum"), value("gateway_batch_rows_count"))
    assert (3, 2) == (value("gateway_batch_requests_sum"), value("gateway_batch_requests_count"))
    assert 3 == value("gateway_batch_wait_seconds_count")
    assert 0.006 == value("gateway_batch_wait_seconds_sum")
    assert 1 == value("gateway_batch_refused_total")


def test_cached_replies_are_counted_by_model() -> None:
    """Lookups are counted by outcome, removals by reason, and stored replies by size."""
    registry = CollectorRegistry()
    meter = SharingMetrics(registry, Usage()).cache("m")
    for outcome in ("miss", "hit", "hit", "shared"):
        meter.looked_up(outcome)
    meter.stored(100)
    meter.stored(50)
    meter.evicted("expired", 50)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"model": "m", **labels})

    lookups = "gateway_cache_lookups_total"
    assert [2, 1, 1] == [value(lookups, outcome=one) for one in ("hit", "shared", "miss")]
    dropped = "gateway_cache_dropped_total"
    assert [0, 1, 0] == [value(dropped, reason=one) for one in ("evicted", "expired", "cleared")]
    assert (1, 100) == (value("gateway_cache_entries"), value("gateway_cache_bytes"))


def test_two_layers_of_one_model_count_together() -> None:
    """A model at two upstreams has one time series."""
    registry = CollectorRegistry()
    metrics = SharingMetrics(registry, Usage())
    metrics.cache("m").stored(100)
    metrics.cache("m").stored(10)
    assert 110 == registry.get_sample_value("gateway_cache_bytes", {"model": "m"})
