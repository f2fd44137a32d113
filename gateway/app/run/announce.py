"""What the log says when the gateway has started: where it listens, and what to try first."""

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from gateway import __version__
from gateway.accelerator import MISSING
from gateway.api.platform import Platform
from gateway.config.load import LoadedConfig
from gateway.config.models import Config, ListenerConfig
from gateway.ir.calls import RepositoryIndexRequest
from gateway.ir.context import Context
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelState
from gateway.policies.limits.deadline import TIMEOUT
from gateway.policies.shared_memory.layer import SHARED_MEMORY
from gateway.registry import platforms, protocol, protocol_names
from gateway.service import Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

_LISTED: Final = 20
_PATIENCE_S: Final = 5.0


def log_started(config: Config, addresses: Mapping[str, str], **facts: object) -> None:
    """Log what the gateway serves, one line for each address, and that it has started.

    Args:
        config: The configuration.
        addresses: By the names of the servers.
        facts: What else the last line tells.
    """
    _log_reference_upstreams(config)
    _log_extensions(config.listeners)
    log_platforms(config)
    if TIMEOUT.key not in config.policies.model_fields_set:
        log.info(
            "default timeout",
            timeout=f"{TIMEOUT.default:g}s",
            keys="policies.timeout, or timeout of a route; 0s sets no limit",
        )
    log_plain_python()
    for server, address in addresses.items():
        log.info("listening", server=server, address=address)
    log.info("started", version=__version__, **facts, **addresses)


def _log_extensions(listeners: Sequence[ListenerConfig]) -> None:
    """Log which extensions each listener serves, and how to enable the others."""
    for config in listeners:
        for name in config.protocols or protocol_names():
            status = protocol(name).extension_status
            if status is None:
                continue
            on, off = (list(names) for names in status(config.options.get(name, {})))
            mode = SHARED_MEMORY.of(config).mode
            off, on = (
                ([*off, "shared_memory"], on)
                if mode == "off"
                else (off, [*on, f"shared_memory={mode}"])
            )
            log.info(
                "extensions",
                listener=config.name,
                on=", ".join(on) or "none",
                off=", ".join(off) or "none",
                enable=f"--enable NAME, or options: {{{name}: {{NAME: true}}}} of the listener",
            )


def log_retired_keys(loaded: LoadedConfig) -> None:
    """Log one warning for each retired key of the file."""
    for each in loaded.retired():
        log.warning("retired key", source=loaded.source, **each.entry())


def _log_reference_upstreams(config: Config) -> None:
    """Log a warning for the upstreams whose libraries bound less than the gateway does."""
    found = [name for name, one in config.upstreams.items() if one.transport == "reference"]
    if found:
        log.warning(
            "reference transport",
            upstreams=", ".join(found),
            meaning="each HTTP request has a connection of its own, and calls of clients that "
            "leave are cancelled",
            key="upstreams.NAME.transport",
        )


def log_plain_python() -> None:
    """Log that the compiled functions are missing, unless somebody has switched them off."""
    if MISSING:
        log.warning(
            "no compiled code for this platform",
            python=platform.python_version(),
            machine=platform.machine(),
            instead="plain Python, which needs 1.4 times the CPU; a wheel for this platform has it",
        )


def log_platforms(config: Config, environment: Mapping[str, str] = os.environ) -> None:
    """Log in which platform's container the gateway runs, and what is wrong there.

    Args:
        config: The configuration; its listeners have the protocols of the platforms.
        environment: The environment variables.
    """
    names = (
        each for listener in config.listeners for each in listener.protocols or protocol_names()
    )
    for each in platforms(dict.fromkeys(names)):
        if {each.marker, each.port} & environment.keys():
            _log_platform(each, config, environment)


def _log_platform(platform: Platform, config: Config, environment: Mapping[str, str]) -> None:
    facts = {key: environment.get(variable, "") for key, variable in platform.facts.items()}
    log.info("platform", name=platform.name, **facts)
    version, known = environment.get(platform.contract, ""), platform.known_contract
    if version and version.partition(".")[0] != known:
        log.warning("unknown contract of the platform", version=version, known=known)
    unserved = list(_unserved(platform, config, environment))
    if unserved:
        log.warning("the platform's calls are not served", variables=", ".join(unserved))
    storage = platform.missing_models(environment)
    if storage and not (config.models or config.upstreams):
        log.warning(
            "models are not fetched",
            storage=storage,
            instead="put the artefacts into the image, or copy them with a start command",
        )


def _unserved(platform: Platform, config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables of a platform whose port or path no listener has."""
    servers = [each for one in config.listeners for each in (one.http, one.address)]
    ports = {str(each.port) for each in servers if each is not None}
    if environment.get(platform.port, "0") not in {"0", *ports}:
        yield platform.port
    options = [each for one in config.listeners for each in one.options.values()]
    for variable, (section, key) in platform.routes.items():
        if variable in environment:
            paths = {each.get(section, {}).get(key) for each in options}
            if environment[variable] not in paths:
                yield variable


async def log_models(
    index: Service, listeners: Iterable[ListenerConfig], addresses: Mapping[str, str]
) -> None:
    """Log the models that clients can reach, and a command to try.

    Args:
        index: Handles a RepositoryIndexRequest.
        listeners: The listeners that the configuration has.
        addresses: By the names of the servers.
    """
    context = Context(deadline=time.monotonic() + _PATIENCE_S)
    try:
        entries = await index(RepositoryIndexRequest(context=context))
    except GatewayError as error:
        log.warning("models not listed", reason=error_text(error))
        return
    names = list(dict.fromkeys(entry.name for entry in entries))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    log.info("models found", count=len(names), models=", ".join(names[:_LISTED]) + more)
    ready = [entry.name for entry in entries if entry.state is ModelState.READY]
    command = example_command(listeners, addresses, next(iter(ready or names), ""))
    if command:
        log.info("try", command=command)


def example_command(
    listeners: Iterable[ListenerConfig], addresses: Mapping[str, str], model: str
) -> str:
    """Return a command to try; "" if no listener serves HTTP of a protocol that has one.

    Args:
        listeners: The listeners that the configuration has.
        addresses: By the names of the servers.
        model: "" for no model.
    """
    for listener in listeners:
        specs = map(protocol, listener.protocols or protocol_names())
        example = next((spec.example for spec in specs if spec.example is not None), None)
        if example is None:
            continue
        names = (f"{listener.name}.http", f"{listener.name}.http+grpc")
        for address in (addresses[name] for name in names if name in addresses):
            host = address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
            scheme = "http" if listener.tls is None else "https"
            return example(f"{scheme}://{host}", model)
    return ""
