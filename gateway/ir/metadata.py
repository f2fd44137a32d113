"""Metadata of servers and models: names, versions, tensors, state, shared memory regions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.ir.statistics import ModelStatistics
from gateway.ir.tensors.datatypes import Datatype


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output as a model declares it.

    Attributes:
        shape: Batch included; -1 for a variable dimension; None if the server does not report it.
    """

    name: str
    datatype: Datatype | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """A model's signature.

    Attributes:
        versions: Available versions; empty where the server has none.
        max_batch_size: 0 if the model does not batch; None if unknown.
        labels: Class labels for an output, by output name.
        configuration: The server's configuration, if the call's needs include BATCHING.
        stateful: The server reports that the model expects sequences.
        decoupled: The server reports that a request may have any number of replies.
        dialect: How the server differs from others of its protocol; "" where nothing tells it. It
            is no part of the signature.
        declarations: What the configuration declares for protocols, by the protocol; no part of
            the signature either.
        reported: The inputs that the server reports, where the configuration has others; no part
            of the signature either.
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
    configuration: ModelConfiguration | None = None
    dialect: str = field(default="", compare=False)
    declarations: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    reported: tuple[TensorMetadata, ...] = field(default=(), compare=False, repr=False)

    def changed(self, **fields: Any) -> ModelMetadata:
        """Return a copy with *fields* changed."""
        return replace(self, **fields)

    @property
    def labelled(self) -> frozenset[str]:
        """The outputs for which the server's configuration has class labels."""
        return frozenset() if self.configuration is None else self.configuration.labelled

    @property
    def supports_batching(self) -> bool:
        """Whether the first axis of every tensor is the batch axis.

        If `max_batch_size` is unknown, this is so if the first axis of every tensor is variable.
        """
        if self.max_batch_size is not None:
            return self.max_batch_size > 0
        tensors = (*self.inputs, *self.outputs)
        return bool(tensors) and all((tensor.shape or ())[:1] == (-1,) for tensor in tensors)


@dataclass(frozen=True, slots=True)
class ModelConfiguration:
    """A model configuration as Triton defines it.

    Attributes:
        document: The JSON form with Triton's field names; a missing field has its default.
        is_withheld: The server may have a configuration and did not show it: the document is made
            of the model's metadata.
    """

    document: Mapping[str, Any]
    is_withheld: bool = False

    @property
    def max_batch_size(self) -> int:
        """The maximum batch size; 0 for a model that does not batch."""
        size = self.document.get("max_batch_size", 0)
        return size if type(size) is int else 0

    @property
    def labelled(self) -> frozenset[str]:
        """The outputs that have a file of class labels."""
        outputs = self.document.get("output")
        return frozenset(
            str(output.get("name"))
            for output in (outputs if isinstance(outputs, list) else ())
            if isinstance(output, dict) and output.get("label_filename")
        )

    @property
    def stateful(self) -> bool:
        """Whether the model expects sequences."""
        return "sequence_batching" in self.document

    @property
    def decoupled(self) -> bool:
        """Whether a request may have any number of replies, in any order with those of others."""
        policy = self.document.get("model_transaction_policy")
        return isinstance(policy, dict) and policy.get("decoupled") is True


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """The name, version and extensions of a server."""

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
    """One entry of a repository index."""

    name: str
    version: str = ""
    state: ModelState = ModelState.UNKNOWN
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model with the states of its versions.

    Attributes:
        entries: Empty if no index lists the model.
        statistics: Of its versions; empty if the server has none.
    """

    metadata: ModelMetadata
    entries: tuple[RepositoryEntry, ...] = ()
    statistics: tuple[ModelStatistics, ...] = ()


@dataclass(frozen=True, slots=True)
class Trend:
    """A quantity over time, or its distribution.

    Attributes:
        points: Over time: 30 days, 24 hours, 60 minutes, 60 seconds, numbered in this order, the
            oldest of each first. Of a distribution: percentile and value; 100 and 101 stand for
            99.9 and 99.99.
    """

    points: tuple[tuple[int, float], ...]
    is_distribution: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """The state of a server and its models.

    Attributes:
        trends: By name; empty unless the call requests them.
    """

    is_ready: bool
    uptime_s: float = 0.0
    models: tuple[ModelStatus, ...] = ()
    trends: Mapping[str, Trend] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRegion:
    """A registered region of shared memory.

    Attributes:
        key: Of the POSIX segment, leading slash included; "" for a CUDA region.
        offset: Into the segment, bytes.
        device: CUDA device; None for system memory.
        handle: CUDA handle for other processes; present in a registration, never in a status.
    """

    name: str
    size_bytes: int
    key: str = ""
    offset: int = 0
    device: int | None = None
    handle: bytes = b""
