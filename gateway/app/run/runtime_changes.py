"""Changes of an operator while the gateway runs: drained endpoints, weights, and of extensions.

They are no part of the file. A reload keeps them, and they end when they are undone, or with the
process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from gateway.app.build.route_rules import RuledRoute, ruled_routes, target_name
from gateway.config.load import LoadedConfig
from gateway.config.models import Config, UpstreamConfig
from gateway.config.routes import RouteConfig
from gateway.registry import extensions
from gateway.routing.balancing.endpoints import ALL

Weights = Mapping[str, int]
"""Weight of each target of a route, by the name of the target."""


@dataclass(frozen=True, slots=True)
class RuntimeChanges:
    """All changes that are in force.

    Attributes:
        drained: Endpoints that get no new calls, as "UPSTREAM/ENDPOINT"; "*" means all endpoints of
            an upstream whose addresses are looked up.
        weights: Weights by the name of the route.
        parts: Changes of extensions, by a key of their choice, such as `capture`.
    """

    drained: frozenset[str] = frozenset()
    weights: Mapping[str, Weights] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_drained(self, config: Config, name: str, *, drained: bool) -> RuntimeChanges:
        """Return the changes after draining or enabling endpoints.

        Args:
            config: The configuration in force.
            name: "UPSTREAM/ENDPOINT", or "UPSTREAM" for all its endpoints. With `resolve: all` an
                endpoint is an IP address with its port, which need not be in use yet.
            drained: Whether they are drained from now on.

        Raises:
            LookupError: There is no such upstream or endpoint.
            ValueError: One endpoint cannot be enabled, because all are drained by one name.
        """
        upstream, _, endpoint = name.partition("/")
        if upstream not in config.upstreams:
            raise LookupError(_unknown("upstream", upstream, config.upstreams))
        names = _endpoint_names(config.upstreams[upstream])
        if endpoint and names != [ALL] and endpoint not in names:
            raise LookupError(_unknown(f"endpoint of upstream {upstream!r}", endpoint, names))
        changed = {f"{upstream}/{each}" for each in ([endpoint] if endpoint else names)}
        if drained:
            return replace(self, drained=self.drained | changed)
        if not endpoint:
            changed = {each for each in self.drained if each.startswith(f"{upstream}/")}
        elif f"{upstream}/{ALL}" in self.drained:
            raise ValueError(f"all of upstream {upstream!r} is drained; enable {upstream!r} first")
        return replace(self, drained=self.drained - changed)

    def with_weights(self, config: Config, route: str, weights: Weights | None) -> RuntimeChanges:
        """Return the changes after setting the weights of targets of a route.

        Args:
            config: The configuration in force.
            route: The name of the route.
            weights: Weights of some or all targets; None for those of the file.

        Raises:
            LookupError: There is no such route or target.
            ValueError: No target would have a weight above 0.
        """
        configs = {ruled.name: ruled.config for ruled in ruled_routes(config)}
        found = configs.get(route)
        if found is None:
            routes = [name for name, each in configs.items() if each is not None]
            raise LookupError(_unknown("route with targets", route, routes))
        others = {name: each for name, each in self.weights.items() if name != route}
        if weights is None:
            return replace(self, weights=others)
        names = [target_name(target) for target in found.targets]
        for name in weights:
            if name not in names:
                raise LookupError(_unknown(f"target of route {route!r}", name, names))
        merged = {**self.weights.get(route, {}), **weights}
        if not any(merged.get(target_name(each), each.weight) for each in found.targets):
            raise ValueError(f"all targets of route {route!r} would have weight 0")
        return replace(self, weights={**others, route: merged})

    def with_part(self, key: str, changed: Mapping[str, Any]) -> RuntimeChanges:
        """Return the changes with another one of an extension, which replaces that of *key*."""
        return replace(self, parts={**self.parts, key: dict(changed)})

    def check(self, loaded: LoadedConfig) -> None:
        """Check that extensions accept the changes.

        Raises:
            LookupError: A change names something that does not exist.
            ValueError: A change is invalid.
        """
        for extension in extensions().values():
            extension.apply_changes(loaded, self.document())

    def apply(self, loaded: LoadedConfig) -> LoadedConfig:
        """Return the configuration with the changes; those that do not fit it are ignored."""
        for extension in extensions().values():
            for key, value in self.parts.items():
                with suppress(LookupError, ValueError):
                    loaded = cast("LoadedConfig", extension.apply_changes(loaded, {key: value}))
        if not self.weights:
            return loaded
        routes = tuple(
            _weighted(route, self.weights.get(ruled.name, {}))
            for route, ruled in zip(loaded.config.routes, ruled_routes(loaded.config), strict=False)
        )
        return loaded.changed(routes=routes)

    def document(self) -> dict[str, Any]:
        """Return the changes as a JSON object."""
        found: dict[str, Any] = {"drained": sorted(self.drained), "weights": self.weights}
        return {**found, **self.parts}


def differences(changes: RuntimeChanges, config: Config) -> dict[str, Any]:
    """Return the changes that hold against the file, as a JSON object; empty for none.

    Args:
        changes: The changes in force.
        config: The configuration of the file. Changes that do not fit it have no effect.
    """
    found: dict[str, Any] = {}
    drained = [
        name
        for name in sorted(changes.drained)
        if (upstream := config.upstreams.get(name.partition("/")[0])) is not None
        and name.partition("/")[2] in {ALL, *_endpoint_names(upstream)}
    ]
    if drained:
        found["drained"] = drained
    weights = {
        ruled.name: different
        for ruled in ruled_routes(config)
        if (different := _different_weights(ruled, changes.weights.get(ruled.name, {})))
    }
    if weights:
        found["weights"] = weights
    return {**found, **changes.parts}


def _different_weights(ruled: RuledRoute, weights: Weights) -> dict[str, dict[str, int]]:
    if ruled.config is None or _weighted(ruled.config, weights) is ruled.config:
        return {}
    return {
        name: {"now": now, "file": target.weight}
        for target in ruled.config.targets
        if (now := weights.get(name := target_name(target), target.weight)) != target.weight
    }


def runtime_document(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return `differences` as a JSON object, with a line of text for each."""
    return {"changes": found, "lines": list(_lines(found))}


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each difference, with the command that ends it."""
    for name in found.get("drained", ()):
        upstream, _, endpoint = name.partition("/")
        command = upstream if endpoint == ALL else name
        yield f"{name} is drained ('gateway upstream enable {command}' ends this)"
    for route, targets in found.get("weights", {}).items():
        now = " ".join(f"{name}={each['now']}" for name, each in targets.items())
        file = " ".join(f"{name}={each['file']}" for name, each in targets.items())
        yield f"route {route}: {now}, not {file} as in the file ('gateway route reset {route}')"
    for key, value in found.items():
        if key not in {"drained", "weights"}:
            yield f"{key}: {' '.join(f'{name}={each}' for name, each in value.items())}"


def _endpoint_names(config: UpstreamConfig) -> list[str]:
    if config.resolve == "all":
        return [ALL]
    return [url.authority for url in config.all_urls]


def _weighted(route: RouteConfig, weights: Weights) -> RouteConfig:
    targets = tuple(
        target.model_copy(update={"weight": weights.get(target_name(target), target.weight)})
        for target in route.targets
    )
    # After a reload a route may have other targets, of which none has a weight.
    if not any(target.weight for target in targets):
        return route
    return route.model_copy(update={"targets": targets})


def _unknown(kind: str, name: str, names: Any) -> str:
    return f"unknown {kind} {name!r}; expected one of {', '.join(sorted(names)) or 'none'}"
