"""Pipelines of the configuration, built; and where their steps' calls go.

A step's call takes the routes as a client's does, with their limits, deadlines and retries, but
nobody counts it as a client's. A model of this file that no route takes is called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from gateway.app.layers import build_chain
from gateway.app.pipeline_graphs import graph_of
from gateway.app.routes import BuiltRoute, Ready, RouteTarget
from gateway.app.signatures import metadata_of
from gateway.config.models import Config
from gateway.ir.calls import Call, InferRequest, RepositoryIndexRequest
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.pipelines.graph import Graph, Step
from gateway.pipelines.pipeline import Pipeline
from gateway.pipelines.signature_cache import SignatureCache
from gateway.policies.metadata_cache import MetadataCache
from gateway.routing.match import Matcher
from gateway.routing.router import Router
from gateway.routing.server_info import ServerAnswers
from gateway.service import Service
from gateway.telemetry.call_path import without_recording
from gateway.telemetry.metrics import Metrics

R = TypeVar("R")

# A pipeline hands tensors on, so it needs all of them whole.
_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


class StepRouter:
    """Answers the calls of steps.

    It is connected once the routes are built, for routes lead to pipelines and pipelines to routes.
    """

    def __init__(self) -> None:
        self._router: Service | None = None
        self._direct: Mapping[str, RouteTarget] = {}
        self._matcher = Matcher([])
        self._ready: Sequence[Ready] = ()

    def connect(
        self, routes: Sequence[BuiltRoute], places: Mapping[str, RouteTarget], server: ServerAnswers
    ) -> None:
        """Say where calls go.

        Args:
            routes: Those of clients.
            places: Models and pipelines of this file; what no route takes is called directly.
            server: Answers about the gateway itself; no step asks it.
        """
        found = [(route, built.ready) for built in routes for route in built.routes()]
        self._router = Router([route for route, _ in found], server)
        self._matcher = Matcher([route.rule for route, _ in found])
        self._ready = [ready for _, ready in found]
        self._direct = {
            name: place for name, place in places.items() if not self._matcher.matches_model(name)
        }

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*.

        Raises:
            NotFound: No route takes the model.
        """
        if self._router is None or call.model is None:
            raise Unsupported("a step's call names a model, once the gateway is built")
        direct = self._direct.get(call.model.name)
        with without_recording():  # the route and target of the client's call are its own
            return await (self._router if direct is None else direct.service)(call)

    def ready(self, model: ModelRef) -> bool:
        """Return whether a model can be called, as far as is known without asking.

        Of routes that take it under conditions, the one for a call without headers counts.
        """
        direct = self._direct.get(model.name)
        if direct is not None:
            return direct.ready()
        index = self._matcher.find(InferRequest(model=model))
        return index is not None and self._ready[index]()


@dataclass(frozen=True, slots=True)
class BuiltPipelines:
    """Every pipeline, by its name."""

    pipelines: Mapping[str, Pipeline]
    places: Mapping[str, RouteTarget]
    inside: StepRouter

    async def check(self) -> None:
        """Find out whether the models of each fit together, as far as they can be asked.

        Raises:
            MisfitError: Those of one do not; the text names it.
        """
        for pipeline in self.pipelines.values():
            await pipeline.check()

    async def index(self, call: Call[R], /) -> R:
        """List the pipelines; a Service for the index alone."""
        if not isinstance(call, RepositoryIndexRequest):
            raise Unsupported(f"the index of pipelines does not support {type(call).__name__}")
        states = {True: ModelState.READY, False: ModelState.UNAVAILABLE}
        # The answer to a RepositoryIndexRequest is a tuple of entries, which is its R.
        return cast(
            "R",
            tuple(
                RepositoryEntry(name, pipeline.graph.version, states[self.places[name].ready()])
                for name, pipeline in self.pipelines.items()
            ),
        )


def build_pipelines(config: Config, metrics: Metrics) -> BuiltPipelines:
    """Build every pipeline; the calls of their steps go nowhere until `inside` is connected.

    Raises:
        ValueError: One is wrong; `check_graphs` says so with its place.
    """
    inside = StepRouter()
    metadata = MetadataCache(inside)
    pipelines: dict[str, Pipeline] = {}
    for name, given in config.pipelines.items():
        graph = graph_of(name, given)
        knowledge = SignatureCache(
            graph,
            metadata,
            given=None if given.signature is None else metadata_of(name, given.signature),
            whole=frozenset(step.name for step in graph.steps if _runs_here(config, step)),
            doubt=metadata.invalidate_if_stale,
        )
        record = partial(metrics.steps.asked, name)
        pipelines[name] = Pipeline(graph, inside, knowledge, record=record)
    places = {
        name: RouteTarget(
            build_chain("pipeline", pipeline),
            _all_ready(inside, pipeline.graph),
        )
        for name, pipeline in pipelines.items()
    }
    return BuiltPipelines(pipelines, places, inside)


def _all_ready(inside: StepRouter, graph: Graph) -> Callable[[], bool]:
    models = tuple(dict.fromkeys(step.model for step in graph.steps))
    return lambda: all(inside.ready(model) for model in models)


def _runs_here(config: Config, step: Step) -> bool:
    found = config.models.get(step.model.name)
    return step.model.name in config.pipelines or (found is not None and found.backend is not None)
