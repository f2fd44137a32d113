"""Pipelines of the configuration: everything wrong with them, with line and column."""

from __future__ import annotations

import pytest

from gateway.app import check
from gateway.cli.explanation import explain_call
from gateway.config.load import ConfigError, load_text

HEAD = """
version: 1
listeners: [{http: 8000}]
models:
  own: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""


def problems(text: str) -> list[str]:
    try:
        return [str(problem) for problem in check(load_text(HEAD + text.strip("\n")))]
    except ConfigError as error:
        return [str(problem) for problem in error.problems]


GOOD = """
pipelines:
  p:
    steps:
      own: {inputs: {INPUT0: request.a, INPUT1: request.b}}
      more: {model: own, version: 1, inputs: {INPUT0: own.OUTPUT0, INPUT1: request.b}}
    outputs: {sum: more.OUTPUT0}
  q:
    version: 7
    steps:
      first: {model: p, inputs: {a: request.a, b: request.b}}
    outputs: {sum: first.sum}
"""


def test_steps_may_be_models_and_pipelines() -> None:
    """A pipeline may use models and pipelines of the file."""
    assert [] == problems(GOOD)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "sum: more.OUTPUT0",
            "sum: more",
            "11:20: pipelines.p.outputs.sum: 'more' is neither request.INPUT nor STEP.OUTPUT",
        ),
        (
            "INPUT0: own.OUTPUT0",
            "INPUT0: mine.OUTPUT0",
            "10:55: pipelines.p.steps.more.inputs.INPUT0: 'mine.OUTPUT0' names an unknown step",
        ),
        (
            "own: {inputs: {INPUT0: request.a",
            "own: {inputs: {INPUT0: more.OUTPUT0",
            "9:12: pipelines.p.steps.own: steps depend on each other: own <- more <- own",
        ),
        (
            "sum: more.OUTPUT0",
            "sum: own.OUTPUT0",
            "10:13: pipelines.p.steps.more: no output of this step is used",
        ),
        (
            "model: own, version",
            "model: other, version",
            "10:21: pipelines.p.steps.more.model: no route matches model 'other', and this file does not",
        ),
        (
            "      own: {inputs",
            "      owner: {inputs",
            "9:14: pipelines.p.steps.owner: no route matches model 'owner'",
        ),
        (
            "model: own, version",
            "model: q, version",
            "10:21: pipelines.p.steps.more.model: the pipeline would call itself: p -> q -> p",
        ),
        (
            "first: {model: p",
            "first: {model: q",
            "15:22: pipelines.q.steps.first.model: the pipeline would call itself: q -> q",
        ),
        ("  q:\n", "  own:\n", "13:5: pipelines.own: the name 'own' is also the name of a model"),
        ("    version: 7\n", "    versions: 7\n", "13:5: pipelines.q.versions: unknown key"),
        (
            "    outputs: {sum: first.sum}\n",
            "    outputs: {}\n",
            "16:14: pipelines.q.outputs: expected at least one entry",
        ),
        (
            "    version: 7\n",
            "    signature: {inputs: [{name: a, datatype: INT32, shape: [-1]}]}\n",
            "13:25: pipelines.q.signature.inputs: the signature names inputs a; the pipeline has a, b",
        ),
        (
            "    version: 7\n",
            "    signature: {outputs: [{name: sum, datatype: INT33, shape: [-1]}]}\n",
            "13:16: pipelines.q.signature: tensor 'sum' has an unknown datatype 'INT33'",
        ),
    ],
    ids=[
        "source", "step", "steps in a circle", "unused", "model", "model by name", "pipelines",
        "itself", "name", "key", "outputs", "signature", "datatype",
    ],
)  # fmt: skip
def test_problems_have_line_and_column(old: str, new: str, expected: str) -> None:
    """Each problem is reported with its position and path."""
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any(text.startswith(expected) for text in found), found


ROUTED = (
    GOOD
    + """
upstreams: {far: {url: "grpc://far:8001"}}
routes:
  - name: to-p
    match: {model: [p, "sums-*"], headers: {x-new: "yes"}}
    targets: [{model: p}]
  - name: far
    match: {model: "*-far"}
    targets: [{upstream: far}]
  - {name: q, match: {model: q}, targets: [{model: q}, {upstream: far, model: other}]}
"""
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("own", []),
        ("any-far", []),
        ("sums-1", ["the pipeline would call itself: p -> p"]),
        ("q", ["the pipeline would call itself: p -> q -> p"]),
        ("nowhere", ["no route matches model 'nowhere', and this file does not define it"]),
    ],
)
def test_steps_are_resolved_by_the_routes(model: str, expected: list[str]) -> None:
    """A step must not reach its own pipeline by any route."""
    found = problems(ROUTED.replace("model: own, version", f"model: {model}, version", 1))
    assert len(expected) == len(found)
    for text, words in zip(found, expected, strict=True):
        assert words in text


def test_routes_may_target_pipelines() -> None:
    """A pipeline is a target by its name, like a model."""
    assert [] == problems(ROUTED)
    found = problems(ROUTED.replace("targets: [{model: p}]", "targets: [{model: r}]"))
    assert "unknown model 'r': this file defines own, p, q" in found[0]


MORE = (
    "  step 'more' calls model 'own version 1' directly, "
    "with INPUT0 from own.OUTPUT0, INPUT1 from request.b"
)


def test_explain_lists_the_steps() -> None:
    """Each step has its model, its inputs and its route."""
    config = load_text(HEAD + ROUTED).config
    found = explain_call(
        config, model="sums-2", version="", protocol="oip.http", headers={"x-new": "yes"}
    )
    assert (
        "100% to pipeline 'p' of this gateway",
        "  step 'own' calls model 'own' directly, with INPUT0 from request.a, INPUT1 from request.b",
        MORE,
    ) == found.targets
    config = load_text(HEAD + GOOD).config
    found = explain_call(config, model="q", version="", protocol="oip.http", headers={})
    assert (
        "pipeline 'q' of this gateway",
        "  step 'first' calls model 'p' by route p, with a from request.a, b from request.b",
    ) == found.targets


def test_the_nesting_of_pipelines_is_limited() -> None:
    """The error names the first pipeline beyond the limit."""
    text = GOOD + "".join(
        f"  r{n}: {{steps: {{s: {{model: {'q' if n == 0 else f'r{n - 1}'}, "
        f"inputs: {{a: request.a, b: request.b}}}}}}, outputs: {{sum: s.sum}}}}\n"
        for n in range(16)
    )
    found = problems(text)
    assert 1 == len(found)
    assert "pipelines.r14: pipelines are nested 17 deep; the maximum is 16" in found[0]
    assert [] == problems(text.replace("model: r13", "model: q"))
