"""Pipelines in YAML: graphs of models that callers see as one."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from gateway.config.fields import Name, Scalar, Text
from gateway.config.signatures import Model, SignatureConfig


class StepConfig(Model):
    """One model of a pipeline, and where its inputs come from."""

    model: Name | None = None
    """As a client would name it; left out, the step's own name."""
    version: Scalar | None = None
    """Left out, the model's newest."""
    inputs: Mapping[Name, Text] = Field(min_length=1)
    """The model's input to what it is given: request.INPUT, or STEP.OUTPUT of another step."""


class PipelineConfig(Model):
    """A graph of models that is called like one; steps run as soon as what they need is there."""

    version: Scalar = "1"
    """Of the pipeline."""
    steps: Mapping[Name, StepConfig] = Field(min_length=1, max_length=256)
    """By name; the order does not matter."""
    outputs: Mapping[Name, Text] = Field(min_length=1)
    """The pipeline's output to where it comes from: STEP.OUTPUT, or request.INPUT."""
    signature: SignatureConfig | None = None
    """What callers are told; left out, what the models say of themselves."""
