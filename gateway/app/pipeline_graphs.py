"""Graphs of pipelines as YAML has them, and everything wrong with them, each with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.app.route_rules import RuledRoute, model_of, ruled_routes
from gateway.app.signatures import metadata_of
from gateway.config.models import Config
from gateway.config.pipelines import PipelineConfig, StepConfig
from gateway.config.yaml_tree import KeyPath
from gateway.ir.context import ModelRef
from gateway.pipelines.graph import Graph, Source, Step, cycles, faults, parsed_source
from gateway.routing.match import Matcher

Found = tuple[KeyPath, str]

_DEEPEST = 16


def check_graphs(config: Config) -> Iterator[Found]:
    """Find everything wrong with the pipelines of a configuration."""
    for name, pipeline in config.pipelines.items():
        at: KeyPath = ("pipelines", name)
        found = config.models.get(name)
        if found is not None and found.backend is not None:
            yield at, f"the name {name!r} is taken by a model; each needs its own"
        wrong = [((*at, *path), text) for path, text in _unread(pipeline)]
        yield from wrong or [((*at, *path), text) for path, text in _wrong(name, pipeline)]
    yield from _unserved(config)
    yield from _recursions(config)


def graph_of(name: str, given: PipelineConfig) -> Graph:
    """Return the graph of a pipeline.

    Raises:
        ValueError: It is wrong.
    """
    return Graph(name, given.version, _steps(given), _outputs(given))


def _steps(given: PipelineConfig) -> list[Step]:
    return [
        Step(
            name,
            model_of(name, step),
            {key: parsed_source(text) for key, text in step.inputs.items()},
        )
        for name, step in given.steps.items()
    ]


def _outputs(given: PipelineConfig) -> dict[str, Source]:
    return {name: parsed_source(text) for name, text in given.outputs.items()}


def _unread(pipeline: PipelineConfig) -> Iterator[Found]:
    """Find sources that are written wrong."""
    texts: list[Found] = [(("outputs", key), text) for key, text in pipeline.outputs.items()]
    for name, step in pipeline.steps.items():
        texts += [(("steps", name, "inputs", key), text) for key, text in step.inputs.items()]
    for path, text in texts:
        try:
            parsed_source(text)
        except ValueError as error:
            yield path, str(error)


def _wrong(name: str, pipeline: PipelineConfig) -> Iterator[Found]:
    """Find what is wrong with a graph whose sources can be read, and with its signature."""
    steps, outputs = _steps(pipeline), _outputs(pipeline)
    found = list(faults(steps, outputs))
    yield from found
    signature = pipeline.signature
    if signature is None or found:
        return
    graph = Graph(name, pipeline.version, steps, outputs)
    for kind, tensors, names in (
        ("inputs", signature.inputs, graph.inputs),
        ("outputs", signature.outputs, tuple(graph.outputs)),
    ):
        if tensors is not None and {one.name for one in tensors} != set(names):
            yield ("signature", kind), f"the pipeline's {kind} are {', '.join(names)}"
    try:
        metadata_of(name, signature)
    except ValueError as error:
        yield ("signature",), str(error)


def _unserved(config: Config) -> Iterator[Found]:
    """Find steps whose model is nowhere."""
    matcher = Matcher([rule for route in ruled_routes(config) for rule in route.rules])
    own = [name for name, model in config.models.items() if model.backend is not None]
    own += config.pipelines
    for name, pipeline in config.pipelines.items():
        for step, given in pipeline.steps.items():
            model = model_of(step, given).name
            if model not in own and not matcher.matches_model(model):
                message = (
                    f"no route takes model {model!r}, and there is none in this file; "
                    f"there is: {', '.join(sorted(own))}"
                )
                yield _place(name, step, given), message


def _recursions(config: Config) -> Iterator[Found]:
    """Find pipelines that would ask themselves, by whatever route."""
    routes = ruled_routes(config)
    reached = {
        name: {
            step: _pipelines_of(config, routes, model_of(step, given))
            for step, given in pipeline.steps.items()
        }
        for name, pipeline in config.pipelines.items()
    }
    edges = {
        name: list(dict.fromkeys(other for found in steps.values() for other in found))
        for name, steps in reached.items()
    }
    found = cycles(edges)
    if not found:
        yield from _too_deep(edges)
    for cycle in found:
        first, second = cycle[0], cycle[1]
        for step, others in reached[first].items():
            if second in others:
                given = config.pipelines[first].steps[step]
                way = " -> ".join(cycle)
                yield _place(first, step, given), f"the pipeline would ask itself: {way}"
                break


def _too_deep(edges: Mapping[str, Sequence[str]]) -> Iterator[Found]:
    """Find pipelines of pipelines of pipelines ... beyond what anybody means."""
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            depths[name] = 1 + max(map(depth, edges[name]), default=0)
        return depths[name]

    for name in edges:
        if depth(name) == _DEEPEST + 1:
            message = (
                f"pipelines are nested {depth(name)} deep here, at most {_DEEPEST} are allowed"
            )
            yield ("pipelines", name), message


def _pipelines_of(config: Config, routes: Sequence[RuledRoute], model: ModelRef) -> list[str]:
    """Return the pipelines that a call about *model* may come to, whoever makes it."""
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
            break  # nothing gets past this one
    else:
        if not found:
            found = [model.name]
    return [name for name in found if name in config.pipelines]


def _place(name: str, step: str, given: StepConfig) -> KeyPath:
    at: KeyPath = ("pipelines", name, "steps", step)
    return at if given.model is None else (*at, "model")
