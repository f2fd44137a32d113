"""Graphs of pipelines: inputs and steps, and the errors of a configuration."""

from __future__ import annotations

import pytest

from gateway.ir.context import ModelRef
from gateway.pipelines.graph import Graph, Source, Step, cycles, graph_errors, parse_source


def step(name: str, **inputs: str) -> Step:
    return Step(name, ModelRef(f"m-{name}"), {key: parse_source(s) for key, s in inputs.items()})


def outputs(**texts: str) -> dict[str, Source]:
    return {name: parse_source(text) for name, text in texts.items()}


DIAMOND = Graph(
    "p",
    "1",
    [
        step("last", x="left.y", z="right.y", t="request.t"),
        step("left", x="first.a"),
        step("right", x="first.b"),
        step("first", x="request.x"),
        step("aside", x="request.x"),
    ],
    outputs(y="last.y", a="first.a", x="request.x", s="aside.s", l="left.y"),
)


def test_inputs_are_the_used_inputs_of_the_request() -> None:
    """The inputs are in the order of their first use."""
    assert ("t", "x") == DIAMOND.inputs


def test_only_used_outputs_are_requested_of_a_step() -> None:
    """Outputs with several uses are requested once."""
    used_outputs = {one.name: tuple(DIAMOND.used_outputs(one)) for one in DIAMOND.steps}
    assert {
        "last": ("y",),
        "left": ("y",),
        "right": ("y",),
        "first": ("a", "b"),
        "aside": ("s",),
    } == used_outputs


@pytest.mark.parametrize(
    ("output_names", "names"),
    [
        (("y",), ["last", "left", "right", "first"]),
        (("a",), ["first"]),
        (("x",), []),
        (("s", "l"), ["left", "first", "aside"]),
        (("y", "a", "x", "s", "l"), ["last", "left", "right", "first", "aside"]),
    ],
)
def test_only_steps_that_lead_to_the_outputs_are_required(
    output_names: tuple[str, ...], names: list[str]
) -> None:
    """The required steps depend on the requested outputs."""
    for _ in range(2):
        assert names == [one.name for one in DIAMOND.required_steps(output_names)]


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("request.x", Source("request", "x")),
        ("step.out.with.dots", Source("step", "out.with.dots")),
        ("a b.c d", Source("a b", "c d")),
    ],
)
def test_sources_are_read(text: str, source: Source) -> None:
    """Tensors may have dots in their names, steps may not."""
    assert source == parse_source(text)
    assert text == str(source)


@pytest.mark.parametrize("text", ["", "x", "x.", ".x", "."])
def test_invalid_source_is_rejected(text: str) -> None:
    """A source needs a step and a tensor."""
    with pytest.raises(ValueError, match=r"is neither request\.INPUT nor STEP\.OUTPUT"):
        parse_source(text)


@pytest.mark.parametrize(
    ("steps", "output_texts", "expected"),
    [
        (
            [step("a", x="nobody.y")],
            {"y": "a.y"},
            [
                (
                    "steps.a.inputs.x",
                    "'nobody.y' names an unknown step; expected one of reques",
                )
            ],
        ),
        (
            [step("a", x="request.x")],
            {"y": "a.y", "z": "b.z"},
            [("outputs.z", "'b.z' names an unknown step; expected one of request, a")],
        ),
        (
            [step("a", x="request.x"), step("b", x="a.y")],
            {"y": "a.y"},
            [("steps.b", "no output of this step is used")],
        ),
        (
            [step("request", x="request.x")],
            {"y": "request.y"},
            [
                ("steps.request", "the name of a step must not be 'request'"),
            ],
        ),
        (
            [step("a.b", x="request.x")],
            {"y": "request.y"},
            [("steps.a.b", "or contain a dot"), ("steps.a.b", "no output of this step")],
        ),
        (
            [step("a", x="b.y"), step("b", x="c.y"), step("c", x="a.y")],
            {"y": "a.y"},
            [("steps.a", "steps depend on each other: a <- b <- c <- a")],
        ),
        (
            [step("a", x="a.y")],
            {"y": "a.y"},
            [("steps.a", "steps depend on each other: a <- a")],
        ),
    ],
    ids=["input", "output", "unused", "request", "dot", "cycle", "itself"],
)
def test_graph_errors_have_a_path(
    steps: list[Step], output_texts: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    """All errors are found, and the graph is rejected."""
    found = [(".".join(path), text) for path, text in graph_errors(steps, outputs(**output_texts))]
    assert [path for path, _ in expected] == [path for path, _ in found]
    for (_, text), (_, words) in zip(found, expected, strict=True):
        assert words in text
    with pytest.raises(ValueError, match=f"pipeline 'p': {expected[0][0]}: "):
        Graph("p", "1", steps, outputs(**output_texts))


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({}, []),
        ({"a": ["b"], "b": []}, []),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, []),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, [["b", "c", "b"]]),
        ({"a": ["a"], "b": ["b"]}, [["a", "a"], ["b", "b"]]),
        ({"a": ["gone"]}, []),
    ],
)
def test_cycles_are_found(edges: dict[str, list[str]], found: list[list[str]]) -> None:
    """Each cycle is returned, and none for a graph without cycles."""
    assert found == cycles(edges)
