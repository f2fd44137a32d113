"""The graph of a pipeline: its steps, the sources of their tensors, and its validation.

A step depends only on the steps whose outputs are its inputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.ir.context import ModelRef
from gateway.ir.tensors.tensor import RequestedOutput

REQUEST = "request"

Path = tuple[str, ...]

_MAX_CACHED = 1024


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a tensor: an output of a step, or an input of the request.

    Attributes:
        step: "request" for the request.
    """

    step: str
    tensor: str

    def __str__(self) -> str:
        return f"{self.step}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a model.

    Attributes:
        inputs: Source of each input of the model.
        needs: Names of the steps that must run before.
    """

    name: str
    model: ModelRef
    inputs: Mapping[str, Source]
    needs: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        needs = frozenset(source.step for source in self.inputs.values()) - {REQUEST}
        object.__setattr__(self, "needs", needs)

    def __str__(self) -> str:
        return f"step {self.name!r} (model {str(self.model)!r})"


class Graph:
    """A valid graph.

    Args:
        name: Name of the pipeline.
        version: Version of the pipeline.
        steps: In any order; their names are unique.
        outputs: Source of each output of the pipeline.

    Raises:
        ValueError: The graph is not valid; see `graph_errors`.

    Attributes:
        inputs: Names of the inputs that the request must have, in the order of their first use.
    """

    def __init__(
        self, name: str, version: str, steps: Sequence[Step], outputs: Mapping[str, Source]
    ) -> None:
        for path, message in graph_errors(steps, outputs):
            raise ValueError(f"pipeline {name!r}: {'.'.join(path)}: {message}")
        self.name = name
        self.version = version
        self.steps = tuple(steps)
        self.outputs = dict(outputs)
        self._by_name = {step.name: step for step in steps}
        used = [
            *(source for step in steps for source in step.inputs.values()),
            *outputs.values(),
        ]
        self.inputs = tuple(dict.fromkeys(one.tensor for one in used if one.step == REQUEST))
        self._used: dict[str, dict[str, RequestedOutput]] = {step.name: {} for step in steps}
        for one in used:
            if one.step != REQUEST:
                self._used[one.step][one.tensor] = RequestedOutput(one.tensor)
        self._required: dict[tuple[str, ...], tuple[Step, ...]] = {}

    def used_outputs(self, step: Step) -> Mapping[str, RequestedOutput]:
        """Return the outputs of *step* that the graph uses, by name."""
        return self._used[step.name]

    def required_steps(self, outputs: tuple[str, ...]) -> tuple[Step, ...]:
        """Return the steps that *outputs* depend on, in the graph's order."""
        found = self._required.get(outputs)
        if found is None:
            names: set[str] = set()
            self._collect((self.outputs[output].step for output in outputs), names)
            found = tuple(step for step in self.steps if step.name in names)
            if len(self._required) < _MAX_CACHED:
                self._required[outputs] = found
        return found

    def _collect(self, steps: Iterable[str], found: set[str]) -> None:
        for name in steps:
            if name != REQUEST and name not in found:
                found.add(name)
                self._collect(self._by_name[name].needs, found)


def parse_source(text: str) -> Source:
    """Parse "request.INPUT" or "STEP.OUTPUT"; the tensor's name may contain dots.

    Raises:
        ValueError: The text is neither.
    """
    step, dot, tensor = text.partition(".")
    if not dot or not step or not tensor:
        raise ValueError(f"{text!r} is neither request.INPUT nor STEP.OUTPUT")
    return Source(step, tensor)


def graph_errors(
    steps: Sequence[Step], outputs: Mapping[str, Source]
) -> Iterator[tuple[Path, str]]:
    """Yield the errors of a graph, each with its path in the configuration of the pipeline."""
    names = {step.name for step in steps}
    used = {source.step for source in outputs.values()}
    for step in steps:
        used |= step.needs - {step.name}
        path = ("steps", step.name)
        if step.name == REQUEST or "." in step.name:
            yield path, "the name of a step must not be 'request' or contain a dot"
        for name, source in step.inputs.items():
            if source.step not in {*names, REQUEST}:
                yield (*path, "inputs", name), _unknown(source, names)
    for name, source in outputs.items():
        if source.step not in {*names, REQUEST}:
            yield ("outputs", name), _unknown(source, names)
    for step in steps:
        if step.name not in used:
            yield ("steps", step.name), "no output of this step is used"
    for cycle in cycles({step.name: sorted(step.needs & names) for step in steps}):
        yield ("steps", cycle[0]), f"steps depend on each other: {' <- '.join(cycle)}"


def cycles(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return cycles of a directed graph: the nodes of each, with the first repeated at the end.

    The result is empty if and only if the graph has no cycle. Of several cycles that share nodes,
    some may be missing.
    """
    found: list[list[str]] = []
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        _walk(start, edges, path, done, found)
    return found


def _walk(
    node: str,
    edges: Mapping[str, Sequence[str]],
    path: list[str],
    done: set[str],
    found: list[list[str]],
) -> None:
    if node in path:
        found.append([*path[path.index(node) :], node])
        return
    if node in done:
        return
    path.append(node)
    for target in edges.get(node, ()):
        _walk(target, edges, path, done, found)
    path.pop()
    done.add(node)


def _unknown(source: Source, names: Iterable[str]) -> str:
    expected = ", ".join(sorted(names))
    return f"{str(source)!r} names an unknown step; expected one of request, {expected}"
