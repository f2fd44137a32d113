"""Usage statistics of models: counts and total durations.

Source: docs/protocols/open-inference.md, "14. Models, statistics and settings".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Duration:
    """The number of executions and their total duration."""

    count: int = 0
    ns: int = 0

    def __add__(self, other: Duration) -> Duration:
        return Duration(self.count + other.count, self.ns + other.ns)


ZERO = Duration()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Durations:
    """A set of durations; addition adds each of them."""

    def __add__(self, other: Self) -> Self:
        kind = type(self)
        return kind(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(kind)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InferStatistics(_Durations):
    """Outcomes of requests, and the time spent in each phase."""

    success: Duration = ZERO
    fail: Duration = ZERO
    queue: Duration = ZERO
    compute_input: Duration = ZERO
    compute_infer: Duration = ZERO
    compute_output: Duration = ZERO
    cache_hit: Duration = ZERO
    cache_miss: Duration = ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics(_Durations):
    """Outcomes of the responses at one position of a stream."""

    compute_infer: Duration = ZERO
    compute_output: Duration = ZERO
    success: Duration = ZERO
    fail: Duration = ZERO
    empty_response: Duration = ZERO
    cancel: Duration = ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics(_Durations):
    """The time that batches of one size spent in each phase."""

    compute_input: Duration = ZERO
    compute_infer: Duration = ZERO
    compute_output: Duration = ZERO


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory that a model uses; *kind* and *device* as the server names them."""

    kind: str
    device: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """Usage statistics of one version of a model.

    Attributes:
        last_inference_ms: Since the epoch; 0 for never.
        inference_count: Inferences, each item of a batch counted.
        execution_count: Executions of the model, a batch counted once.
        batches: By batch size.
        responses: By the position of a response in its stream.
    """

    name: str
    version: str = ""
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    inference: InferStatistics = InferStatistics()
    batches: Mapping[int, BatchStatistics] = field(default_factory=dict)
    memory: tuple[MemoryUsage, ...] = ()
    responses: Mapping[str, ResponseStatistics] = field(default_factory=dict)

    def __add__(self, other: ModelStatistics) -> ModelStatistics:
        """Return the combined statistics of the same model on two servers."""
        return ModelStatistics(
            name=self.name,
            version=self.version,
            last_inference_ms=max(self.last_inference_ms, other.last_inference_ms),
            inference_count=self.inference_count + other.inference_count,
            execution_count=self.execution_count + other.execution_count,
            inference=self.inference + other.inference,
            batches={
                size: self.batches.get(size, BatchStatistics())
                + other.batches.get(size, BatchStatistics())
                for size in sorted({*self.batches, *other.batches})
            },
            memory=(*self.memory, *other.memory),
            responses={
                position: self.responses.get(position, ResponseStatistics())
                + other.responses.get(position, ResponseStatistics())
                for position in dict.fromkeys((*self.responses, *other.responses))
            },
        )


def merge_statistics(entries: tuple[ModelStatistics, ...]) -> tuple[ModelStatistics, ...]:
    """Return the sum of *entries* for each model and version, in order of first appearance."""
    merged: dict[tuple[str, str], ModelStatistics] = {}
    for entry in entries:
        key = entry.name, entry.version
        merged[key] = merged[key] + entry if key in merged else entry
    return tuple(merged.values())
