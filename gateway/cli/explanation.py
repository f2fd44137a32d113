"""What `gateway explain` prints of the route of a call: why it matches, its targets and retries."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.app.build.route_rules import RuledRoute, model_of, ruled_routes, target_name
from gateway.config.models import Config
from gateway.config.routes import TargetConfig
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.policies.batch.layers import BATCHING
from gateway.policies.cache import CACHE
from gateway.policies.limits.hedge import HEDGE
from gateway.policies.limits.retry_keys import retries_of
from gateway.policies.signatures import SIGNATURE
from gateway.routing.balance import STICKY_BY
from gateway.routing.match import Matcher


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
