"""Families of samples, as a collector returns them, of metrics in `gateway.telemetry.names`."""

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from gateway.telemetry.names import Metric


def counter_family(metric: Metric) -> CounterMetricFamily:
    """Return the family of a counter, without samples."""
    return CounterMetricFamily(metric.family, metric.help, labels=metric.labels)


def gauge_family(metric: Metric) -> GaugeMetricFamily:
    """Return the family of a gauge, without samples."""
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def histogram_family(metric: Metric) -> HistogramMetricFamily:
    """Return the family of a histogram, without samples."""
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
