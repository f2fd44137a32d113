"""Builds the service of each route, and of its targets.

`app/layers.py` has the order of their layers. `service_graph.py` puts the router outside them;
`upstreams.py` and `models.py` build what a target calls.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gateway import registry
from gateway.api.extension import TrafficShift
from gateway.api.tap import RouteTap
from gateway.app.build.chain_context import ChainContext
from gateway.app.build.kept_parts import KeptParts
from gateway.app.build.route_rules import RuledRoute, named_models, own_models, target_name
from gateway.app.layers import build_chain
from gateway.backends.reloadable import ReloadableModel
from gateway.config.models import Config
from gateway.config.routes import (
    PoliciesConfig,
    TargetConfig,
)
from gateway.ir.call_keys import key_of
from gateway.pipelines.pipeline import Pipeline
from gateway.policies.limits.concurrency import (
    IN_FLIGHT,
    QUEUE_TARGET,
    QUEUE_WAIT,
    QUEUED,
    ROUTE_IN_FLIGHT,
    ConcurrencyLimit,
)
from gateway.policies.limits.deadline import ROUTE_TIMEOUT, TIMEOUT, route_timeout
from gateway.policies.limits.policy import SingleTarget
from gateway.policies.limits.retry_keys import retries_of
from gateway.policies.limits.sequences import SEQUENCE_IDLE
from gateway.policies.rename import TargetModel
from gateway.policies.tap import RouteTaps
from gateway.policies.transform_tensors import TRANSFORM, TargetTransform
from gateway.routing.balance import READINESS, STICKY_BY, Balance, Readiness, Target
from gateway.routing.model_discovery import Discover
from gateway.routing.router import Route
from gateway.routing.sequence_affinity import SequenceAffinity
from gateway.routing.watch_target import WatchTarget
from gateway.service import Service
from gateway.telemetry import names
from gateway.telemetry.metrics import Metrics

Ready = Callable[[], bool]


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
    in_flight = ROUTE_IN_FLIGHT.of(route) or IN_FLIGHT.of(policies) or sys.maxsize
    queued, idle_s = QUEUED.of(policies), SEQUENCE_IDLE.of(policies)
    wait_s, target_s = QUEUE_WAIT.of(policies), QUEUE_TARGET.of(policies)
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
    state: RouteState,
    at: ChainContext,
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
        state: What the route continues with.
        at: What its layers may use.
        shift: The share of one target that an extension moves; None for fixed weights.
        taps: Receive chosen calls.

    Raises:
        LookupError: The transform of a target does not exist.
    """
    if ruled.config is not None:
        targets = [
            _target(each, _resolve_target(each, upstreams, models), at)
            for each in ruled.config.targets
        ]
        readiness = Readiness(READINESS.of(ruled.config))
        sticky_by = STICKY_BY.of(ruled.config)
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
        only = balance.only
    elif ruled.model:
        model = models[ruled.model]
        inner, ready = model.service, model.ready
        only = Target(f"local/{ruled.model}", model.service)
    else:
        inner = Discover({name: upstream.service for name, upstream in upstreams.items()})
        ready = partial(_any_ready, tuple(upstreams.values()))
        only = None
        if len(upstreams) == 1:
            only = next(Target(name, each.service) for name, each in upstreams.items())
    _watch_places(state.limit, ruled.name, at.part(Metrics))
    single = SingleTarget() if only is None else SingleTarget(only.name)
    service = build_chain(
        "route",
        inner if only is None else only.service,
        at.with_parts(state.limit, RouteTaps(taps), single),
    )
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
    retry = retries_of(route, policies)
    times = [
        route_timeout(ruled.name, ROUTE_TIMEOUT.of(route), TIMEOUT.of(policies)).seconds,
        None if retry is None else retry.per_try_timeout,
    ]
    return min([each for each in times if each is not None], default=None)


def _any_ready(targets: tuple[RouteTarget, ...]) -> bool:
    return any(target.ready() for target in targets)


def _watch_places(places: ConcurrencyLimit, route: str, metrics: Metrics) -> None:
    """Publish how many inferences a route has in flight and in its queue."""
    watch, labels = metrics.gauges.watch, {"route": route}
    watch(names.ROUTE_IN_FLIGHT, labels, places, lambda each: each.used)
    if places.limit != sys.maxsize:
        watch(names.ROUTE_IN_FLIGHT_LIMIT, labels, places, lambda each: each.limit)
    watch(names.ROUTE_QUEUED, labels, places, lambda each: each.queued)


def _resolve_target(
    target: TargetConfig, upstreams: Mapping[str, RouteTarget], models: Mapping[str, RouteTarget]
) -> RouteTarget:
    if target.upstream is not None:
        return upstreams[target.upstream]
    return models[target.model or ""]


def chain_of_target(
    target: TargetConfig, model: TargetModel, end: Service, at: ChainContext
) -> Service:
    """Return the layers of a target before *end*, which gets the names of the target.

    Args:
        target: Has the keys of the layers.
        model: The name and the version of the model there.
        end: The upstream or the model.
        at: Of the route, or of no gateway.

    Raises:
        LookupError: The transform does not exist.
    """
    own = TRANSFORM.of(target)
    transform = TargetTransform(None if own is None else registry.transform(own))
    inside = at.inside(target_name(target), "target", target).with_parts(model, transform)
    return build_chain("target", end, inside)


def _target(target: TargetConfig, found: RouteTarget, route: ChainContext) -> Target:
    model = TargetModel(target.model, target.version)
    service = chain_of_target(target, model, found.service, route)
    return Target(target_name(target), service, target.weight, found.ready, target.priority)


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


def routes_of_models(config: Config, routes: Sequence[BuiltRoute]) -> list[tuple[str, str]]:
    """Return the routes of each model that the configuration names: pairs of route and model."""
    names = set(named_models(config))
    return [
        (built.ruled.name, name)
        for built in reversed(routes)
        for name in {built.ruled.model, *(rule.model for rule in built.ruled.rules)} & names
    ]
