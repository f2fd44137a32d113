"""What is known of servers and models: names, versions, tensors."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.ir.datatypes import Datatype


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
    """

    name: str
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    max_batch_size: int | None = None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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
