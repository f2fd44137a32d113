"""Warnings about a configuration that is correct, and still not what its author wants.

`gateway validate` prints them; with `--strict` they are errors.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gateway.app.build.package_layers import configured_readers
from gateway.cli.validation.unknown_names import unknown_names
from gateway.config.load import LoadedConfig
from gateway.config.models import Config, ListenerConfig, UpstreamConfig
from gateway.config.routes import MatchConfig
from gateway.config.tls import TlsConfig
from gateway.config.yaml_tree import Finding, KeyPath, Problem, reference_hint
from gateway.registry import extensions
from gateway.settings.patterns import is_pattern
from gateway.telemetry.faults import FAULTS
from gateway.transports.implementations import Side, limitations


def warnings(loaded: LoadedConfig) -> list[Problem]:
    """Return every warning about a configuration without errors."""
    config, directory = loaded.config, loaded.directory
    findings = [
        *_nothing_to_serve(config),
        *_routes_without_calls(config),
        *unknown_names(loaded),
        *_missing_files(config, directory),
        *_unreached_models(config),
        *_unused_upstreams(config),
        *_literal_references(loaded),
        *_unread_inferences(loaded),
        *_reference_transports(config),
    ]
    for name, extension in extensions().items():
        try:
            findings += extension.warnings(loaded)
        except FAULTS as error:
            reason = f"{type(error).__name__}: {error}"
            findings.append(((), f"extension {name!r} cannot look for warnings: {reason}"))
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


def _unread_inferences(loaded: LoadedConfig) -> Iterator[Finding]:
    """Yield what passes the layers of packages unread."""
    names = configured_readers(loaded)
    for index, listener in enumerate(loaded.config.listeners):
        if names and listener.passthrough is not None and listener.passthrough.post:
            yield (
                ("listeners", index, "passthrough", "post"),
                f"the layer {names[0]!r} reads tensors, and requests to these paths pass it unread",
            )


def _reference_transports(config: Config) -> Iterator[Finding]:
    """Yield the listeners and upstreams with keys that `transport: reference` does not obey."""
    for index, listener in enumerate(config.listeners):
        sides: list[Side] = ["http server"] if listener.http is not None else []
        sides += ["grpc server"] if listener.grpc is not None else []
        yield from _unheeded(("listeners", index, "transport"), listener, sides)
    for name, upstream in config.upstreams.items():
        carrier = upstream.all_urls[0].carrier
        client: list[Side] = [each for each in _CLIENTS if each.startswith(f"{carrier} ")]
        yield from _unheeded(("upstreams", name, "transport"), upstream, client)


_CLIENTS: Final[tuple[Side, ...]] = ("http client", "grpc client")


def _unheeded(
    at: KeyPath, section: ListenerConfig | UpstreamConfig, sides: Sequence[Side]
) -> Iterator[Finding]:
    every = {
        *section.model_fields_set,
        *(f"limits.{key}" for key in section.limits.model_fields_set),
    }
    found = [
        f"{key!r} ({each.side.removesuffix(' client').removesuffix(' server')})"
        for each in limitations(section.transport, *sides)
        for key in each.keys
        if key in every
    ]
    if found:
        yield (
            at,
            (
                f"'reference' does not obey {', '.join(dict.fromkeys(found))}; expected "
                "'transport: native', or no such key"
            ),
        )


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
        or (not is_pattern(name) and any(fnmatchcase(name, each) for each in patterns))
        for name in later.model
    )


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
