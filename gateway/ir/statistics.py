"""How much a model has been used: counts and durations, as a server adds them up.

Source: docs/protocols/open-inference.md, "14. Models, statistics and settings".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Duration:
    """So many times something was done, and how long that took in all."""

    count: int = 0
    ns: int = 0

    def __add__(self, other: Duration) -> Duration:
        """Return both together."""
        return Duration(self.count + other.count, self.ns + other.ns)


NEVER = Duration()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Durations:
    """Durations of several things, which are added one by one."""

    def __add__(self, other: Self) -> Self:
        """Return both together."""
        kind = type(self)
        return kind(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(kind)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InferStatistics(_Durations):
    """What became of requests, and where their time went."""

    success: Duration = NEVER
    fail: Duration = NEVER
    queue: Duration = NEVER
    compute_input: Duration = NEVER
    compute_infer: Duration = NEVER
    compute_output: Duration = NEVER
    cache_hit: Duration = NEVER
    cache_miss: Duration = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics(_Durations):
    """What became of the answers of one place in a stream."""

    compute_infer: Duration = NEVER
    compute_output: Duration = NEVER
    success: Duration = NEVER
    fail: Duration = NEVER
    empty_response: Duration = NEVER
    cancel: Duration = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics(_Durations):
    """Where the time of batches of one size went."""

    compute_input: Duration = NEVER
    compute_infer: Duration = NEVER
    compute_output: Duration = NEVER


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory that a model holds; *kind* and *device* as its server names them."""

    kind: str
    device: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """How much one version of a model has been used.

    Attributes:
        last_inference_ms: Since the epoch; 0 for never.
        inference_count: Inferences, each item of a batch counted.
        execution_count: Times the model ran, a batch counted once.
        batches: By size.
        responses: By the place of an answer in its stream.
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
        """Return the use of the same model at two servers together."""
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
                place: self.responses.get(place, ResponseStatistics())
                + other.responses.get(place, ResponseStatistics())
                for place in dict.fromkeys((*self.responses, *other.responses))
            },
        )


def summed(listed: tuple[ModelStatistics, ...]) -> tuple[ModelStatistics, ...]:
    """Return *listed* with each model and version once, in the order they come first."""
    found: dict[tuple[str, str], ModelStatistics] = {}
    for one in listed:
        key = one.name, one.version
        found[key] = found[key] + one if key in found else one
    return tuple(found.values())
