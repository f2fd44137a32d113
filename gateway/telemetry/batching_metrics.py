"""Metrics of batches and of cached replies. Labels are models of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.telemetry import names
from gateway.telemetry.families import LabelledSeries
from gateway.telemetry.usage.model_usage import Usage

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_WAITS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class SharingMetrics:
    """The metrics of all models; `batches` and `cache` return those of one model."""

    def __init__(self, registry: CollectorRegistry, usage: Usage) -> None:
        self._usage = usage
        self._rows = LabelledSeries(registry, names.BATCH_ROWS, Histogram, buckets=_ROWS)
        self._requests = LabelledSeries(registry, names.BATCH_REQUESTS, Histogram, buckets=_ROWS)
        self._waits = LabelledSeries(registry, names.BATCH_WAIT, Histogram, buckets=_WAITS_S)
        self._rejected = LabelledSeries(registry, names.BATCH_REFUSED, Counter)
        self._lookups = LabelledSeries(registry, names.CACHE_LOOKUPS, Counter)
        self._dropped = LabelledSeries(registry, names.CACHE_DROPPED, Counter)
        self._entries = LabelledSeries(registry, names.CACHE_ENTRIES, Gauge)
        self._bytes = LabelledSeries(registry, names.CACHE_BYTES, Gauge)

    def batches(self, model: str) -> BatchMetrics:
        """Return the batch metrics of *model*."""
        return BatchMetrics(
            partial(self._usage.record_batch, model),
            self._rows.labels(model),
            self._requests.labels(model),
            self._waits.labels(model),
            self._rejected.labels(model),
        )

    def cache(self, model: str) -> CacheMetrics:
        """Return the cache metrics of *model*."""
        return CacheMetrics(
            partial(self._usage.record_lookup, model),
            {outcome: self._lookups.labels(model, outcome) for outcome in _OUTCOMES},
            {reason: self._dropped.labels(model, reason) for reason in _REASONS},
            self._entries.labels(model),
            self._bytes.labels(model),
        )


class RecordLookup(Protocol):
    """Records a cache lookup."""

    def __call__(self, *, hit: bool) -> None: ...  # noqa: D102


_OUTCOMES = ("hit", "shared", "miss")
_REASONS = ("evicted", "expired", "cleared")


class BatchMetrics:
    """Counts one model's batches."""

    def __init__(
        self,
        record_batch: Callable[[int, Sequence[float]], None],
        rows: Histogram,
        requests: Histogram,
        waits: Histogram,
        rejected: Counter,
    ) -> None:
        self._record_batch = record_batch
        self._rows = rows
        self._requests = requests
        self._waits = waits
        self._rejected = rejected

    def sent(self, *, rows: int, waits_s: Sequence[float]) -> None:
        """Count a batch with the waiting time of each of its requests."""
        self._record_batch(rows, waits_s)
        self._rows.observe(rows)
        self._requests.observe(len(waits_s))
        for wait_s in waits_s:
            self._waits.observe(wait_s)

    def rejected(self) -> None:
        """Count a batch that the model rejected."""
        self._rejected.inc()


class CacheMetrics:
    """Counts one model's cached replies."""

    def __init__(
        self,
        record_lookup: RecordLookup,
        lookups: dict[str, Counter],
        dropped: dict[str, Counter],
        entries: Gauge,
        size: Gauge,
    ) -> None:
        self._record_lookup = record_lookup
        self._lookups = lookups
        self._dropped = dropped
        self._entries = entries
        self._bytes = size

    def looked_up(self, outcome: str) -> None:
        """Count a lookup: hit, shared or miss."""
        self._record_lookup(hit=outcome == "hit")
        self._lookups[outcome].inc()

    def stored(self, size_bytes: int) -> None:
        """Count a reply that is stored."""
        self._entries.inc()
        self._bytes.inc(size_bytes)

    def evicted(self, reason: str, size_bytes: int) -> None:
        """Count a reply that is removed: evicted, expired or cleared."""
        self._dropped[reason].inc()
        self._entries.dec()
        self._bytes.dec(size_bytes)
