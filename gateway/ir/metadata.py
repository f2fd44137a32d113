"""What is known of servers and models: names, versions, tensors."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.ir.datatypes import Datatype
from gateway.ir.statistics import ModelStatistics


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output as a model declares it.

    Attributes:
        shape: Batch included; -1 for a variable dimension; None where the server does not tell.
    """

    name: str
    datatype: Datatype | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """A model's signature.

    Attributes:
        versions: Versions that can be asked for; empty where the server has none.
        max_batch_size: 0: the model does not batch; None: unknown.
        labels: Class labels for an output, by output name.
        stateful: It is asked within sequences, as far as its server tells.
        decoupled: A request may have any number of answers, as far as its server tells.
    """

    name: str
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    max_batch_size: int | None = None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stateful: bool = False
    decoupled: bool = False

    def changed(self, **fields: Any) -> ModelMetadata:
        """Return a copy with *fields* changed."""
        return replace(self, **fields)

    @property
    def batches(self) -> bool:
        """Whether the first axis of every tensor is the batch.

        Where the server does not say: when every tensor declares a variable first axis.
        """
        if self.max_batch_size is not None:
            return self.max_batch_size > 0
        tensors = (*self.inputs, *self.outputs)
        return bool(tensors) and all((tensor.shape or ())[:1] == (-1,) for tensor in tensors)


@dataclass(frozen=True, slots=True)
class ModelConfiguration:
    """How a model is set up, in the words of Triton's model configuration.

    Attributes:
        document: As it stands in JSON, fields under their original names; one that is missing has
            its default.
    """

    document: Mapping[str, Any]

    @property
    def max_batch_size(self) -> int:
        """The largest batch; 0 for a model that does not batch."""
        found = self.document.get("max_batch_size", 0)
        return found if type(found) is int else 0

    @property
    def stateful(self) -> bool:
        """Whether the model is asked within sequences."""
        return "sequence_batching" in self.document


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Who answers."""

    name: str
    version: str
    extensions: tuple[str, ...] = ()


class ModelState(enum.Enum):
    """State of a model in a repository index. Source: Triton model repository extension."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """One line of a repository index."""

    name: str
    version: str = ""
    state: ModelState = ModelState.UNKNOWN
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model with the states of its versions.

    Attributes:
        entries: Empty where no index lists the model.
        statistics: Of its versions; empty where nobody counts.
    """

    metadata: ModelMetadata
    entries: tuple[RepositoryEntry, ...] = ()
    statistics: tuple[ModelStatistics, ...] = ()


@dataclass(frozen=True, slots=True)
class Trend:
    """One thing measured over time, or the distribution of one.

    Attributes:
        points: Over time: 30 days, 24 hours, 60 minutes, 60 seconds, numbered in this order, the
            oldest of each first. Of a distribution: percent, and the value that so many are below;
            100 and 101 stand for 99.9 and 99.99.
    """

    points: tuple[tuple[int, float], ...]
    distribution: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """How a server is, and its models.

    Attributes:
        trends: By name; empty where they were not asked for.
    """

    ready: bool
    uptime_s: float = 0.0
    models: tuple[ModelStatus, ...] = ()
    trends: Mapping[str, Trend] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRegion:
    """A region of shared memory that requests may refer to.

    Attributes:
        key: Of the POSIX segment, leading slash included; "" for a CUDA region.
        offset: Into the segment, bytes.
        device: CUDA device; None for system memory.
        handle: CUDA's for other processes; only a registration has it, no status.
    """

    name: str
    size_bytes: int
    key: str = ""
    offset: int = 0
    device: int | None = None
    handle: bytes = b""
