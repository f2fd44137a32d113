"""The routing rules of a configuration, in order, for the gateway and for `gateway explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.config.models import Config, MatchConfig, RouteConfig, TargetConfig
from gateway.config.pipelines import StepConfig
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.routing.match import Matcher, Rule


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
                if not any(char in pattern for char in "*?["):
                    yield pattern


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
        )
        for pattern in match.model or ("*",)
    )


def _literal(name: str) -> str:
    """Return a glob that matches only *name*."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The route of a call, and why.

    Attributes:
        route: None if no route matches.
        verdicts: Route, whether it matches, and why, for each rule up to the first that matches.
        targets: One line of text for each target of the route, and for each pipeline step.
    """

    route: str | None
    verdicts: tuple[tuple[str, bool, str], ...]
    targets: tuple[str, ...]


def explain_call(
    config: Config, *, model: str, version: str, protocol: str, headers: dict[str, str]
) -> Explanation:
    """Match a call against the rules of *config*, without connecting to anything."""
    routes = ruled_routes(config)
    owners = [(route, rule) for route in routes for rule in route.rules]
    metadata = tuple((name.lower(), value) for name, value in headers.items())
    call = InferRequest(
        model=ModelRef(model, version), context=Context(protocol=protocol, metadata=metadata)
    )
    verdicts: list[tuple[str, bool, str]] = []
    matcher = Matcher([rule for _, rule in owners])
    for (route, _), verdict in zip(owners, matcher.explain(call), strict=True):
        verdicts.append((route.name, verdict.matched, "; ".join(verdict.reasons)))
        if verdict.matched:
            return Explanation(route.name, tuple(verdicts), tuple(_targets(config, route, model)))
    return Explanation(None, tuple(verdicts), ())


def _targets(config: Config, route: RuledRoute, model: str) -> Iterator[str]:
    if route.config is None:
        if route.model:
            yield _own_text(config, route.model) + _shared_text(config, route.model, own=True)
            if route.model in config.pipelines:
                yield from _steps(config, route.model)
        else:
            text = _shared_text(config, model, own=False)
            yield f"the first of {', '.join(config.upstreams)} that serves the model{text}"
        return
    total = sum(target.weight for target in route.config.targets)
    for target in route.config.targets:
        share = f"{100 * target.weight / total:.4g}%"
        yield f"{share} to {_target_text(config, target, model)}"
        if target.upstream is None and target.model and target.model in config.pipelines:
            yield from _steps(config, target.model)


def _target_text(config: Config, target: TargetConfig, model: str) -> str:
    if target.upstream is None:
        text = _own_text(config, target.model or "")
    else:
        urls = ", ".join(str(url) for url in config.upstreams[target.upstream].all_urls)
        text = f"upstream {target.upstream!r} ({urls})"
        if target.model:
            text += f" as model {target.model!r}"
    if target.version:
        text += f" version {target.version!r}"
    return text + _shared_text(config, target.model or model, own=target.upstream is None)


def model_of(name: str, step: StepConfig) -> ModelRef:
    """Return the model that the step *name* of a pipeline calls."""
    return ModelRef(step.model or name, step.version or "")


def _steps(config: Config, name: str) -> Iterator[str]:
    """Yield a line for each step of a pipeline: the model it calls, and the route."""
    routes = ruled_routes(config)
    matcher = Matcher([rule for route in routes for rule in route.rules])
    owners = [route for route in routes for _ in route.rules]
    for step, step_config in config.pipelines[name].steps.items():
        model = model_of(step, step_config)
        index = matcher.find(InferRequest(model=model))
        route = "directly" if index is None else f"by route {owners[index].name}"
        sources = ", ".join(f"{key} from {source}" for key, source in step_config.inputs.items())
        yield f"  step {step!r} calls model {str(model)!r} {route}, with {sources}"


def _own_text(config: Config, name: str) -> str:
    return f"{'pipeline' if name in config.pipelines else 'model'} {name!r} of this gateway"


def _shared_text(config: Config, model: str, *, own: bool) -> str:
    """Describe the batching and caching of a model, the gateway's *own* or an upstream's."""
    entry = config.models.get(model)
    if entry is None or (entry.backend is not None) is not own:
        return ""
    text = ""
    if entry.batching is not None:
        rows = entry.batching.max_batch_size
        text += f", in batches of up to {rows} rows" if rows else ", in batches"
    if entry.cache is not None:
        text += f", replies cached for {entry.cache.max_age:g} s"
    return text


def target_name(target: TargetConfig) -> str:
    """Return the name of a target in logs and metrics."""
    name = target.upstream or "local"
    if target.model:
        name += f"/{target.model}"
    return f"{name}:{target.version}" if target.version else name
