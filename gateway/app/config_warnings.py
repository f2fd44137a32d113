"""Warnings about a configuration that is correct, and still not what its author wants.

`gateway validate` prints them; with `--strict` they are errors.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gateway.config.load import LoadedConfig
from gateway.config.models import Config, ListenerConfig
from gateway.config.routes import MatchConfig
from gateway.config.tls import TlsConfig
from gateway.config.yaml_tree import Finding, KeyPath, Problem
from gateway.registry import PROTOCOLS, extensions, protocol
from gateway.settings.units import Url

_STREAM: Final = "stream"


def warnings(loaded: LoadedConfig) -> list[Problem]:
    """Return every warning about a configuration without errors."""
    config, directory = loaded.config, loaded.directory
    findings = [
        *_nothing_to_serve(config),
        *_routes_without_calls(config),
        *_unknown_protocols(config),
        *_missing_files(config, directory),
        *_loops(config),
    ]
    for extension in extensions().values():
        findings += extension.warnings(loaded)
    return [loaded.problem(path, message) for path, message in findings]


def _nothing_to_serve(config: Config) -> Iterator[Finding]:
    if not config.upstreams and not any(model.backend for model in config.models.values()):
        yield (), "there is no upstream and no model: every call gets an error"


def _routes_without_calls(config: Config) -> Iterator[Finding]:
    """Yield the routes whose calls an earlier route takes."""
    for index, route in enumerate(config.routes):
        for before, earlier in enumerate(config.routes[:index]):
            if _takes_all(earlier.match, route.match):
                name = earlier.name or f"route-{before + 1}"
                yield ("routes", index), f"no call reaches this route: {name!r} takes them before"
                break


def _takes_all(earlier: MatchConfig | None, later: MatchConfig | None) -> bool:
    """Return whether *earlier* certainly matches every call that *later* matches."""
    if earlier is None:
        return True
    if earlier.version is not None or earlier.protocol is not None or earlier.headers:
        return False
    patterns = ("*",) if earlier.model is None else earlier.model
    if "*" in patterns:
        return True
    if later is None or later.model is None:
        return False
    return all(
        name in patterns
        or (not _is_pattern(name) and any(fnmatchcase(name, each) for each in patterns))
        for name in later.model
    )


def _is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[")


def _unknown_protocols(config: Config) -> Iterator[Finding]:
    names = [
        f"{name}.{carrier}" for name in PROTOCOLS for carrier in (*protocol(name).carriers, _STREAM)
    ]
    for index, route in enumerate(config.routes):
        for pattern in () if route.match is None else route.match.protocol or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                near = get_close_matches(pattern, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                path: KeyPath = ("routes", index, "match", "protocol")
                yield path, f"no protocol matches {pattern!r}{hint}"


def _missing_files(config: Config, directory: Path) -> Iterator[Finding]:
    for index, listener in enumerate(config.listeners):
        yield from _missing_tls(("listeners", index, "tls"), listener.tls, directory)
    if config.admin is not None:
        yield from _missing_tls(("admin", "tls"), config.admin.tls, directory)
    for name, upstream in config.upstreams.items():
        yield from _missing_tls(("upstreams", name, "tls"), upstream.tls, directory)
    for name, model in config.models.items():
        found = model.path
        if found is not None and not (directory / found).exists():
            yield ("models", name, "path"), _no_file(directory / found)


def _missing_tls(at: KeyPath, tls: TlsConfig | None, directory: Path) -> Iterator[Finding]:
    for path, name in () if tls is None else tls.files():
        if not (directory / name).exists():
            yield (*at, *path), _no_file(directory / name)


def _no_file(path: Path) -> str:
    return f"no such file: {path}"


def _loops(config: Config) -> Iterator[Finding]:
    """Yield the upstreams that are a listener of this gateway."""
    ports = {port for listener in config.listeners for port in _ports(listener)}
    for name, upstream in config.upstreams.items():
        for url in upstream.all_urls:
            if _is_own(url, ports):
                message = f"{url} is a listener of this gateway: calls would go round"
                yield ("upstreams", name), message


def _ports(listener: ListenerConfig) -> Iterator[int]:
    for address in (listener.http, listener.grpc, listener.address):
        if address is not None and address.port:
            yield address.port
    for stream in listener.streams:
        if stream.address.tcp is not None and stream.address.tcp.port:
            yield stream.address.tcp.port


def _is_own(url: Url, ports: set[int]) -> bool:
    return url.is_loopback and url.port in ports
