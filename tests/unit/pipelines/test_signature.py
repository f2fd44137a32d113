"""Signatures of pipelines: derived from the models, configured, and mismatches."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.pipelines.graph import Graph, Step, parse_source
from gateway.pipelines.signature import (
    MismatchError,
    public_signature,
    signature_of,
    untyped_signature,
)

FP32, INT64 = Datatype.FP32, Datatype.INT64


def tensor(name: str, datatype: Datatype | None = FP32, *shape: int) -> TensorMetadata:
    return TensorMetadata(name, datatype, shape or None)


def model(
    inputs: list[TensorMetadata], outputs: list[TensorMetadata], **more: Any
) -> ModelMetadata:
    return ModelMetadata(name="?", inputs=tuple(inputs), outputs=tuple(outputs), **more)


def step(name: str, **inputs: str) -> Step:
    return Step(name, ModelRef(f"m-{name}"), {key: parse_source(s) for key, s in inputs.items()})


def graph(*steps: Step, **outputs: str) -> Graph:
    sources = {name: parse_source(text) for name, text in outputs.items()}
    return Graph("p", "2", list(steps), sources)


CHAIN = graph(step("a", x="request.in"), step("b", x="a.y"), out="b.y", given="request.in")


def test_signature_is_derived_from_the_models() -> None:
    """Names are the pipeline's; datatypes, shapes and labels are the models'."""
    models = {
        "a": model([tensor("x", FP32, -1, 4)], [tensor("y", INT64, -1)], max_batch_size=8),
        "b": model(
            [tensor("x", INT64, -1)],
            [tensor("y", FP32, -1, 2)],
            max_batch_size=4,
            labels={"y": ("no", "yes"), "z": ("?",)},
        ),
    }
    assert ModelMetadata(
        name="p",
        versions=("2",),
        platform="pipeline",
        inputs=(tensor("in", FP32, -1, 4),),
        outputs=(tensor("out", FP32, -1, 2), tensor("given", FP32, -1, 4)),
        max_batch_size=4,
        labels={"out": ("no", "yes")},
    ) == signature_of(CHAIN, models)


@pytest.mark.parametrize(
    ("sizes", "found"),
    [((8, 4), 4), ((8, 0), 0), ((0, None), 0), ((8, None), None), ((None, None), None)],
)
def test_max_batch_size_is_the_smallest_of_the_models(
    sizes: tuple[int | None, int | None], found: int | None
) -> None:
    """A model without batching disables it; an unknown size makes the result unknown."""
    models = {
        name: model([tensor("x")], [tensor("y")], max_batch_size=size)
        for name, size in zip("ab", sizes, strict=True)
    }
    assert found == signature_of(CHAIN, models).max_batch_size


SHARED = graph(step("a", x="request.in"), step("b", x="request.in"), one="a.y", other="b.y")


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ((FP32, -1, 4), (FP32, 2, -1), (FP32, 2, 4)),
        ((FP32,), (FP32, 2, -1), (FP32, 2, -1)),
        ((None, 3), (FP32,), (FP32, 3)),
    ],
)
def test_shared_input_combines_the_metadata_of_two_models(one: Any, other: Any, found: Any) -> None:
    """One model may define the parts that the other omits."""
    models = {"a": model([tensor("x", *one)], []), "b": model([tensor("x", *other)], [])}
    assert (tensor("in", *found),) == signature_of(SHARED, models).inputs


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (
            (FP32, -1, 4),
            (INT64, -1, 4),
            r"step 'b' \(model 'm-b'\) needs input 'x' as INT64 .*'request.in' is FP32 \[-1, 4\]",
        ),
        ((FP32, -1, 4), (FP32, -1, 5), r"needs input 'x' as FP32 \[-1, 5\], 'request.in' is"),
        ((FP32, 4), (FP32, 1, 4), r"FP32 \[1, 4\], 'request.in' is FP32 \[4\]"),
    ],
)
def test_shared_input_with_conflicting_metadata_is_rejected(
    one: Any, other: Any, message: str
) -> None:
    """The error names both ends of the tensor."""
    models = {"a": model([tensor("x", *one)], []), "b": model([tensor("x", *other)], [])}
    with pytest.raises(MismatchError, match=message):
        signature_of(SHARED, models)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            model([tensor("x")], [tensor("y", INT64, -1)]),
            model([tensor("x", FP32, -1)], [tensor("y")]),
            r"step 'b' \(model 'm-b'\) needs input 'x' as FP32 \[-1\], 'a.y' is INT64 \[-1\]",
        ),
        (
            model([tensor("z")], [tensor("y")]),
            model([], []),
            r"step 'a' \(model 'm-a'\) has no input 'x'; its inputs are 'z'",
        ),
        (
            model([tensor("x")], [tensor("z")]),
            model([], []),
            "step 'a' .* has no output 'y'; its outputs are 'z'",
        ),
    ],
    ids=["datatype", "input", "output"],
)
def test_models_that_do_not_match_are_rejected(
    first: ModelMetadata, second: ModelMetadata, message: str
) -> None:
    """An output must match the input that it feeds; used tensors must exist."""
    with pytest.raises(MismatchError, match=message):
        signature_of(CHAIN, {"a": first, "b": second})


def test_missing_input_is_rejected_if_all_are_required() -> None:
    """A model may have optional inputs, unless it is known to need all of them."""
    models = {"a": model([tensor("x"), tensor("z")], []), "b": model([], [])}
    signature_of(CHAIN, models)
    with pytest.raises(MismatchError, match=r"step 'a' .* needs input 'z', got 'x'"):
        signature_of(CHAIN, models, all_inputs=frozenset({"a"}))


def test_signature_without_metadata_has_only_names() -> None:
    """The names come from the graph."""
    models = {"a": model([], []), "b": model([], [])}
    found = signature_of(CHAIN, models)
    assert (("in",), ("out", "given")) == (
        tuple(one.name for one in found.inputs),
        tuple(one.name for one in found.outputs),
    )
    assert found == untyped_signature(CHAIN)


CONFIGURED = model(
    [tensor("in", FP32, -1, 4)], [tensor("out", INT64, -1), tensor("given")], max_batch_size=16
)
DERIVED = model([tensor("in", FP32, 2, -1)], [tensor("out", INT64, 1)], labels={"out": ("a",)})


def test_configured_signature_takes_precedence() -> None:
    """The parts that it lacks come from the models."""
    found = public_signature(CHAIN, CONFIGURED, DERIVED)
    assert (CONFIGURED.inputs, CONFIGURED.outputs, 16, {"out": ("a",)}, ("2",)) == (
        found.inputs,
        found.outputs,
        found.max_batch_size,
        found.labels,
        found.versions,
    )
    only = public_signature(CHAIN, model([], [], labels={"out": ("b",)}), DERIVED)
    assert (DERIVED.inputs, {"out": ("b",)}) == (only.inputs, only.labels)
    assert CONFIGURED.inputs == public_signature(CHAIN, CONFIGURED, None).inputs


def test_configured_signature_must_match_the_models() -> None:
    """A contradiction between both is an error."""
    wrong = model([tensor("in", INT64)], [])
    message = r"input 'in' is INT64 in the signature, and FP32 \[2, -1\] in the models"
    with pytest.raises(MismatchError, match=message):
        public_signature(CHAIN, wrong, DERIVED)
