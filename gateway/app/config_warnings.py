"""Warnings about a configuration that is correct, and still not what its author wants.

`gateway validate` prints them; with `--strict` they are errors.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.config.routes import MatchConfig
from gateway.config.tls import TlsConfig
from gateway.config.yaml_tree import Finding, KeyPath, Problem, reference_hint
from gateway.registry import extensions, protocol, protocol_names

_STREAM: Final = "stream"


def warnings(loaded: LoadedConfig) -> list[Problem]:
    """Return every warning about a configuration without errors."""
    config, directory = loaded.config, loaded.directory
    findings = [
        *_nothing_to_serve(config),
        *_routes_without_calls(config),
        *_unknown_protocols(config),
        *_missing_files(config, directory),
        *_unreached_models(config),
        *_unused_upstreams(config),
        *_literal_references(loaded),
    ]
    for extension in extensions().values():
        findings += extension.warnings(loaded)
    return [*loaded.retired(), *(loaded.problem(path, message) for path, message in findings)]


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


def _unreached_models(config: Config) -> Iterator[Finding]:
    """Yield the models and pipelines of the gateway that are no target of a route."""
    targets = [target for route in config.routes for target in route.targets]
    reached = {target.model for target in targets if target.upstream is None}
    own = [("models", name) for name, model in config.models.items() if model.backend]
    for key, name in (*own, *(("pipelines", name) for name in config.pipelines)):
        if config.routes and name not in reached:
            kind = key.removesuffix("s")
            text = f"no route reaches this {kind}: expected a target {{model: {name}}} of a route"
            yield (key, name), text


def _unused_upstreams(config: Config) -> Iterator[Finding]:
    targets = [target for route in config.routes for target in route.targets]
    used = {target.upstream for target in targets}
    used |= {each.passthrough.upstream for each in config.listeners if each.passthrough}
    for name in config.upstreams:
        if config.routes and name not in used:
            text = f"no route uses this upstream: expected a target {{upstream: {name}}} of a route"
            yield ("upstreams", name), text


def _literal_references(loaded: LoadedConfig) -> Iterator[Finding]:
    for path, text in loaded.literal_references():
        yield path, f"{text!r} is not replaced; {reference_hint(text)}"


def _takes_all(earlier: MatchConfig | None, later: MatchConfig | None) -> bool:
    """Return whether *earlier* certainly matches every call that *later* matches."""
    if earlier is None:
        return True
    if (
        earlier.version is not None
        or earlier.protocol is not None
        or earlier.headers
        or earlier.clients
        or earlier.groups
        or earlier.tiers
    ):
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
        f"{name}.{carrier}"
        for name in protocol_names()
        for carrier in (*protocol(name).carriers, _STREAM)
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
