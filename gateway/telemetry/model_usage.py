"""Usage: how much models have been used, as the gateway itself has seen it.

For answers to the statistics extension. Times are those the gateway can measure: what a target
does with its time, only the target knows.

- success and fail: requests, and their whole time here; a refusal for a name that is not served is
  nobody's. Batches of callers that came as one request count as one.
- queue: waits for a place on the route and, where the gateway batches, for other requests.
- compute_infer: the rest of the time of those that succeeded.
- batch_stats and execution_count: calls that the gateway made of waiting requests, by rows.
- cache_hit, cache_miss: where the gateway keeps answers; counts without times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.ir.context import ModelRef
from gateway.ir.statistics import BatchStatistics, Duration, InferStatistics, ModelStatistics

_MOST = 4096
_NS = 1_000_000_000


def epoch_ms() -> int:
    """Return the time of day in milliseconds since the epoch."""
    return int(datetime.now(UTC).timestamp() * 1000)


@dataclass(slots=True)
class _Counts:
    """What is counted of one version."""

    succeeded: int = 0
    succeeded_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    queued_ns: int = 0
    last_ms: int = 0


@dataclass(slots=True)
class _Shared:
    """What is counted of one name: batches and kept answers are no version's."""

    rows: dict[int, int] = field(default_factory=dict)
    waited_ns: int = 0
    hits: int = 0
    misses: int = 0


class Usage:
    """Counts by model and version; so many at most, since names may come from clients.

    Args:
        most: Models and versions.
        now_ms: Milliseconds since the epoch.
    """

    def __init__(self, most: int = _MOST, *, now_ms: Callable[[], int] = epoch_ms) -> None:
        self._most = most
        self._now_ms = now_ms
        self._counts: dict[ModelRef, _Counts] = {}
        self._shared: dict[str, _Shared] = {}

    def call_ended(self, model: ModelRef, *, ok: bool, seconds: float, queued_s: float) -> None:
        """Count a request that *model* has answered, or failed to."""
        counts = self._counts.get(model)
        if counts is None:
            if len(self._counts) >= self._most:
                return
            counts = self._counts[model] = _Counts()
        if not ok:
            counts.failed += 1
            counts.failed_ns += int(seconds * _NS)
            return
        counts.succeeded += 1
        counts.succeeded_ns += int(seconds * _NS)
        counts.queued_ns += int(queued_s * _NS)
        counts.last_ms = self._now_ms()

    def batched(self, name: str, rows: int, waits_s: Sequence[float]) -> None:
        """Count a call made of requests that waited so long."""
        shared = self._shared.setdefault(name, _Shared())
        shared.rows[rows] = shared.rows.get(rows, 0) + 1
        shared.waited_ns += int(sum(waits_s) * _NS)

    def looked_up(self, name: str, *, hit: bool) -> None:
        """Count a request for whose answer the kept ones were searched."""
        shared = self._shared.setdefault(name, _Shared())
        if hit:
            shared.hits += 1
        else:
            shared.misses += 1

    def of(self, model: ModelRef | None) -> tuple[ModelStatistics, ...]:
        """Return the statistics of a model's versions, of one version, or of all models."""
        return tuple(
            self._told(known, counts)
            for known, counts in self._counts.items()
            if model is None or (known.name == model.name and model.version in ("", known.version))
        )

    def _told(self, model: ModelRef, counts: _Counts) -> ModelStatistics:
        shared = self._shared.get(model.name, _Shared())
        if any(
            other.name == model.name and its.last_ms > counts.last_ms
            for other, its in self._counts.items()
        ):
            shared = _Shared()  # told with the version that was used last
        queued_ns = counts.queued_ns + shared.waited_ns
        executions = sum(shared.rows.values()) or max(counts.succeeded - shared.hits, 0)
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
                compute_infer=Duration(executions, max(counts.succeeded_ns - queued_ns, 0)),
                cache_hit=Duration(shared.hits),
                cache_miss=Duration(shared.misses),
            ),
            batches={
                size: BatchStatistics(compute_infer=Duration(count))
                for size, count in sorted(shared.rows.items())
            },
        )
