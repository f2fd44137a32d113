"""Builds the service of each route, in a fixed order of layers.

From the outside in: `CallLimits` (concurrency limit, timeout, retry), `Balance`, and for each
target `Rename` and the upstream or model. `gateway.py` puts the router and `Observe` outside them;
`upstreams.py` and `models.py` build the layers of a target.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gateway.api.extension import TrafficShift
from gateway.api.tap import RouteTap
from gateway.app.kept_parts import KeptParts
from gateway.app.layers import RouteParts, build_chain
from gateway.app.route_rules import RuledRoute, own_models, target_name
from gateway.backends.reloadable import ReloadableModel
from gateway.config.models import Config
from gateway.config.routes import (
    PoliciesConfig,
    RetryConfig,
    RouteConfig,
    ShareConfig,
    TargetConfig,
)
from gateway.pipelines.pipeline import Pipeline
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.deadline import RouteTimeout
from gateway.policies.limits.fair_share import CallRate, FairShare
from gateway.policies.limits.hedge import Hedge, HedgeRules
from gateway.policies.limits.retry import RetryBudget, RetryRules
from gateway.policies.prioritize import Prioritize
from gateway.policies.rename import Rename
from gateway.routing.balance import Balance, Readiness, Target
from gateway.routing.load_balancing import key_of
from gateway.routing.model_discovery import Discover
from gateway.routing.router import Route
from gateway.routing.sequence_affinity import SequenceAffinity
from gateway.routing.watch_target import WatchTarget
from gateway.service import Service
from gateway.settings.units import parse_duration
from gateway.telemetry.metrics import Metrics

Ready = Callable[[], bool]

_SHARED: Final = 256
"""What the share of a caller is a part of where a route has no limit."""


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """A target of routes: an upstream, an in-process model or a pipeline."""

    service: Service
    ready: Ready


@dataclass(frozen=True, slots=True)
class BuiltRoute:
    """A route with its service and its readiness."""

    ruled: RuledRoute
    service: Service
    ready: Ready

    def routes(self) -> Iterator[Route]:
        """Yield a `Route` of the router for each rule."""
        for rule in self.ruled.rules:
            yield Route(self.ruled.name, rule, self.service)


@dataclass(frozen=True, slots=True)
class RouteState:
    """What a route continues with when a reload replaces it by one of the same name."""

    limit: ConcurrencyLimit
    affinity: SequenceAffinity


def route_state(ruled: RuledRoute, policies: PoliciesConfig, parts: KeptParts) -> RouteState:
    """Return the state of the previous route of this name, or a new one."""
    name, route = ruled.name, ruled.config
    in_flight = (None if route is None else route.in_flight) or policies.in_flight or sys.maxsize
    queued, wait_s, idle_s = policies.queued, policies.queue_wait, policies.sequence_idle
    target_s = policies.queue_target
    return RouteState(
        parts.get(
            "limit",
            name,
            (in_flight, queued, wait_s, target_s),
            lambda: ConcurrencyLimit(
                name,
                in_flight=in_flight,
                queue=queued,
                wait_s=wait_s,
                target_s=target_s,
            ),
        ),
        parts.get("affinity", name, idle_s, lambda: SequenceAffinity("target", idle_s=idle_s)),
    )


def build_route(  # noqa: PLR0913  # the last two by keyword
    ruled: RuledRoute,
    config: Config,
    upstreams: Mapping[str, RouteTarget],
    models: Mapping[str, RouteTarget],
    metrics: Metrics,
    state: RouteState,
    *,
    shift: TrafficShift | None = None,
    taps: Sequence[RouteTap] = (),
) -> BuiltRoute:
    """Build one route to upstreams and models that exist already.

    Args:
        ruled: The route.
        config: The configuration.
        upstreams: By name.
        models: The models and pipelines of the gateway, by name.
        metrics: Counts calls.
        state: What the route continues with.
        shift: The share of one target that an extension moves; None for fixed weights.
        taps: Receive chosen calls.
    """
    if ruled.config is not None:
        targets = [
            Target(
                target_name(target),
                _target_service(target, upstreams, models),
                target.weight,
                _resolve_target(target, upstreams, models).ready,
                target.priority,
            )
            for target in ruled.config.targets
        ]
        readiness = Readiness(ruled.config.readiness)
        sticky_by = ruled.config.sticky_by
        balance = Balance(
            ruled.name,
            targets if shift is None else _watched(targets, shift, _timeout_s(ruled, config)),
            readiness=readiness,
            key=None if sticky_by is None else key_of(sticky_by),
            affinity=state.affinity,
            shift=shift,
        )
        inner: Service = balance
        ready: Ready = balance.ready
    elif ruled.model:
        model = models[ruled.model]
        balance = Balance(ruled.name, [Target(f"local/{ruled.model}", model.service)])
        inner, ready = balance, model.ready
    else:
        inner = Discover({name: upstream.service for name, upstream in upstreams.items()})
        ready = partial(_any_ready, tuple(upstreams.values()))
    service = _limit_calls(inner, ruled, config.policies, metrics, state, taps)
    return BuiltRoute(ruled, service, ready)


def _watched(targets: list[Target], shift: TrafficShift, timeout_s: float | None) -> list[Target]:
    """Return the targets of a route, with reports to *shift* of those that it watches."""
    return [
        replace(
            target,
            service=WatchTarget(target.service, partial(shift.ended, target.name), timeout_s),
        )
        if target.name in shift.watched
        else target
        for target in targets
    ]


def _timeout_s(ruled: RuledRoute, config: Config) -> float | None:
    """Return the least time after which a route gives up a call or an attempt."""
    route, policies = ruled.config, config.policies
    retry = (None if route is None else route.retry) or policies.retry
    times = [
        route_timeout(ruled, policies).seconds,
        None if retry is None else retry.per_try_timeout,
    ]
    return min([each for each in times if each is not None], default=None)


def _any_ready(targets: tuple[RouteTarget, ...]) -> bool:
    return any(target.ready() for target in targets)


def route_timeout(ruled: RuledRoute, policies: PoliciesConfig) -> RouteTimeout:
    """Return how long a call of a route may take, and the key that says so."""
    own = None if ruled.config is None else ruled.config.timeout
    if own is None:
        return RouteTimeout(policies.timeout or None, "policies.timeout")
    return RouteTimeout(own or None, f"timeout of route {ruled.name!r}")


def _limit_calls(
    inner: Service,
    ruled: RuledRoute,
    policies: PoliciesConfig,
    metrics: Metrics,
    state: RouteState,
    taps: Sequence[RouteTap],
) -> Service:
    name, route = ruled.name, ruled.config
    timeout, retry = route_timeout(ruled, policies), policies.retry
    sequences = policies.sequences_per_client
    if route is not None:
        retry = route.retry or retry
        sequences = route.sequences_per_client or sequences
    retries = None
    if retry is not None and retry.budget > 0:
        retries = RetryBudget(retry_rules(retry), route=name, report=partial(metrics.retry, name))
    _watch_places(state.limit, name, metrics)
    parts = RouteParts(
        timeout=timeout,
        stream_idle_s=policies.stream_idle or None,
        places=state.limit,
        retries=retries,
        attempt_timeout_s=None if retry is None else retry.per_try_timeout,
        hedge=None if route is None else _hedge(name, route, metrics),
        share=None if route is None else _share(name, route, policies, timeout),
        priority=None if route is None else _priority(route),
        sequences_per_client=sequences,
        client_header=(policies.sequence_client_header or "").lower(),
        sequence_idle_s=policies.sequence_idle,
        taps=taps,
    )
    return build_chain("route", inner, parts)


def _hedge(name: str, route: RouteConfig, metrics: Metrics) -> Callable[[Service], Hedge] | None:
    if route.hedge is None:
        return None
    after, is_percentile = route.hedge.after, route.hedge.after.startswith("p")
    rules = HedgeRules(
        after_s=None if is_percentile else parse_duration(after),
        percentile=float(after[1:]) if is_percentile else 0.0,
        at_most=route.hedge.at_most,
        elsewhere=route.retry is None or route.retry.elsewhere,
    )
    return partial(Hedge, rules=rules, route=name, report=partial(metrics.hedge, name))


def _watch_places(places: ConcurrencyLimit, route: str, metrics: Metrics) -> None:
    """Publish how many inferences a route has in flight and in its queue."""
    for name, text, read in _PLACES:
        if name == _LIMIT and places.limit == sys.maxsize:
            continue
        metrics.gauges.watch(name, text, {"route": route}, places, read)


_LIMIT: Final = "gateway_route_in_flight_limit"
_PLACES: Final[tuple[tuple[str, str, Callable[[ConcurrencyLimit], float]], ...]] = (
    ("gateway_route_in_flight", "Inferences in flight.", lambda places: places.used),
    (
        _LIMIT,
        "Limit of the inferences in flight, if there is one.",
        lambda places: places.limit,
    ),
    ("gateway_route_queued", "Inferences that wait for a slot.", lambda places: places.queued),
)


def _call_rate(config: ShareConfig) -> CallRate | None:
    rate = config.calls_per_second
    return None if rate is None else CallRate(rate, config.burst or max(1, int(rate)))


def _share(
    name: str, route: RouteConfig, policies: PoliciesConfig, timeout: RouteTimeout
) -> Callable[[Service], FairShare] | None:
    if route.share is None:
        return None
    limit, text = route.in_flight or policies.in_flight, route.share.in_flight
    in_flight = sys.maxsize if limit is None else limit
    whole = _SHARED if limit is None else limit
    share = whole * int(text[:-1]) // 100 if text.endswith("%") else int(text)
    return partial(
        FairShare,
        key=key_of(route.share.by),
        in_flight=in_flight,
        share=max(1, share),
        rate=_call_rate(route.share),
        queue=policies.queued,
        wait_s=policies.queue_wait,
        target_s=policies.queue_target,
        timeout=timeout,
        route=name,
    )


def _priority(route: RouteConfig) -> Callable[[Service], Prioritize] | None:
    default, by = route.queue_priority, route.queue_priority_by
    if default.startswith("header:"):
        default, by = "normal", default
    if by is None and default == "normal":
        return None
    return partial(Prioritize, default=default, key=None if by is None else key_of(by))


def retry_rules(config: RetryConfig) -> RetryRules:
    """Return the rules that `retry` of a route configures."""
    return RetryRules(
        reasons=frozenset(config.on),
        attempts=config.attempts,
        base_s=config.backoff.base,
        max_s=config.backoff.max,
        elsewhere=config.elsewhere,
        ratio=config.budget,
        least=config.min_retries,
    )


def _resolve_target(
    target: TargetConfig, upstreams: Mapping[str, RouteTarget], models: Mapping[str, RouteTarget]
) -> RouteTarget:
    if target.upstream is not None:
        return upstreams[target.upstream]
    return models[target.model or ""]


def _target_service(
    target: TargetConfig, upstreams: Mapping[str, RouteTarget], models: Mapping[str, RouteTarget]
) -> Service:
    service = _resolve_target(target, upstreams, models).service
    tensors = target.tensors
    if target.model is None and target.version is None and not (tensors.inputs or tensors.outputs):
        return service
    return Rename(
        service,
        model=target.model,
        version=target.version,
        inputs=tensors.inputs,
        outputs=tensors.outputs,
    )


def ready_unless_unloaded(
    built: BuiltRoute, models: Mapping[str, ReloadableModel], pipelines: Mapping[str, Pipeline]
) -> Ready:
    """Return a route's readiness, which is also true if all its models are unloaded.

    Args:
        built: The route.
        models: The in-process models, by name.
        pipelines: The pipelines, by name; a pipeline counts as unloaded if one of its models is.
    """

    def is_unloaded(name: str) -> bool:
        if name in models:
            return models[name].is_unloaded
        pipeline = pipelines.get(name)
        return pipeline is not None and any(
            is_unloaded(step.model.name) for step in pipeline.graph.steps
        )

    names = own_models(built.ruled)
    if not names:
        return built.ready
    return lambda: built.ready() or all(map(is_unloaded, names))
