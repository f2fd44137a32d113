"""Routes of the configuration -> services, in the fixed order of layers.

From the outside in: observe and router (`listeners`), guard (a place, a deadline, a second
attempt), balance, and for each target rename and the upstream or model, which has its own forward
and complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from gateway.app.layers import RouteParts, build_chain
from gateway.app.route_rules import RuledRoute, own_models, target_name
from gateway.backends.reloadable import ReloadableModel
from gateway.config.models import Config, PoliciesConfig, RouteConfig, TargetConfig
from gateway.pipelines.pipeline import Pipeline
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.retry import RetryBudget
from gateway.policies.rename import Rename
from gateway.routing.balance import Balance, Readiness, Target
from gateway.routing.model_discovery import Discover
from gateway.routing.router import Route
from gateway.service import Service

Ready = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """Something a route can send calls to: an upstream, or a model of the gateway's own."""

    service: Service
    ready: Ready


@dataclass(frozen=True, slots=True)
class BuiltRoute:
    """A route with its service, and its readiness by its own rule."""

    ruled: RuledRoute
    service: Service
    ready: Ready

    def routes(self) -> Iterator[Route]:
        """Yield one route for the router for each rule."""
        for rule in self.ruled.rules:
            yield Route(self.ruled.name, rule, self.service)


def build_route(
    ruled: RuledRoute,
    config: Config,
    upstreams: Mapping[str, RouteTarget],
    models: Mapping[str, RouteTarget],
) -> BuiltRoute:
    """Build one route over what has been built already."""
    if ruled.config is not None:
        targets = [
            Target(
                target_name(target),
                _target_service(target, upstreams, models),
                target.weight,
                _place(target, upstreams, models).ready,
            )
            for target in ruled.config.targets
        ]
        readiness = Readiness(ruled.config.readiness)
        idle_s = config.policies.sequence_idle
        balance = Balance(ruled.name, targets, readiness=readiness, sequence_idle_s=idle_s)
        inner: Service = balance
        ready: Ready = balance.ready
    elif ruled.model:
        place = models[ruled.model]
        balance = Balance(ruled.name, [Target(f"local/{ruled.model}", place.service)])
        inner, ready = balance, place.ready
    else:
        inner = Discover({name: place.service for name, place in upstreams.items()})
        ready = partial(_any_ready, tuple(upstreams.values()))
    return BuiltRoute(ruled, _guarded(inner, ruled.name, ruled.config, config.policies), ready)


def _any_ready(places: tuple[RouteTarget, ...]) -> bool:
    return any(place.ready() for place in places)


def _guarded(
    inner: Service, name: str, route: RouteConfig | None, policies: PoliciesConfig
) -> Service:
    in_flight, timeout, retry = policies.in_flight, policies.timeout, policies.retry
    if route is not None:
        in_flight = route.in_flight or in_flight
        timeout = timeout if route.timeout is None else route.timeout
        retry = route.retry or retry
    retries = None
    if retry is not None and retry.budget > 0:
        retries = RetryBudget(ratio=retry.budget, least=retry.min_retries)
    parts = RouteParts(
        timeout_s=timeout,
        stream_idle_s=policies.stream_idle,
        places=ConcurrencyLimit(
            name, in_flight=in_flight, queue=policies.queued, wait_s=policies.queue_wait
        ),
        retries=retries,
    )
    return build_chain("route", inner, parts)


def _place(
    target: TargetConfig, upstreams: Mapping[str, RouteTarget], models: Mapping[str, RouteTarget]
) -> RouteTarget:
    if target.upstream is not None:
        return upstreams[target.upstream]
    return models[target.model or ""]


def _target_service(
    target: TargetConfig, upstreams: Mapping[str, RouteTarget], models: Mapping[str, RouteTarget]
) -> Service:
    service = _place(target, upstreams, models).service
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
    """Return a route's readiness, true also where all that it leads to has been unloaded.

    Args:
        built: The route.
        models: The gateway's own, by name.
        pipelines: By name; one of whose models is unloaded is as good as unloaded.
    """

    def unloaded(name: str) -> bool:
        if name in models:
            return models[name].unloaded
        pipeline = pipelines.get(name)
        return pipeline is not None and any(
            unloaded(step.model.name) for step in pipeline.graph.steps
        )

    names = own_models(built.ruled)
    if not names:
        return built.ready
    return lambda: built.ready() or all(map(unloaded, names))
