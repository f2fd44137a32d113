"""Pipelines of the configuration file: graphs of models that clients call like one model."""

from collections.abc import Mapping

from pydantic import Field

from gateway.settings.fields import Name, Scalar, Text
from gateway.settings.model import Model
from gateway.settings.signature import SignatureConfig


class StepConfig(Model):
    """A call of one model, and the sources of its inputs."""

    model: Name | None = None
    """Name of the model, routed like the request of a client. Default: the name of the step."""
    version: Scalar | None = None
    """Version of the model. Default: its newest version."""
    inputs: Mapping[Name, Text] = Field(min_length=1)
    """Inputs of the model, each with its source: `request.INPUT` or `STEP.OUTPUT`."""


class PipelineConfig(Model):
    """A graph of models. Each step runs as soon as its inputs are available."""

    version: Scalar = "1"
    """Version of the pipeline. Default: `1`."""
    steps: Mapping[Name, StepConfig] = Field(min_length=1, max_length=256)
    """Steps, by name, in any order."""
    outputs: Mapping[Name, Text] = Field(min_length=1)
    """Outputs, each with its source: `STEP.OUTPUT` or `request.INPUT`."""
    signature: SignatureConfig | None = None
    """Its metadata. Default: derived from the models of its steps."""
