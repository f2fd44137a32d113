"""Sections of a configuration file, with the keys that layers own."""

import json
from typing import Any

from gateway.app.build.chain_context import NO_CONTEXT, ChainContext
from gateway.config.load import load_text
from gateway.config.models import Config, ModelConfig
from gateway.telemetry.metrics import Metrics


def config_of(**keys: Any) -> Config:
    """Return a configuration with further keys at the top."""
    upstreams = {"u": {"url": "oip+http://127.0.0.1:9000"}}
    base = {"version": 1, "listeners": [{"http": 8000}], "upstreams": upstreams}
    return load_text(json.dumps(base | keys)).config


def model_of(**keys: Any) -> ModelConfig:
    """Return the entry of a model."""
    return config_of(models={"m": keys}).models["m"]


def model_context(name: str, model: ModelConfig, metrics: Metrics) -> ChainContext:
    """Return what the layers of a model may use."""
    return ChainContext(
        name=name, sections={"model": model}, parts=NO_CONTEXT.parts, metrics=metrics
    )
