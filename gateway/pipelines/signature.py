"""The signature of a pipeline, from those of its models; and whether they fit together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Shape
from gateway.ir.validation import quote_names
from gateway.pipelines.graph import REQUEST, Graph, Source, Step

PLATFORM = "pipeline"


class MisfitError(ValueError):
    """Models that cannot be joined so; the text names both ends."""


def signature_of(
    graph: Graph, models: Mapping[str, ModelMetadata], *, whole: frozenset[str] = frozenset()
) -> ModelMetadata:
    """Return what a pipeline takes and gives.

    Args:
        graph: Of the pipeline.
        models: Metadata of the model of each step. A model that declares no inputs, or no outputs,
            does not tell them: nothing is checked there.
        whole: Steps whose models must be given every input that they declare; others may have
            optional ones.

    Raises:
        MisfitError: A tensor is not there, or two ends of one differ in datatype or shape.
    """
    given: dict[str, TensorMetadata] = {}
    for step in graph.steps:
        _check_names(graph, step, models[step.name], whole=step.name in whole)
    for step in graph.steps:
        declared = {tensor.name: tensor for tensor in models[step.name].inputs}
        for name, source in step.inputs.items():
            taken = declared.get(name, TensorMetadata(name, None, None))
            if source.step == REQUEST:
                before = given.get(source.tensor, TensorMetadata(source.tensor, None, None))
                given[source.tensor] = _joined(before, taken, source, step)
            else:
                _joined(_output(models[source.step], source), taken, source, step)
    inputs = tuple(given.get(name, TensorMetadata(name, None, None)) for name in graph.inputs)
    by_name = {tensor.name: tensor for tensor in inputs}
    return ModelMetadata(
        name=graph.name,
        versions=(graph.version,),
        platform=PLATFORM,
        inputs=inputs,
        outputs=tuple(
            _renamed(_from(source, by_name, models), name) for name, source in graph.outputs.items()
        ),
        max_batch_size=_batch(models.values()),
        labels={
            name: models[source.step].labels[source.tensor]
            for name, source in graph.outputs.items()
            if source.step != REQUEST and source.tensor in models[source.step].labels
        },
    )


def public_signature(
    graph: Graph, given: ModelMetadata, derived: ModelMetadata | None
) -> ModelMetadata:
    """Return the signature to tell callers: what is *given*, and else what is *derived*.

    Raises:
        MisfitError: The two contradict one another.
    """
    found = derived or ModelMetadata(name=graph.name)
    for kind, mine, own in (
        ("input", given.inputs, found.inputs),
        ("output", given.outputs, found.outputs),
    ):
        known = {tensor.name: tensor for tensor in own}
        for tensor in mine:
            other = known.get(tensor.name)
            if other is not None and not _agree(tensor, other):
                raise MisfitError(
                    f"the signature's {kind} {tensor.name!r} is {_described(tensor)}, "
                    f"the models have {_described(other)}"
                )
    return found.changed(
        versions=(graph.version,),
        platform=PLATFORM,
        inputs=given.inputs or found.inputs,
        outputs=given.outputs or found.outputs,
        max_batch_size=(
            found.max_batch_size if given.max_batch_size is None else given.max_batch_size
        ),
        labels={**found.labels, **given.labels},
    )


def missing_tensors(graph: Graph) -> ModelMetadata:
    """Return what is known of a pipeline whose models cannot be asked: names alone."""
    return ModelMetadata(
        name=graph.name,
        versions=(graph.version,),
        platform=PLATFORM,
        inputs=tuple(TensorMetadata(name, None, None) for name in graph.inputs),
        outputs=tuple(TensorMetadata(name, None, None) for name in graph.outputs),
    )


def _check_names(graph: Graph, step: Step, model: ModelMetadata, *, whole: bool) -> None:
    inputs = [tensor.name for tensor in model.inputs]
    outputs = [tensor.name for tensor in model.outputs]
    for name in step.inputs if inputs else ():
        if name not in inputs:
            raise MisfitError(f"{step} has no input {name!r}; its inputs are {quote_names(inputs)}")
    for name in inputs if whole else ():
        if name not in step.inputs:
            raise MisfitError(
                f"{step} needs input {name!r}, and is given {quote_names(step.inputs)}"
            )
    for name in graph.asked(step) if outputs else ():
        if name not in outputs:
            raise MisfitError(
                f"{step} has no output {name!r}; its outputs are {quote_names(outputs)}"
            )


def _joined(
    source: TensorMetadata, taken: TensorMetadata, place: Source, step: Step
) -> TensorMetadata:
    """Return what is known of a tensor from both of its ends, under the name it comes by."""
    if not _agree(source, taken):
        raise MisfitError(
            f"{step} takes input {taken.name!r} as {_described(taken)}, "
            f"{str(place)!r} is {_described(source)}"
        )
    return TensorMetadata(
        source.name,
        source.datatype or taken.datatype,
        _narrower(source.shape, taken.shape),
    )


def _agree(one: TensorMetadata, other: TensorMetadata) -> bool:
    if one.datatype is not None and other.datatype not in {None, one.datatype}:
        return False
    if one.shape is None or other.shape is None:
        return True
    return len(one.shape) == len(other.shape) and all(
        mine == its or -1 in (mine, its) for mine, its in zip(one.shape, other.shape, strict=True)
    )


def _narrower(one: Shape | None, other: Shape | None) -> Shape | None:
    if one is None or other is None:
        return one or other
    return tuple(max(mine, its) for mine, its in zip(one, other, strict=True))


def _output(model: ModelMetadata, source: Source) -> TensorMetadata:
    return next(
        (tensor for tensor in model.outputs if tensor.name == source.tensor),
        TensorMetadata(source.tensor, None, None),
    )


def _from(
    source: Source, inputs: Mapping[str, TensorMetadata], models: Mapping[str, ModelMetadata]
) -> TensorMetadata:
    if source.step == REQUEST:
        return inputs[source.tensor]
    return _output(models[source.step], source)


def _renamed(tensor: TensorMetadata, name: str) -> TensorMetadata:
    return TensorMetadata(name, tensor.datatype, tensor.shape)


def _batch(models: Iterable[ModelMetadata]) -> int | None:
    """Return the largest batch that every model takes; 0 where one does not batch."""
    sizes = [model.max_batch_size for model in models]
    if 0 in sizes:
        return 0
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


def _described(tensor: TensorMetadata) -> str:
    datatype = "any datatype" if tensor.datatype is None else tensor.datatype.name
    return datatype if tensor.shape is None else f"{datatype} {list(tensor.shape)}"
