"""Gauges that are read at each scrape, and the lag of the event loop."""

from __future__ import annotations

import asyncio

from gateway.concurrency.limiter import Limiter
from gateway.telemetry.gauges import LoopLag
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.names import Metric

UNITS = Metric("gateway_x", "gauge", "Units.", ("route",))


def page(metrics: Metrics) -> str:
    return metrics.page("")[0].decode()


def test_gauge_is_removed_with_its_owner() -> None:
    """A part that a reload replaced or removed is neither shown nor kept alive."""
    metrics, owner = Metrics("1"), Limiter(3)
    metrics.gauges.watch(UNITS, {"route": "r"}, owner, lambda it: it.limit)
    assert 'gateway_x{route="r"} 3.0' in page(metrics)
    metrics.gauges.watch(UNITS, {"route": "r"}, Limiter(9), lambda it: it.limit)
    assert 'gateway_x{route="r"}' not in page(metrics)


def test_hash_of_the_current_configuration_is_a_label() -> None:
    """The label is read at each scrape, because a reload changes it."""
    metrics, found = Metrics("1"), {"sha256": "a"}
    metrics.watch_config(lambda: found)
    assert 'gateway_config_info{sha256="a"} 1.0' in page(metrics)
    found["sha256"] = "b"
    assert 'gateway_config_info{sha256="b"} 1.0' in page(metrics)


async def test_lag_is_how_late_a_timer_runs() -> None:
    """The lag of the event loop is measured until it is stopped."""
    seen: list[float] = []
    measured = asyncio.Event()

    def report(seconds: float) -> None:
        seen.append(seconds)
        measured.set()

    lag = LoopLag(report)
    lag.start()
    async with asyncio.timeout(20):
        await measured.wait()
    lag.stop()
    lag.stop()
    assert 0 <= seen[0] < 10
