"""Metrics of what callers share: batches and answers that are kept.

Labels are models that the configuration names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.telemetry.model_usage import Usage

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_WAITS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LABELS = ("model",)


class SharingMetrics:
    """What is counted for all models together; `batches` and `cache` give one model's part."""

    def __init__(self, registry: CollectorRegistry, usage: Usage) -> None:
        self._usage = usage
        self._rows = Histogram(
            "gateway_batch_rows",
            "Rows of a call that was made of waiting requests.",
            _LABELS,
            buckets=_ROWS,
            registry=registry,
        )
        self._requests = Histogram(
            "gateway_batch_requests",
            "Requests in a call that was made of waiting requests.",
            _LABELS,
            buckets=_ROWS,
            registry=registry,
        )
        self._waits = Histogram(
            "gateway_batch_wait_seconds",
            "Time that a request waited for others, or for calls in hand.",
            _LABELS,
            buckets=_WAITS_S,
            registry=registry,
        )
        self._refused = Counter(
            "gateway_batch_refused",
            "Joined calls that the target would not have, so that their requests were asked apart.",
            _LABELS,
            registry=registry,
        )
        self._lookups = Counter(
            "gateway_cache_lookups",
            "Requests by what was found: hit, shared (the same was being asked) or miss.",
            (*_LABELS, "outcome"),
            registry=registry,
        )
        self._dropped = Counter(
            "gateway_cache_dropped",
            "Kept answers that were let go: evicted for room, expired, or cleared.",
            (*_LABELS, "reason"),
            registry=registry,
        )
        self._entries = Gauge(
            "gateway_cache_entries", "Answers kept now.", _LABELS, registry=registry
        )
        self._bytes = Gauge(
            "gateway_cache_bytes", "Bytes of answers kept now.", _LABELS, registry=registry
        )

    def batches(self, model: str) -> BatchMetrics:
        """Return what counts the batches of *model*."""
        return BatchMetrics(
            partial(self._usage.batched, model),
            self._rows.labels(model),
            self._requests.labels(model),
            self._waits.labels(model),
            self._refused.labels(model),
        )

    def cache(self, model: str) -> CacheMetrics:
        """Return what counts the kept answers of *model*."""
        return CacheMetrics(
            partial(self._usage.looked_up, model),
            {outcome: self._lookups.labels(model, outcome) for outcome in _OUTCOMES},
            {reason: self._dropped.labels(model, reason) for reason in _REASONS},
            self._entries.labels(model),
            self._bytes.labels(model),
        )


class LookedUp(Protocol):
    """Told of a request for whose answer the kept ones were searched."""

    def __call__(self, *, hit: bool) -> None: ...  # noqa: D102


_OUTCOMES = ("hit", "shared", "miss")
_REASONS = ("evicted", "expired", "cleared")


class BatchMetrics:
    """Counts one model's batches."""

    def __init__(
        self,
        used: Callable[[int, Sequence[float]], None],
        rows: Histogram,
        requests: Histogram,
        waits: Histogram,
        refused: Counter,
    ) -> None:
        self._used = used
        self._rows = rows
        self._requests = requests
        self._waits = waits
        self._refused = refused

    def sent(self, *, rows: int, waits_s: Sequence[float]) -> None:
        """Count a call of so many rows, whose requests waited so long."""
        self._used(rows, waits_s)
        self._rows.observe(rows)
        self._requests.observe(len(waits_s))
        for wait_s in waits_s:
            self._waits.observe(wait_s)

    def refused(self) -> None:
        """Count a call that the target would not have."""
        self._refused.inc()


class CacheMetrics:
    """Counts one model's kept answers."""

    def __init__(
        self,
        used: LookedUp,
        lookups: dict[str, Counter],
        dropped: dict[str, Counter],
        entries: Gauge,
        kept_bytes: Gauge,
    ) -> None:
        self._used = used
        self._lookups = lookups
        self._dropped = dropped
        self._entries = entries
        self._bytes = kept_bytes

    def looked_up(self, outcome: str) -> None:
        """Count a request: hit, shared or miss."""
        self._used(hit=outcome == "hit")
        self._lookups[outcome].inc()

    def stored(self, size_bytes: int) -> None:
        """Count an answer that is kept."""
        self._entries.inc()
        self._bytes.inc(size_bytes)

    def evicted(self, reason: str, size_bytes: int) -> None:
        """Count an answer that is let go: evicted, expired or cleared."""
        self._dropped[reason].inc()
        self._entries.dec()
        self._bytes.dec(size_bytes)
