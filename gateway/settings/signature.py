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
    """Dimensions, batch axis included. `-1` stands for a variable dimension."""


class SignatureConfig(Model):
    """Metadata of a model, for servers that report none or that report it wrong.

    At least one key is required. The keys replace parts of the metadata of the server. With both
    `inputs` and `outputs` the gateway works without the metadata of the server.
    """

    inputs: tuple[TensorConfig, ...] | None = None
    """Inputs of the model, in order. Default: the inputs that the server reports."""
    outputs: tuple[TensorConfig, ...] | None = None
    """Outputs of the model, in order. Default: the outputs that the server reports."""
    max_batch_size: int | None = Field(None, ge=0)
    """Largest batch, on the first axis of every shape. `0` stands for a model without a batch
    axis. Default: the value that the server reports, or unknown."""
    labels: Mapping[Name, tuple[Text, ...]] = Field(default_factory=dict)
    """Class names of outputs, by the name of the output, in the order of the classes. Default: the
    labels of the server."""
    stateful: bool | None = None
    """Whether the requests of the model belong to sequences. Default: the value that the server
    reports, or `false`."""

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
