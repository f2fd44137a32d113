"""Signatures of models in the configuration file."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator

from gateway.settings.fields import Name, Text
from gateway.settings.model import Model


class TensorConfig(Model):
    """An input or output of a model."""

    name: Name
    """Name of the tensor."""
    datatype: Text
    """Datatype of Open Inference: `BOOL`, `UINT8` to `UINT64`, `INT8` to `INT64`, `FP16`, `FP32`,
    `FP64`, `BF16` or `BYTES`."""
    shape: tuple[int, ...]
    """Dimensions, batch axis included; `-1` is variable."""


class SignatureConfig(Model):
    """Metadata of a model, for servers that report none or wrong ones.

    The keys replace parts of what the server reports; one is required. With both `inputs` and
    `outputs` the gateway needs no metadata of the server.
    """

    inputs: tuple[TensorConfig, ...] | None = None
    """Inputs, in order. Default: what the server reports."""
    outputs: tuple[TensorConfig, ...] | None = None
    """Outputs, in order. Default: what the server reports."""
    max_batch_size: int | None = Field(None, ge=0)
    """Largest batch, on the first axis of every shape. `0` means no batch axis. Default: what
    the server reports, or unknown."""
    labels: Mapping[Name, tuple[Text, ...]] = Field(default_factory=dict)
    """Class names of outputs, by output, in order. Default: those of the server."""
    stateful: bool | None = None
    """Whether requests belong to sequences. Default: what the server reports, or `false`."""

    @property
    def is_complete(self) -> bool:
        """Whether it has both the inputs and the outputs."""
        return self.inputs is not None and self.outputs is not None

    @model_validator(mode="after")
    def _check_not_empty(self) -> SignatureConfig:
        if not self.model_fields_set:
            keys = ", ".join(type(self).model_fields)
            raise ValueError(f"a signature needs at least one of its keys: {keys}")
        return self
