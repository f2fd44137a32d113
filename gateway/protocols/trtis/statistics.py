"""Usage counters in ServerStatus, for each version of a model by batch size.

v1 counts requests by the size of their batch.  Other servers count requests in total, and
executions by size, so the size here is that of the execution.

Source: docs/protocols/tensorrt-v1.md, "15. Server status and model configuration"; Triton
statistics extension.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import add
from typing import Any

from gateway.ir.calls import Call
from gateway.ir.errors import ModelNotFound
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.statistics import ZERO, BatchStatistics, Duration, InferStatistics, ModelStatistics
from gateway.schema import tensorrt_v1_pb2 as pb

_LISTED = 10_000
_UINT32_END = 1 << 32
_SMALLEST = 1


def write_counters(entry: pb.ModelVersionStatus, statistics: ModelStatistics) -> None:
    """Write the counters of a version.

    Each counter grows with the server's, and the sum over all sizes is the server's total.
    """
    entry.model_execution_count = statistics.execution_count
    entry.model_inference_count = statistics.inference_count
    entry.last_inference_timestamp_milliseconds = statistics.last_inference_ms
    batches = {size: batch for size, batch in statistics.batches.items() if 0 < size < _UINT32_END}
    for size, batch in batches.items():
        _write(entry.infer_stats[size].compute, batch.compute_infer)
    executed = {
        size: Duration(
            batch.compute_infer.count,
            batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns,
        )
        for size, batch in batches.items()
    }
    counts = {size: Duration(batch.count, 0) for size, batch in executed.items()}
    inference = statistics.inference
    for size, duration in _by_size(inference.success, executed).items():
        _write(entry.infer_stats[size].success, duration)
    for size, duration in _by_size(inference.queue, counts).items():
        _write(entry.infer_stats[size].queue, duration)
    if inference.fail != ZERO:
        _write(entry.infer_stats[_SMALLEST].failed, inference.fail)


def _by_size(total: Duration, executed: Mapping[int, Duration]) -> dict[int, Duration]:
    """Divide *total* by batch size: each size has its executions, and 1 has the rest.

    The rest has no known size: requests that the server batched, and waiting.  It always belongs to
    size 1, so that no counter decreases when another size is executed for the first time, and all
    workers report the same.
    """
    counts = _add_remainder(total.count, {size: one.count for size, one in executed.items()})
    times = _add_remainder(total.ns, {size: one.ns for size, one in executed.items()})
    return {size: Duration(counts.get(size, 0), times.get(size, 0)) for size in {**counts, **times}}


def _add_remainder(total: int, parts: dict[int, int]) -> dict[int, int]:
    rest = total - sum(parts.values())
    if rest > 0:
        return {**parts, _SMALLEST: parts.get(_SMALLEST, 0) + rest}
    for size in sorted(parts):  # failed executions
        surplus = min(parts[size], -rest)
        parts[size] -= surplus
        rest += surplus
    return parts


def _write(field: pb.StatDuration, duration: Duration) -> None:
    if duration != ZERO:
        field.count, field.total_time_ns = duration.count, duration.ns


def read_counters(
    call: Call[Any], status: pb.ServerStatus, limits: MessageLimits
) -> tuple[ModelStatistics, ...]:
    """Read the counters of one version, one model or all models.

    Raises:
        ModelNotFound: The model or version does not exist.
        InvalidRequest, TooLarge: A name is not allowed, or there are too many.
    """
    requested = call.model
    check_count("models", len(status.model_status), _LISTED, "models")
    found = []
    for name, model in sorted(status.model_status.items()):
        check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
        if requested is not None and requested.name != name:
            continue
        for number, version in sorted(model.version_status.items()):
            if requested is None or requested.version in ("", str(number)):
                found.append(_of_version(name, str(number), version))
    if requested is not None and not found:
        raise ModelNotFound(
            f"model {str(requested)!r} is not in the status of the server", model=requested
        )
    return tuple(found)


def _of_version(name: str, number: str, version_status: pb.ModelVersionStatus) -> ModelStatistics:
    stats = dict(sorted(version_status.infer_stats.items()))
    return ModelStatistics(
        name=name,
        version=number,
        last_inference_ms=version_status.last_inference_timestamp_milliseconds,
        inference_count=version_status.model_inference_count,
        execution_count=version_status.model_execution_count,
        inference=InferStatistics(
            success=_sum(stats.values(), lambda one: one.success),
            fail=_sum(stats.values(), lambda one: one.failed),
            queue=_sum(stats.values(), lambda one: one.queue),
            compute_input=_sum(stats.values(), lambda one: one.compute_input),
            compute_infer=_sum(stats.values(), _computed),
            compute_output=_sum(stats.values(), lambda one: one.compute_output),
        ),
        batches={
            size: BatchStatistics(
                compute_input=_read(one.compute_input),
                compute_infer=_read(_computed(one)),
                compute_output=_read(one.compute_output),
            )
            for size, one in stats.items()
        },
    )


def _computed(stats: pb.InferRequestStats) -> pb.StatDuration:
    """Return the time of the model itself, which servers before 1.13 do not report separately."""
    return stats.compute_infer if stats.HasField("compute_infer") else stats.compute


def _sum(
    stats: Iterable[pb.InferRequestStats], field: Callable[[pb.InferRequestStats], pb.StatDuration]
) -> Duration:
    return reduce(add, [_read(field(one)) for one in stats], ZERO)


def _read(version_status: pb.StatDuration) -> Duration:
    return Duration(version_status.count, version_status.total_time_ns)
