"""The routing rules of a configuration, in order, for the gateway and for `gateway explain`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.config.models import Config
from gateway.config.pipelines import StepConfig
from gateway.config.routes import MatchConfig, RouteConfig, TargetConfig
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.policies.batch.layers import BATCHING
from gateway.policies.cache import CACHE
from gateway.policies.limits.deadline import ROUTE_TIMEOUT, TIMEOUT
from gateway.policies.limits.hedge import HEDGE
from gateway.policies.limits.retry_keys import retries_of
from gateway.policies.signatures import SIGNATURE
from gateway.routing.balance import STICKY_BY
from gateway.routing.match import Matcher, Rule
from gateway.settings.patterns import is_pattern


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


@dataclass(frozen=True, slots=True)
class Explanation:
    """The route of a call, and why.

    Attributes:
        route: None if no route matches.
        verdicts: Route, whether it matches, and why, for each rule up to the first that matches.
        targets: One line of text for each target of the route, and for each pipeline step.
        retries: What is repeated, how often and where; none without a route.
    """

    route: str | None
    verdicts: tuple[tuple[str, bool, str], ...]
    targets: tuple[str, ...]
    retries: tuple[str, ...] = ()


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
        verdicts.append((route.name, verdict.is_match, "; ".join(verdict.reasons)))
        if verdict.is_match:
            targets = tuple(_targets(config, route, model))
            return Explanation(
                route.name, tuple(verdicts), targets, tuple(_retries(config, route, model))
            )
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
    targets = route.config.targets
    first = min(target.priority for target in targets if target.weight)
    key = STICKY_BY.of(route.config)
    by = "" if key is None else f" of the keys of {key}"
    for target in targets:
        total = sum(other.weight for other in targets if other.priority == target.priority)
        share = f"{100 * target.weight / (total or 1):.4g}%{by}"
        text = f"{share} to {_target_text(config, target, model)}"
        if target.priority > first:
            text += f", if no target with a priority below {target.priority} is ready"
        yield text
        if target.upstream is None and target.model and target.model in config.pipelines:
            yield from _steps(config, target.model)


def _retries(config: Config, route: RuledRoute, model: str) -> Iterator[str]:
    """Yield lines that say which calls of a route are repeated, how often and where."""
    hedge = HEDGE.of(route.config)
    if hedge is not None:
        yield f"slow calls have a second attempt after {hedge.after}: {hedge.at_most:.0%} at most"
    retry = retries_of(route.config, config.policies)
    if retry is None or retry.budget == 0 or retry.attempts == 1:
        yield "never"
        return
    backoff = retry.backoff
    yield (
        f"if {' or '.join(retry.on)}: up to {retry.attempts} attempts, after pauses of up to "
        f"{_ms(backoff.base)} to {_ms(backoff.max)}"
    )
    if retry.per_try_timeout is not None:
        yield f"an attempt ends after {_ms(retry.per_try_timeout)}"
    places = _places(config, route)
    if retry.elsewhere and len(places) > 1:
        yield f"at another of {', '.join(places)} than the one that failed"
    else:
        yield f"at {', '.join(places) or 'the same model'}"
    yield f"at most {retry.budget:.0%} of the calls, but {retry.min_retries} in any case"
    signature = SIGNATURE.of(config.models.get(model))
    if signature is not None and signature.stateful:
        yield "calls of sequences never"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:g} ms"


def _places(config: Config, route: RuledRoute) -> list[str]:
    """Return the addresses of upstreams and the in-process models that a route leads to."""
    if route.config is None:
        names = [] if route.model else list(config.upstreams)
        return [url.authority for name in names for url in config.upstreams[name].all_urls]
    places: list[str] = []
    for target in route.config.targets:
        if target.upstream is None:
            places.append(target_name(target))
        else:
            places += [url.authority for url in config.upstreams[target.upstream].all_urls]
    return list(dict.fromkeys(places))


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
    batching, cache = BATCHING.of(entry), CACHE.of(entry)
    if batching is not None:
        rows = batching.max_batch_size
        text += f", in batches of up to {rows} rows" if rows else ", in batches"
    if cache is not None:
        text += f", replies cached for {cache.max_age:g} s"
    return text


def target_name(target: TargetConfig) -> str:
    """Return the name of a target in logs and metrics."""
    name = target.upstream or "local"
    if target.model:
        name += f"/{target.model}"
    return f"{name}:{target.version}" if target.version else name


_LONGEST_S: Final = 600.0
"""How long a call without a client may still run at an upstream without a timeout."""


def _targets_upstream(ruled: RuledRoute, upstream: str) -> bool:
    if ruled.config is None:
        return not ruled.model
    return any(target.upstream == upstream for target in ruled.config.targets)


def longest_timeout(config: Config, upstream: str) -> float:
    """Return the longest timeout of any route to *upstream*, and ten minutes without one."""
    own = [
        ROUTE_TIMEOUT.of(ruled.config)
        for ruled in ruled_routes(config)
        if _targets_upstream(ruled, upstream)
    ]
    found = [TIMEOUT.of(config.policies), *(each for each in own if each is not None)]
    return max(each or _LONGEST_S for each in found)


def text_routes_to(config: Config, upstream: str) -> frozenset[str]:
    """Return the routes to *upstream* that forward text sequence ids to unknown models."""
    return frozenset(
        ruled.name
        for ruled in ruled_routes(config)
        if ruled.config is not None
        and ruled.config.sequence_ids == "text"
        and _targets_upstream(ruled, upstream)
    )
