"""Builds the pipelines, and routes the calls of their steps.

The call of a step uses the same routes as a client's call, with their limits, deadlines and
retries; metrics do not count it as a client's call. If no route matches the model of a step, and
the model is in the configuration, the step calls it directly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

from gateway.app.build.chain_context import ChainContext
from gateway.app.build.pipeline_graphs import graph_of
from gateway.app.build.routes import BuiltRoute, Ready, RouteTarget
from gateway.app.chains.tracing import Spans
from gateway.app.layers import build_chain
from gateway.config.models import Config
from gateway.ir.calls import Call, InferRequest, RepositoryIndexRequest
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.model_info.metadata_cache import MetadataCache
from gateway.pipelines.graph import Graph, Step
from gateway.pipelines.pipeline import Pipeline
from gateway.pipelines.signature_cache import SignatureCache
from gateway.policies.signatures import metadata_of
from gateway.routing.match import Matcher
from gateway.routing.router import Router
from gateway.routing.server_info import ServerInfo
from gateway.service import Service
from gateway.telemetry.call_path import without_recording
from gateway.telemetry.metrics import Metrics

R = TypeVar("R")

# A pipeline passes tensors from step to step, so it needs complete ones.
_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


class StepRouter:
    """Routes the calls of steps.

    `connect` adds the routes later: they lead to pipelines, which need this router first.
    """

    def __init__(self) -> None:
        self._router: Service | None = None
        self._direct: Mapping[str, RouteTarget] = {}
        self._matcher = Matcher([])
        self._ready: Sequence[Ready] = ()

    def connect(
        self,
        routes: Sequence[BuiltRoute],
        targets: Mapping[str, RouteTarget],
        server: ServerInfo,
    ) -> None:
        """Set the routes.

        Args:
            routes: The routes of clients.
            targets: Models and pipelines of the configuration; called directly if no route matches.
            server: Handles calls about the gateway itself; no step makes one.
        """
        found = [(route, built.ready) for built in routes for route in built.routes()]
        self._router = Router([route for route, _ in found], server)
        self._matcher = Matcher([route.rule for route, _ in found])
        self._ready = [ready for _, ready in found]
        self._direct = {
            name: target
            for name, target in targets.items()
            if not self._matcher.matches_model(name)
        }

    async def __call__(self, call: Call[R], /) -> R:
        """Route *call*.

        Raises:
            NotFound: No route matches the model.
        """
        if self._router is None or call.model is None:
            raise Unsupported(
                "the call of a pipeline step names no model, or came before the start"
            )
        direct = self._direct.get(call.model.name)
        with without_recording():  # the access log shows the route and target of the client's call
            return await (self._router if direct is None else direct.service)(call)

    def ready(self, model: ModelRef) -> bool:
        """Return whether a model is ready, without sending a request.

        The route is that of a call without headers.
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
    targets: Mapping[str, RouteTarget]
    step_router: StepRouter

    async def check(self) -> None:
        """Check that the models of each pipeline fit together, if their metadata is available.

        Raises:
            MismatchError: The models of a pipeline do not fit; the text names it.
        """
        for pipeline in self.pipelines.values():
            await pipeline.check()

    async def index(self, call: Call[R], /) -> R:
        """Return the pipelines; a Service for RepositoryIndexRequest only."""
        if not isinstance(call, RepositoryIndexRequest):
            raise Unsupported(f"the index of pipelines does not support {type(call).__name__}")
        states = {True: ModelState.READY, False: ModelState.UNAVAILABLE}
        # The reply type R of a RepositoryIndexRequest is a tuple of entries.
        return cast(
            "R",
            tuple(
                RepositoryEntry(name, pipeline.graph.version, states[self.targets[name].ready()])
                for name, pipeline in self.pipelines.items()
            ),
        )


def build_pipelines(config: Config, at: ChainContext) -> BuiltPipelines:
    """Build every pipeline; call `step_router.connect` before the first call.

    Args:
        config: The configuration.
        at: What the layers of pipelines may use.

    Raises:
        ValueError: A pipeline is invalid; `check_graphs` reports it with its key.
    """
    step_router = StepRouter()
    tracing, metrics = at.part(Spans).tracing, at.part(Metrics)
    steps = step_router if tracing is None else tracing.step(step_router)
    metadata = MetadataCache(step_router)
    pipelines: dict[str, Pipeline] = {}
    for name, pipeline_config in config.pipelines.items():
        graph = graph_of(name, pipeline_config)
        signature = pipeline_config.signature
        signatures = SignatureCache(
            graph,
            metadata,
            configured=None if signature is None else metadata_of(name, signature),
            all_inputs=frozenset(step.name for step in graph.steps if _runs_here(config, step)),
            invalidate=metadata.invalidate_if_stale,
        )
        record = partial(metrics.steps.record, name)
        pipelines[name] = Pipeline(graph, steps, signatures, record=record)
    targets = {
        name: RouteTarget(
            build_chain("pipeline", pipeline, replace(at, name=name)),
            _all_ready(step_router, pipeline.graph),
        )
        for name, pipeline in pipelines.items()
    }
    return BuiltPipelines(pipelines, targets, step_router)


def _all_ready(step_router: StepRouter, graph: Graph) -> Callable[[], bool]:
    models = tuple(dict.fromkeys(step.model for step in graph.steps))
    return lambda: all(step_router.ready(model) for model in models)


def _runs_here(config: Config, step: Step) -> bool:
    model = config.models.get(step.model.name)
    return step.model.name in config.pipelines or (model is not None and model.backend is not None)
