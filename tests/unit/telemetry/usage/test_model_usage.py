"""Usage: counts by model and version, and counts of batches and caches."""

from __future__ import annotations

from gateway.ir.context import ModelRef
from gateway.ir.statistics import BatchStatistics, Duration
from gateway.telemetry.usage.model_usage import Usage, epoch_ms

V1, V2 = ModelRef("m", "1"), ModelRef("m", "2")
ONCE = BatchStatistics(
    compute_input=Duration(1), compute_infer=Duration(1), compute_output=Duration(1)
)


def test_batches_count_as_executions() -> None:
    """Each batch is one execution, and the waits of its requests are queue time."""
    usage = Usage(now_ms=lambda: 1)
    for _ in range(3):
        usage.record_call(V1, ok=True, seconds=1.0, queued_s=0.0)
    usage.record_batch("m", 2, [0.25, 0.5])
    usage.record_batch("m", 1, [0.0])
    (found,) = usage.of(V1)
    assert (3, 2) == (found.inference_count, found.execution_count)
    assert 750_000_000 == found.inference.queue.ns
    assert {1: ONCE, 2: ONCE} == found.batches
    phases = found.inference
    assert Duration(2) == phases.compute_input == phases.compute_output
    assert 2 == phases.compute_infer.count


def test_cache_hits_are_no_executions() -> None:
    """A cache hit is an inference that no target has run."""
    usage = Usage(now_ms=lambda: 1)
    for hit in (False, True):
        usage.record_lookup("m", hit=hit)
        usage.record_call(V1, ok=True, seconds=0.5, queued_s=0.0)
    (found,) = usage.of(V1)
    assert (2, 1) == (found.inference_count, found.execution_count)
    assert (Duration(1), Duration(1)) == (found.inference.cache_hit, found.inference.cache_miss)


def test_batches_are_reported_with_the_version_used_last() -> None:
    """Batches belong to no version, and are not reported twice."""
    times = iter([1, 2])
    usage = Usage(now_ms=lambda: next(times))
    usage.record_call(V1, ok=True, seconds=0.0, queued_s=0.0)
    usage.record_call(V2, ok=True, seconds=0.0, queued_s=0.0)
    usage.record_batch("m", 4, [0.0])
    assert [{}, {4: ONCE}] == [found.batches for found in usage.of(ModelRef("m"))]


def test_number_of_counted_versions_is_limited() -> None:
    """Clients choose versions, so none is counted beyond the limit."""
    usage = Usage(1)
    usage.record_call(V1, ok=True, seconds=0.0, queued_s=0.0)
    usage.record_call(V2, ok=True, seconds=0.0, queued_s=0.0)
    assert ["1"] == [found.version for found in usage.of(None)]


def test_epoch_time_is_in_milliseconds() -> None:
    """The time counts from the epoch, and does not decrease."""
    assert 1_600_000_000_000 < epoch_ms() <= epoch_ms()
