"""How much models have been used, as ServerStatus has it: counters of each version, by batch size.

v1 counts requests by the size of their batch; the gateway has requests in all, and runs by size.
Written is what is the same in both: no number is made up.

Source: docs/protocols/tensorrt-v1.md, "15. Server status and model configuration"; Triton
statistics extension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def write_counters(told: pb.ModelVersionStatus, found: ModelStatistics) -> None:
    """Write the counters of a version.

    A version whose batches were all of one size has its requests under that size too.
    """
    told.model_execution_count = found.execution_count
    told.model_inference_count = found.inference_count
    told.last_inference_timestamp_milliseconds = found.last_inference_ms
    sizes = [size for size in found.batches if 0 < size < _UINT32_END]
    for size in sizes:
        _write(told.infer_stats[size].compute, found.batches[size].compute_infer)
    if len(sizes) == 1:
        stats = told.infer_stats[sizes[0]]
        for field, duration in (
            (stats.success, found.inference.success),
            (stats.failed, found.inference.fail),
            (stats.queue, found.inference.queue),
        ):
            _write(field, duration)


def _write(field: pb.StatDuration, duration: Duration) -> None:
    if duration != ZERO:
        field.count, field.total_time_ns = duration.count, duration.ns


def read_counters(
    call: Call[Any], status: pb.ServerStatus, limits: MessageLimits
) -> tuple[ModelStatistics, ...]:
    """Read the counters of one version, one model or all models.

    Raises:
        ModelNotFound: There is no such model or version.
        InvalidRequest, TooLarge: A name is not allowed, or there are too many.
    """
    asked = call.model
    check_count("models", len(status.model_status), _LISTED, "models")
    found = []
    for name, model in sorted(status.model_status.items()):
        check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
        if asked is not None and asked.name != name:
            continue
        for number, version in sorted(model.version_status.items()):
            if asked is None or asked.version in ("", str(number)):
                found.append(_of_version(name, str(number), version))
    if asked is not None and not found:
        raise ModelNotFound(f"model {str(asked)!r} is not in the status of the server", model=asked)
    return tuple(found)


def _of_version(name: str, number: str, told: pb.ModelVersionStatus) -> ModelStatistics:
    stats = dict(sorted(told.infer_stats.items()))
    return ModelStatistics(
        name=name,
        version=number,
        last_inference_ms=told.last_inference_timestamp_milliseconds,
        inference_count=told.model_inference_count,
        execution_count=told.model_execution_count,
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
    """Return the time of the model itself, which servers before 1.13 do not take apart."""
    return stats.compute_infer if stats.HasField("compute_infer") else stats.compute


def _sum(
    stats: Iterable[pb.InferRequestStats], field: Callable[[pb.InferRequestStats], pb.StatDuration]
) -> Duration:
    return reduce(add, [_read(field(one)) for one in stats], ZERO)


def _read(told: pb.StatDuration) -> Duration:
    return Duration(told.count, told.total_time_ns)
