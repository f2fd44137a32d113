"""What YAML says of a model's inputs and outputs, and the base of every model of the file."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.config.fields import Name, Text


class Model(BaseModel):
    """Frozen; refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TensorConfig(Model):
    """An input or output in a signature."""

    name: Name
    datatype: Text
    shape: tuple[int, ...]


class SignatureConfig(Model):
    """What a model is like, for targets that do not tell or to correct them.

    A target is asked for what is left out, but for nothing where inputs and outputs are given.
    """

    inputs: tuple[TensorConfig, ...] | None = None
    outputs: tuple[TensorConfig, ...] | None = None
    max_batch_size: int | None = Field(None, ge=0)
    """Largest batch, on the first axis of every shape; 0 for a model that does not batch."""
    labels: Mapping[Name, tuple[Text, ...]] = Field(default_factory=dict)
    """Names of the classes of an output, in order."""
    stateful: bool | None = None
    """Whether it is asked within sequences."""

    @property
    def is_whole(self) -> bool:
        """Whether it gives every tensor."""
        return self.inputs is not None and self.outputs is not None

    @model_validator(mode="after")
    def _something(self) -> SignatureConfig:
        if not self.model_fields_set:
            raise ValueError("a signature gives at least one of its keys")
        return self
