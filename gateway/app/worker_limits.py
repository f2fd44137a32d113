"""Checks for settings that need all calls in one process, because workers share no state.

They apply to every `workers` setting except 1, `auto` included: whether a configuration is valid
does not depend on the number of cores.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.config.models import Config, ListenerConfig
from gateway.config.yaml_tree import Finding, KeyPath
from gateway.settings.units import AUTO

STATELESS: Final = frozenset({"onnx", "torch"})
"""Backends whose models keep no state between requests."""

_YES: Final = frozenset({True, "true"})


@dataclass(frozen=True, slots=True)
class _Option:
    """An option of a protocol whose effect is limited to one process."""

    protocol: str
    key: str
    values: frozenset[Any]
    reason: str


_OPTIONS: Final = (
    _Option("oip", "logging", frozenset({"gateway"}), "would change the log of one worker only"),
    _Option("oip", "statistics", frozenset({"gateway"}), "would report one worker's counts only"),
    _Option("grps", "switch", _YES, "would set one worker only online or offline"),
)


def check_workers(config: Config) -> Iterator[Finding]:
    """Yield each setting that does not work with several processes, with the reason."""
    if config.workers == 1:
        return
    count = "auto" if config.workers == AUTO else config.workers
    for path, reason in _findings(config):
        yield path, f"with 'workers: {count}' this {reason}; it needs 'workers: 1'"


def _findings(config: Config) -> Iterator[Finding]:
    for index, listener in enumerate(config.listeners):
        yield from _check_listener(("listeners", index), listener, config)
    if not config.lifecycle.online:
        yield ("lifecycle", "online"), "waits for a call that would reach one worker only"
    for name, model in config.models.items():
        if model.backend is not None and model.signature is not None and model.signature.stateful:
            path: KeyPath = ("models", name, "signature", "stateful")
            yield path, "would send parts of a sequence to different workers"


def _check_listener(at: KeyPath, listener: ListenerConfig, config: Config) -> Iterator[Finding]:
    if listener.shared_memory.mode == "map":
        yield (*at, "shared_memory"), "would register a region in one worker only"
    for option in _OPTIONS:
        value = listener.options.get(option.protocol, {}).get(option.key)
        if isinstance(value, str | bool) and value in option.values:
            yield (*at, "options", option.protocol, option.key), option.reason
    yield from _check_models((*at, "options", "oip"), listener.options.get("oip", {}), config)


def _check_models(at: KeyPath, options: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    models = config.models.items()
    in_process = next((name for name, model in models if model.backend is not None), None)
    cached = next((name for name, model in models if model.cache is not None), None)
    if options.get("model_control") in _YES:
        if in_process is not None:
            reason = f"would load or unload model {in_process!r} in one worker only"
            yield (*at, "model_control"), reason
        elif cached is not None:
            reason = f"would leave outdated replies of model {cached!r} in all other workers"
            yield (*at, "model_control"), reason
    if options.get("statistics") == "target" and in_process is not None:
        reason = f"would report one worker's counts of model {in_process!r} only"
        yield (*at, "statistics"), reason
