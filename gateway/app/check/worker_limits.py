"""Checks for settings that need all calls in one process, because workers share no state.

They apply to every `workers` setting except 1, `auto` included: whether a configuration is valid
does not depend on the number of cores.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.api.protocol import ProtocolSpec
from gateway.config.models import Config, ListenerConfig
from gateway.config.yaml_tree import Finding, KeyPath
from gateway.policies.cache import CACHE
from gateway.policies.shared_memory.layer import SHARED_MEMORY
from gateway.policies.signatures import SIGNATURE
from gateway.registry import protocol
from gateway.routing.rolling.settings import ROLLING_LOAD
from gateway.settings.units import AUTO

STATELESS: Final = frozenset({"onnx", "torch"})
"""Backends whose models keep no state between requests."""


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
    for name, upstream in config.upstreams.items():
        if ROLLING_LOAD.of(upstream) is not None:
            yield ("upstreams", name, "rolling_load"), "would reach one worker only"
    for name, model in config.models.items():
        signature = SIGNATURE.of(model)
        if model.backend is not None and signature is not None and signature.stateful:
            path: KeyPath = ("models", name, "signature", "stateful")
            yield path, "would send parts of a sequence to different workers"


def _check_listener(at: KeyPath, listener: ListenerConfig, config: Config) -> Iterator[Finding]:
    if SHARED_MEMORY.of(listener).mode == "map":
        yield (*at, "shared_memory"), "would register a region in one worker only"
    for name, options in listener.options.items():
        try:
            spec = protocol(name)
        except LookupError:  # which `check` reports at its position
            continue
        yield from _check_options((*at, "options", name), spec, options, config)


def _check_options(
    at: KeyPath, spec: ProtocolSpec, options: Mapping[str, Any], config: Config
) -> Iterator[Finding]:
    """Yield each option once, whichever of its reasons comes first."""
    models = {
        "in_process": [name for name, each in config.models.items() if each.backend is not None],
        "cached": [name for name, each in config.models.items() if CACHE.of(each) is not None],
    }
    found: dict[str, str] = {}
    for option in spec.one_process:
        value = options.get(option.key)
        if not isinstance(value, str | bool) or value not in option.values:
            continue
        if not option.needs:
            found.setdefault(option.key, option.reason)
        elif models[option.needs]:
            model = repr(models[option.needs][0])
            found.setdefault(option.key, option.reason.format(model=model))
    for key, reason in found.items():
        yield (*at, key), reason
