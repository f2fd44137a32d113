"""The routing rules of a configuration, in order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.config.models import Config
from gateway.config.pipelines import StepConfig
from gateway.config.routes import MatchConfig, RouteConfig, TargetConfig
from gateway.ir.context import ModelRef
from gateway.policies.limits.deadline import ROUTE_TIMEOUT, TIMEOUT
from gateway.routing.match import Rule
from gateway.settings.patterns import Matches, globs, is_pattern


@dataclass(frozen=True, slots=True)
class RuledRoute:
    """A route of the configuration, or a default route if the configuration has none.

    Attributes:
        rules: The route matches a call if any of them does.
        config: None for a default route.
        model: The in-process model of a default route; "" if it looks for the model's upstream.
    """

    name: str
    rules: tuple[Rule, ...]
    config: RouteConfig | None = None
    model: str = ""


def ruled_routes(config: Config) -> list[RuledRoute]:
    """Return the routes of *config* in order of precedence.

    A configuration without routes gets a default route for each of its models and pipelines, and
    one for the models of all upstreams.
    """
    if config.routes:
        return [
            RuledRoute(route.name or f"route-{number}", _rules(route.match), route)
            for number, route in enumerate(config.routes, start=1)
        ]
    names = [name for name, model in config.models.items() if model.backend is not None]
    names += config.pipelines
    routes = [RuledRoute(name, (Rule(model=_literal(name)),), model=name) for name in names]
    if config.upstreams:
        routes.append(RuledRoute("upstreams", (Rule(),)))
    return routes


def named_models(config: Config) -> Iterator[str]:
    """Yield the models that the configuration names without a wildcard."""
    for route in ruled_routes(config):
        if route.model:
            yield route.model
        elif route.config is not None and route.config.match is not None:
            for pattern in route.config.match.model or ():
                if not is_pattern(pattern):
                    yield pattern


def required_routes(config: Config) -> tuple[str, ...] | None:
    """Return the routes that must all be ready for the gateway to be ready; None for any one."""
    required = config.lifecycle.ready
    if required is None or required == ("any",):
        return None
    if required == ("all",):
        return tuple(route.name for route in ruled_routes(config))
    return required


def own_models(route: RuledRoute) -> list[str]:
    """Return the in-process models of a route; none if the route also has other targets."""
    if route.config is None:
        return [route.model] if route.model else []
    targets = route.config.targets
    names = [target.model for target in targets if target.upstream is None and target.model]
    return names if len(names) == len(targets) else []


def _rules(match: MatchConfig | None) -> tuple[Rule, ...]:
    if match is None:
        return (Rule(),)
    return tuple(
        Rule(
            model=pattern,
            versions=match.version or (),
            protocols=match.protocol or (),
            headers=match.headers,
            clients=match.clients,
            groups=match.groups,
            tiers=match.tiers,
        )
        for pattern in match.model or ("*",)
    )


def _literal(name: str) -> str:
    """Return a glob that matches only *name*."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def model_of(name: str, step: StepConfig) -> ModelRef:
    """Return the model that the step *name* of a pipeline calls."""
    return ModelRef(step.model or name, step.version or "")


def target_name(target: TargetConfig) -> str:
    """Return the name of a target in logs and metrics."""
    name = target.upstream or "local"
    if target.model:
        name += f"/{target.model}"
    return f"{name}:{target.version}" if target.version else name


_LONGEST_S: Final = 600.0
"""How long a call without a client may still run at an upstream without a timeout."""


def routes_by_upstream(config: Config) -> dict[str, list[RuledRoute]]:
    """Return the routes to each upstream."""
    found: dict[str, list[RuledRoute]] = {name: [] for name in config.upstreams}
    for ruled in ruled_routes(config):
        if ruled.config is not None:
            names = {each.upstream for each in ruled.config.targets if each.upstream is not None}
        else:
            names = set() if ruled.model else {*found}
        for name in names & found.keys():
            found[name].append(ruled)
    return found


def longest_timeout(config: Config, routes: Iterable[RuledRoute]) -> float:
    """Return the longest timeout of *routes* to an upstream, and ten minutes without one."""
    own = [ROUTE_TIMEOUT.of(ruled.config) for ruled in routes]
    found = [TIMEOUT.of(config.policies), *(each for each in own if each is not None)]
    return max(each or _LONGEST_S for each in found)


def models_at(upstream: str, routes: Iterable[RuledRoute]) -> Matches:
    """Return whether *routes* may send calls of a model to *upstream*, by its name there."""
    found: list[str] = []
    for ruled in routes:
        names = [rule.model for rule in ruled.rules]
        if ruled.config is None:
            found += names
            continue
        for target in ruled.config.targets:
            if target.upstream == upstream:
                found += names if target.model is None else [_literal(target.model)]
    return globs(found)


def text_routes(routes: Iterable[RuledRoute]) -> frozenset[str]:
    """Return the *routes* that forward text sequence ids to unknown models."""
    return frozenset(
        ruled.name
        for ruled in routes
        if ruled.config is not None and ruled.config.sequence_ids == "text"
    )
