"""Statistics of models to and from Triton's message, which is also the source of its JSON.

Source: Triton statistics extension; docs/protocols/open-inference.md,
"14. Models, statistics and settings".
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.statistics import (
    BatchStatistics,
    Duration,
    InferStatistics,
    MemoryUsage,
    ModelStatistics,
    ResponseStatistics,
)
from gateway.schema import open_inference_pb2 as pb

# Of a response: the limits of messages do not fit a list of models.
_LISTED = 10_000


def to_message(listed: Iterable[ModelStatistics]) -> pb.ModelStatisticsResponse:
    """Return statistics as a message."""
    return pb.ModelStatisticsResponse(model_stats=[_written(one) for one in listed])


def from_message(
    message: pb.ModelStatisticsResponse, limits: MessageLimits
) -> tuple[ModelStatistics, ...]:
    """Return the statistics in a message.

    Raises:
        InvalidRequest, TooLarge: A name is not allowed, or there are too many entries.
    """
    check_count("model_stats", len(message.model_stats), _LISTED, "model_stats")
    return tuple([_read(one, limits) for one in message.model_stats])


def _written(found: ModelStatistics) -> pb.ModelStatistics:
    message = pb.ModelStatistics(
        name=found.name,
        version=found.version,
        last_inference=found.last_inference_ms,
        inference_count=found.inference_count,
        execution_count=found.execution_count,
        inference_stats=pb.InferStatistics(**_durations(found.inference)),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=size, **_durations(batch))
            for size, batch in found.batches.items()
        ],
        memory_usage=[
            pb.MemoryUsage(type=one.kind, id=one.device, byte_size=one.size_bytes)
            for one in found.memory
        ],
    )
    for place, responses in found.responses.items():
        message.response_stats[place].CopyFrom(pb.InferResponseStatistics(**_durations(responses)))
    return message


def _durations(found: Any) -> dict[str, Any]:
    """Return the durations of one kind of statistics, by their names in the message."""
    return {
        one.name: pb.StatisticDuration(count=value.count, ns=value.ns)
        for one in fields(found)
        for value in [getattr(found, one.name)]
    }


def _read(message: pb.ModelStatistics, limits: MessageLimits) -> ModelStatistics:
    check_name("model name", message.name, limits.model_name_bytes, "model_name_bytes")
    check_name("model version", message.version, limits.name_bytes, "name_bytes")
    for what in (message.batch_stats, message.memory_usage, message.response_stats):
        check_count("statistics of one model", len(what), _LISTED, "model_stats")
    return ModelStatistics(
        name=message.name,
        version=message.version,
        last_inference_ms=message.last_inference,
        inference_count=message.inference_count,
        execution_count=message.execution_count,
        inference=InferStatistics(**_read_durations(InferStatistics, message.inference_stats)),
        batches={
            one.batch_size: BatchStatistics(**_read_durations(BatchStatistics, one))
            for one in message.batch_stats
        },
        memory=tuple(
            [MemoryUsage(one.type, one.id, one.byte_size) for one in message.memory_usage]
        ),
        responses={
            place: ResponseStatistics(**_read_durations(ResponseStatistics, one))
            for place, one in message.response_stats.items()
        },
    )


def _read_durations(kind: Any, message: Any) -> dict[str, Duration]:
    return {
        one.name: Duration(value.count, value.ns)
        for one in fields(kind)
        for value in [getattr(message, one.name)]
    }
