"""Builds the service of each route, in a fixed order of layers.

From the outside in: `CallLimits` (concurrency limit, timeout, retry), `Balance`, and for each
target `Rename` and the upstream or model. `gateway.py` puts the router and `Observe` outside them;
`upstreams.py` and `models.py` build the layers of a target.
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


def build_route(
    ruled: RuledRoute,
    config: Config,
    upstreams: Mapping[str, RouteTarget],
    models: Mapping[str, RouteTarget],
) -> BuiltRoute:
    """Build one route to upstreams and models that exist already."""
    if ruled.config is not None:
        targets = [
            Target(
                target_name(target),
                _target_service(target, upstreams, models),
                target.weight,
                _resolve_target(target, upstreams, models).ready,
            )
            for target in ruled.config.targets
        ]
        readiness = Readiness(ruled.config.readiness)
        idle_s = config.policies.sequence_idle
        balance = Balance(ruled.name, targets, readiness=readiness, sequence_idle_s=idle_s)
        inner: Service = balance
        ready: Ready = balance.ready
    elif ruled.model:
        model = models[ruled.model]
        balance = Balance(ruled.name, [Target(f"local/{ruled.model}", model.service)])
        inner, ready = balance, model.ready
    else:
        inner = Discover({name: upstream.service for name, upstream in upstreams.items()})
        ready = partial(_any_ready, tuple(upstreams.values()))
    return BuiltRoute(ruled, _limit_calls(inner, ruled.name, ruled.config, config.policies), ready)


def _any_ready(targets: tuple[RouteTarget, ...]) -> bool:
    return any(target.ready() for target in targets)


def _limit_calls(
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
