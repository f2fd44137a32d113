"""Checks that a server of an upstream can load models, where keys need that."""

from collections.abc import Iterator
from typing import Any

from gateway.config.models import Config
from gateway.config.yaml_tree import Finding
from gateway.ir.calls import Call, ModelLoadRequest, RepositoryIndexRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported
from gateway.ir.limits import MessageLimits
from gateway.registry import carrier_of, protocol
from gateway.routing.residency.settings import RESIDENCY
from gateway.routing.rolling.settings import ROLLING_LOAD
from gateway.settings.units import Url

_LOAD = ModelLoadRequest(model=ModelRef("m"))


def check_model_control(config: Config) -> Iterator[Finding]:
    """Yield the keys that need loads, before a server whose protocol has none."""
    for name, upstream in config.upstreams.items():
        url = upstream.all_urls[0]
        calls: dict[str, tuple[Call[Any], ...]] = {}
        if RESIDENCY.of(upstream) is not None:
            calls["residency"] = (_LOAD, RepositoryIndexRequest())
        if ROLLING_LOAD.of(upstream) is not None:
            calls["rolling_load"] = (_LOAD,)
        for key, needed in calls.items():
            if not all(_has(url, upstream.options, call) for call in needed):
                text = f"{url.scheme} has no loads of models, or no index of them"
                yield ("upstreams", name, key), f"{text}; expected a protocol with both"


def _has(url: Url, options: Any, call: Call[Any]) -> bool:
    """Return whether a protocol has a form of *call*; unknown ones are reported elsewhere."""
    try:
        spec, binding = protocol(url.protocol), carrier_of(url)
        codec = binding.codec(MessageLimits(), spec.options(options or {}))
    except (LookupError, ValueError):
        return True
    try:
        codec.encode_call(call)
    except Unsupported:
        return False
    return True
