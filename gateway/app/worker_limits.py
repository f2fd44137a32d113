"""What several workers cannot do right, because one of them knows what the others do not.

Refused before anything starts, and for every number of workers but 1: whether a file is right does
not depend on how many cores a machine has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.config.models import Config, ListenerConfig, ModelConfig
from gateway.config.units import AUTO
from gateway.config.yaml_tree import KeyPath

Found = tuple[KeyPath, str]

STATELESS: Final = frozenset({"onnx", "torch"})
"""Backends whose models keep nothing from one request to the next."""

_YES: Final = frozenset({True, "true"})


@dataclass(frozen=True, slots=True)
class _Option:
    """An option of a protocol whose effect would stay in one process."""

    protocol: str
    key: str
    values: frozenset[Any]
    reason: str


_OPTIONS: Final = (
    _Option("oip", "logging", frozenset({"gateway"}), "would change the log of one worker alone"),
    _Option("oip", "statistics", frozenset({"gateway"}), "would tell what one worker has counted"),
    _Option("grps", "switch", _YES, "would set one worker alone online or offline"),
)


def shared_state(config: Config) -> Iterator[Found]:
    """Yield what a configuration asks for that needs all calls in one process, and why."""
    if config.workers == 1:
        return
    count = "auto" if config.workers == AUTO else config.workers
    for path, reason in _found(config):
        yield path, f"with 'workers: {count}' this {reason}; it needs 'workers: 1'"


def _found(config: Config) -> Iterator[Found]:
    for index, listener in enumerate(config.listeners):
        yield from _in_listener(("listeners", index), listener, config)
    if not config.lifecycle.online:
        yield ("lifecycle", "online"), "waits for a call that would reach one worker alone"
    for name, model in config.models.items():
        if model.backend is not None and model.signature is not None and model.signature.stateful:
            path: KeyPath = ("models", name, "signature", "stateful")
            yield path, "would keep parts of a sequence in different workers"


def _in_listener(at: KeyPath, listener: ListenerConfig, config: Config) -> Iterator[Found]:
    if listener.shared_memory == "map":
        yield (*at, "shared_memory"), "would make a region known to one worker alone"
    for option in _OPTIONS:
        value = listener.options.get(option.protocol, {}).get(option.key)
        if isinstance(value, str | bool) and value in option.values:
            yield (*at, "options", option.protocol, option.key), option.reason
    yield from _about_models((*at, "options", "oip"), listener.options.get("oip", {}), config)


def _about_models(at: KeyPath, options: Mapping[str, Any], config: Config) -> Iterator[Found]:
    own = next((name for name, model in config.models.items() if _is_own(model)), None)
    kept = next((name for name, model in config.models.items() if model.cache is not None), None)
    if options.get("model_control") in _YES:
        if own is not None:
            yield (*at, "model_control"), f"would load or unload model {own!r} in one worker alone"
        elif kept is not None:
            reason = f"would leave old answers of model {kept!r} in all workers but one"
            yield (*at, "model_control"), reason
    if options.get("statistics") == "target" and own is not None:
        reason = f"would tell what one worker has counted of model {own!r}"
        yield (*at, "statistics"), reason


def _is_own(model: ModelConfig) -> bool:
    return model.backend is not None
