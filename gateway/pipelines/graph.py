"""The graph of a pipeline: steps, where their tensors come from, and what is wrong with it. Pure.

There are no stages: a step needs the steps whose outputs it is given, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.ir.context import ModelRef
from gateway.ir.tensor import RequestedOutput

REQUEST = "request"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tensor comes from: an output of a step, or an input of the request.

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
        inputs: Where each input of the model comes from.
        needs: Names of the steps that must have answered before.
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
    """Steps and outputs that fit together.

    Args:
        name: Of the pipeline.
        version: Of the pipeline.
        steps: In any order; their names differ.
        outputs: Where each output of the pipeline comes from.

    Raises:
        ValueError: Something is wrong with it; see `faults`.

    Attributes:
        inputs: Names of what the request must give, in the order they are first used.
    """

    def __init__(
        self, name: str, version: str, steps: Sequence[Step], outputs: Mapping[str, Source]
    ) -> None:
        for path, message in faults(steps, outputs):
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
        self._asked: dict[str, dict[str, RequestedOutput]] = {step.name: {} for step in steps}
        for one in used:
            if one.step != REQUEST:
                self._asked[one.step][one.tensor] = RequestedOutput(one.tensor)
        self._needed: dict[tuple[str, ...], tuple[Step, ...]] = {}

    def asked(self, step: Step) -> Mapping[str, RequestedOutput]:
        """Return the outputs of *step* that somebody uses, by name."""
        return self._asked[step.name]

    def needed(self, outputs: tuple[str, ...]) -> tuple[Step, ...]:
        """Return the steps without which there are no such *outputs*, in the graph's order."""
        found = self._needed.get(outputs)
        if found is None:
            names: set[str] = set()
            self._gather((self.outputs[output].step for output in outputs), names)
            found = tuple(step for step in self.steps if step.name in names)
            if len(self._needed) < _REMEMBERED:
                self._needed[outputs] = found
        return found

    def _gather(self, steps: Iterable[str], found: set[str]) -> None:
        for name in steps:
            if name != REQUEST and name not in found:
                found.add(name)
                self._gather(self._by_name[name].needs, found)


_REMEMBERED = 1024


def parsed_source(text: str) -> Source:
    """Return the source that *text* names: "request.INPUT" or "STEP.OUTPUT".

    Raises:
        ValueError: It names none. What follows the first dot may hold others.
    """
    step, dot, tensor = text.partition(".")
    if not dot or not step or not tensor:
        raise ValueError(f"{text!r} is neither request.INPUT nor STEP.OUTPUT")
    return Source(step, tensor)


def faults(steps: Sequence[Step], outputs: Mapping[str, Source]) -> Iterator[tuple[Path, str]]:
    """Find what is wrong with a graph: each with its place, as keys of a mapping."""
    names = {step.name for step in steps}
    used = {source.step for source in outputs.values()}
    for step in steps:
        used |= step.needs - {step.name}
        place = ("steps", step.name)
        if step.name == REQUEST or "." in step.name:
            yield place, "a step is not called 'request', and has no dot in its name"
        for name, source in step.inputs.items():
            if source.step not in {*names, REQUEST}:
                yield (*place, "inputs", name), _unknown(source, names)
    for name, source in outputs.items():
        if source.step not in {*names, REQUEST}:
            yield ("outputs", name), _unknown(source, names)
    for step in steps:
        if step.name not in used:
            yield ("steps", step.name), "nobody uses what this step gives"
    for cycle in cycles({step.name: sorted(step.needs & names) for step in steps}):
        text = f"steps wait for one another: {' <- '.join(cycle)}"
        yield ("steps", cycle[0]), text


def cycles(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return cycles of a directed graph: the nodes of each, the first again at the end.

    There are none exactly when the graph has none; of several that share nodes some may be left
    out.
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
    there = ", ".join(sorted(names))
    return f"there is no step {source.step!r} to give {str(source)!r}; there is: request, {there}"
