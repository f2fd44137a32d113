"""Readiness of the server: what a client has unloaded does not count against it.

A model that is not ready because somebody wanted so is no reason to take the gateway, and all its
other models, out of service.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.app.routes import BuiltRoute, Ready
from gateway.app.rules import own_models
from gateway.backends.loading import Loadable
from gateway.pipelines.pipeline import Pipeline


def forgiving(
    built: BuiltRoute, models: Mapping[str, Loadable], pipelines: Mapping[str, Pipeline]
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
