"""Which rules a configuration makes, in order: shared by the gateway itself and by `explain`."""

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
    """A route of the configuration, or one made for a configuration that has none.

    Attributes:
        rules: Any of them takes a call.
        config: None for a made route.
        model: The gateway's own model that a made route serves; "" where it discovers.
    """

    name: str
    rules: tuple[Rule, ...]
    config: RouteConfig | None = None
    model: str = ""


def ruled_routes(config: Config) -> list[RuledRoute]:
    """Return the routes of *config* in order of precedence.

    A configuration without routes serves each of its own models and pipelines, and every
    upstream's models, under their own names.
    """
    if config.routes:
        return [
            RuledRoute(route.name or f"route-{number}", _rules(route.match), route)
            for number, route in enumerate(config.routes, start=1)
        ]
    made = [
        RuledRoute(name, (Rule(model=_literal(name)),), model=name)
        for name, model in config.models.items()
        if model.backend is not None
    ]
    made += [
        RuledRoute(name, (Rule(model=_literal(name)),), model=name) for name in config.pipelines
    ]
    if config.upstreams:
        made.append(RuledRoute("upstreams", (Rule(),)))
    return made


def named_models(config: Config) -> Iterator[str]:
    """Yield the models that the configuration names exactly."""
    for route in ruled_routes(config):
        if route.model:
            yield route.model
        elif route.config is not None and route.config.match is not None:
            for pattern in route.config.match.model or ():
                if not any(mark in pattern for mark in "*?["):
                    yield pattern


def own_models(route: RuledRoute) -> list[str]:
    """Return the gateway's own models that are all that a route has; none where it has more."""
    if route.config is None:
        return [route.model] if route.model else []
    names = [target.model for target in route.config.targets if target.upstream is None]
    found = [name for name in names if name is not None]
    return found if len(found) == len(route.config.targets) else []


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
    """Return a glob that matches *name* alone."""
    return "".join(f"[{mark}]" if mark in "*?[" else mark for mark in name)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which route a call would take, and why.

    Attributes:
        route: None when no route takes the call.
        verdicts: Route, whether it matches, and why, for each rule up to the one that is taken.
        targets: What the route does with the call, a line for each target.
    """

    route: str | None
    verdicts: tuple[tuple[str, bool, str], ...]
    targets: tuple[str, ...]


def explain_call(
    config: Config, *, model: str, version: str, protocol: str, headers: dict[str, str]
) -> Explanation:
    """Judge a call by the rules of *config*; nothing is connected to."""
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
            shares = _shared_text(config, model, own=False)
            yield f"the first of {', '.join(config.upstreams)} that serves the model{shares}"
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
    """Return the model that the step *name* of a pipeline asks."""
    return ModelRef(step.model or name, step.version or "")


def _steps(config: Config, name: str) -> Iterator[str]:
    """Yield a line for each step of a pipeline: which model it asks, and by which route."""
    routes = ruled_routes(config)
    matcher = Matcher([rule for route in routes for rule in route.rules])
    owners = [route for route in routes for _ in route.rules]
    for step, given in config.pipelines[name].steps.items():
        model = model_of(step, given)
        index = matcher.find(InferRequest(model=model))
        way = "directly" if index is None else f"by route {owners[index].name}"
        sources = ", ".join(f"{key} from {source}" for key, source in given.inputs.items())
        yield f"  step {step!r} asks model {str(model)!r} {way}, with {sources}"


def _own_text(config: Config, name: str) -> str:
    return f"{'pipeline' if name in config.pipelines else 'model'} {name!r} of this gateway"


def _shared_text(config: Config, model: str, *, own: bool) -> str:
    """Return what callers of a model, the gateway's *own* or an upstream's, share."""
    found = config.models.get(model)
    if found is None or (found.backend is not None) is not own:
        return ""
    text = ""
    if found.batching is not None:
        most = found.batching.max_batch_size
        text += f", in batches of up to {most} rows" if most else ", in batches"
    if found.cache is not None:
        text += f", answers kept for {found.cache.max_age:g} s"
    return text


def target_name(target: TargetConfig) -> str:
    """Return how logs and metrics call a target."""
    name = target.upstream or "local"
    if target.model:
        name += f"/{target.model}"
    return f"{name}:{target.version}" if target.version else name
