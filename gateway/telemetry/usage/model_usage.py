"""Usage: the gateway's own statistics of models, for the statistics extension.

The gateway can only measure these times:

- success and fail: requests, and their total time in the gateway. Requests for unknown models do
  not count. A batch that a caller sends as one request counts as one.
- queue: time in the queue of a route's concurrency limit, of a model's instances and of a batch.
- compute_infer: the remaining time of successful requests. compute_input and compute_output have
  the same count and no time, because clients such as Performance Analyzer divide by each count.
- batch_stats and execution_count: batches of the gateway, by rows.
- cache_hit, cache_miss: lookups in the gateway's cache; counts without times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from gateway.ir.context import ModelRef
from gateway.ir.statistics import BatchStatistics, Duration, InferStatistics, ModelStatistics

_CAPACITY = 4096
_NS = 1_000_000_000


def epoch_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return int(datetime.now(UTC).timestamp() * 1000)


@dataclass(slots=True)
class _Counts:
    """The counts of one version of a model."""

    succeeded: int = 0
    succeeded_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    queued_ns: int = 0
    last_ms: int = 0


@dataclass(slots=True)
class _SharingCounts:
    """The counts of batches and cache lookups of a model, independent of versions."""

    rows: dict[int, int] = field(default_factory=dict)
    waited_ns: int = 0
    hits: int = 0
    misses: int = 0


class Usage:
    """Counts by model and version.

    Args:
        capacity: Maximum number of models and versions, whose names may come from clients.
        now_ms: Milliseconds since the epoch.
        sharing_of: Records the batches and the cache lookups; None for the object itself.
    """

    def __init__(
        self,
        capacity: int = _CAPACITY,
        *,
        now_ms: Callable[[], int] = epoch_ms,
        sharing_of: Self | None = None,
    ) -> None:
        self._capacity = capacity
        self._now_ms = now_ms
        self._counts: dict[ModelRef, _Counts] = {}
        self._versions: dict[str, dict[ModelRef, _Counts]] = {}  # the same by the name of the model
        self._sharing: dict[str, _SharingCounts] = {}
        if sharing_of is not None:
            self._sharing = sharing_of._sharing  # noqa: SLF001  # of the same class

    def record_call(self, model: ModelRef, *, ok: bool, seconds: float, queued_s: float) -> None:
        """Count a completed or failed request."""
        counts = self._counts.get(model)
        if counts is None:
            if len(self._counts) >= self._capacity:
                return
            counts = self._counts[model] = _Counts()
            self._versions.setdefault(model.name, {})[model] = counts
        if not ok:
            counts.failed += 1
            counts.failed_ns += int(seconds * _NS)
            return
        counts.succeeded += 1
        counts.succeeded_ns += int(seconds * _NS)
        counts.queued_ns += int(queued_s * _NS)
        counts.last_ms = self._now_ms()

    def record_batch(self, name: str, rows: int, waits_s: Sequence[float]) -> None:
        """Count a batch with the waiting times of its requests."""
        sharing = self._sharing.setdefault(name, _SharingCounts())
        sharing.rows[rows] = sharing.rows.get(rows, 0) + 1
        sharing.waited_ns += int(sum(waits_s) * _NS)

    def record_lookup(self, name: str, *, hit: bool) -> None:
        """Count a cache lookup."""
        sharing = self._sharing.setdefault(name, _SharingCounts())
        if hit:
            sharing.hits += 1
        else:
            sharing.misses += 1

    def of(self, model: ModelRef | None) -> tuple[ModelStatistics, ...]:
        """Return the statistics of a model's versions, of one version, or of all models."""
        return tuple(self.each_of(model))

    def each_of(self, model: ModelRef | None) -> Iterator[ModelStatistics]:
        """Yield what `of` returns; other work may run between two of them."""
        found = self._counts if model is None else self._versions.get(model.name, {})
        for key, counts in list(found.items()):
            if model is None or model.version in ("", key.version):
                yield self._statistics(key, counts)

    def _statistics(self, model: ModelRef, counts: _Counts) -> ModelStatistics:
        sharing = self._sharing.get(model.name, _SharingCounts())
        if any(each.last_ms > counts.last_ms for each in self._versions[model.name].values()):
            sharing = _SharingCounts()  # reported with the most recently used version
        queued_ns = counts.queued_ns + sharing.waited_ns
        executions = sum(sharing.rows.values()) or max(counts.succeeded - sharing.hits, 0)
        return ModelStatistics(
            name=model.name,
            version=model.version,
            last_inference_ms=counts.last_ms,
            inference_count=counts.succeeded,
            execution_count=executions,
            inference=InferStatistics(
                success=Duration(counts.succeeded, counts.succeeded_ns),
                fail=Duration(counts.failed, counts.failed_ns),
                queue=Duration(counts.succeeded, queued_ns),
                compute_input=Duration(executions),
                compute_infer=Duration(executions, max(counts.succeeded_ns - queued_ns, 0)),
                compute_output=Duration(executions),
                cache_hit=Duration(sharing.hits),
                cache_miss=Duration(sharing.misses),
            ),
            batches={
                size: BatchStatistics(
                    compute_input=Duration(count),
                    compute_infer=Duration(count),
                    compute_output=Duration(count),
                )
                for size, count in sorted(sharing.rows.items())
            },
        )
