"""Builds the graphs of pipelines from YAML, and checks them."""

from collections.abc import Iterator, Mapping, Sequence

from gateway.app.build.route_rules import RuledRoute, model_of, ruled_routes
from gateway.config.models import Config
from gateway.config.pipelines import PipelineConfig, StepConfig
from gateway.config.yaml_tree import Finding, KeyPath
from gateway.ir.context import ModelRef
from gateway.pipelines.graph import Graph, Source, Step, cycles, graph_errors, parse_source
from gateway.policies.signatures import metadata_of
from gateway.routing.match import Matcher

_MAX_DEPTH = 16


def check_graphs(config: Config) -> Iterator[Finding]:
    """Yield every problem of the pipelines of a configuration."""
    for name, pipeline in config.pipelines.items():
        at: KeyPath = ("pipelines", name)
        model = config.models.get(name)
        if model is not None and model.backend is not None:
            yield at, f"the name {name!r} is also the name of a model; names must be unique"
        findings = [((*at, *path), text) for path, text in _malformed_sources(pipeline)]
        yield from findings or [
            ((*at, *path), text) for path, text in _graph_findings(name, pipeline)
        ]
    yield from _steps_without_model(config)
    yield from _recursions(config)


def graph_of(name: str, pipeline: PipelineConfig) -> Graph:
    """Return the graph of a pipeline.

    Raises:
        ValueError: The graph is invalid.
    """
    return Graph(name, pipeline.version, _steps(pipeline), _outputs(pipeline))


def _steps(pipeline: PipelineConfig) -> list[Step]:
    return [
        Step(
            name,
            model_of(name, step),
            {key: parse_source(text) for key, text in step.inputs.items()},
        )
        for name, step in pipeline.steps.items()
    ]


def _outputs(pipeline: PipelineConfig) -> dict[str, Source]:
    return {name: parse_source(text) for name, text in pipeline.outputs.items()}


def _malformed_sources(pipeline: PipelineConfig) -> Iterator[Finding]:
    texts: list[Finding] = [(("outputs", key), text) for key, text in pipeline.outputs.items()]
    for name, step in pipeline.steps.items():
        texts += [(("steps", name, "inputs", key), text) for key, text in step.inputs.items()]
    for path, text in texts:
        try:
            parse_source(text)
        except ValueError as error:
            yield path, str(error)


def _graph_findings(name: str, pipeline: PipelineConfig) -> Iterator[Finding]:
    """Yield the problems of a graph with well-formed sources, and of its signature."""
    steps, outputs = _steps(pipeline), _outputs(pipeline)
    findings = list(graph_errors(steps, outputs))
    yield from findings
    signature = pipeline.signature
    if signature is None or findings:
        return
    graph = Graph(name, pipeline.version, steps, outputs)
    for kind, tensors, names in (
        ("inputs", signature.inputs, graph.inputs),
        ("outputs", signature.outputs, tuple(graph.outputs)),
    ):
        if tensors is not None and {one.name for one in tensors} != set(names):
            named = ", ".join(one.name for one in tensors)
            message = f"the signature names {kind} {named}; the pipeline has {', '.join(names)}"
            yield ("signature", kind), message
    try:
        metadata_of(name, signature)
    except ValueError as error:
        yield ("signature",), str(error)


def _steps_without_model(config: Config) -> Iterator[Finding]:
    matcher = Matcher([rule for route in ruled_routes(config) for rule in route.rules])
    own = [name for name, model in config.models.items() if model.backend is not None]
    own += config.pipelines
    for name, pipeline in config.pipelines.items():
        for step, step_config in pipeline.steps.items():
            model = model_of(step, step_config).name
            if model not in own and not matcher.matches_model(model):
                message = (
                    f"no route matches model {model!r}, and this file does not define it; "
                    f"it defines {', '.join(sorted(own))}"
                )
                yield _step_path(name, step, step_config), message


def _recursions(config: Config) -> Iterator[Finding]:
    """Yield pipelines that would call themselves, directly or through other pipelines."""
    routes = ruled_routes(config)
    callees = {
        name: {
            step: _pipelines_of(config, routes, model_of(step, step_config))
            for step, step_config in pipeline.steps.items()
        }
        for name, pipeline in config.pipelines.items()
    }
    edges = {
        name: list(dict.fromkeys(callee for names in steps.values() for callee in names))
        for name, steps in callees.items()
    }
    found = cycles(edges)
    if not found:
        yield from _too_deep(edges)
    for cycle in found:
        first, second = cycle[0], cycle[1]
        for step, names in callees[first].items():
            if second in names:
                path = _step_path(first, step, config.pipelines[first].steps[step])
                yield path, f"the pipeline would call itself: {' -> '.join(cycle)}"
                break


def _too_deep(edges: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Yield pipelines that nest other pipelines too deeply."""
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            depths[name] = 1 + max(map(depth, edges[name]), default=0)
        return depths[name]

    for name in edges:
        if depth(name) == _MAX_DEPTH + 1:
            message = f"pipelines are nested {depth(name)} deep; the maximum is {_MAX_DEPTH}"
            yield ("pipelines", name), message


def _pipelines_of(config: Config, routes: Sequence[RuledRoute], model: ModelRef) -> list[str]:
    """Return the pipelines that a call about *model* may reach, from any client."""
    found: list[str] = []
    for route in routes:
        rules = [rule for rule in route.rules if Matcher([rule]).matches_model(model.name)]
        if not rules:
            continue
        if route.config is None:
            found += [route.model]
        else:
            found += [one.model or "" for one in route.config.targets if one.upstream is None]
        if any(not (rule.versions or rule.protocols or rule.headers) for rule in rules):
            break  # this route matches every call, so no later one does
    else:
        if not found:
            found = [model.name]
    return [name for name in found if name in config.pipelines]


def _step_path(name: str, step: str, config: StepConfig) -> KeyPath:
    at: KeyPath = ("pipelines", name, "steps", step)
    return at if config.model is None else (*at, "model")
