"""The signature of a pipeline, derived from the signatures of its models."""

from collections.abc import Iterable, Mapping

from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.tensor import Shape
from gateway.ir.tensors.validation import quote_names
from gateway.pipelines.graph import REQUEST, Graph, Source, Step

PLATFORM = "pipeline"


class MismatchError(ValueError):
    """The models of a pipeline do not match; the text names both ends of a connection."""


def signature_of(
    graph: Graph, models: Mapping[str, ModelMetadata], *, all_inputs: frozenset[str] = frozenset()
) -> ModelMetadata:
    """Return the inputs and outputs of a pipeline.

    Args:
        graph: The graph of the pipeline.
        models: Metadata of the model of each step. The inputs, or outputs, of a model that declares
            none are not checked.
        all_inputs: Steps whose models require all their declared inputs; the inputs of others may
            be optional.

    Raises:
        MismatchError: A tensor is missing, or its two ends differ in datatype or shape.
    """
    request: dict[str, TensorMetadata] = {}
    for step in graph.steps:
        _check_names(graph, step, models[step.name], all_inputs=step.name in all_inputs)
    for step in graph.steps:
        declared = {tensor.name: tensor for tensor in models[step.name].inputs}
        for name, source in step.inputs.items():
            target = declared.get(name, TensorMetadata(name, None, None))
            if source.step == REQUEST:
                before = request.get(source.tensor, TensorMetadata(source.tensor, None, None))
                request[source.tensor] = _merge(before, target, source, step)
            else:
                _merge(_output(models[source.step], source), target, source, step)
    inputs = tuple(request.get(name, TensorMetadata(name, None, None)) for name in graph.inputs)
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
    graph: Graph, configured: ModelMetadata, derived: ModelMetadata | None
) -> ModelMetadata:
    """Return the signature for callers: *configured*, completed by *derived*.

    Raises:
        MismatchError: The two contradict each other.
    """
    derived = derived or ModelMetadata(name=graph.name)
    for kind, tensors, others in (
        ("input", configured.inputs, derived.inputs),
        ("output", configured.outputs, derived.outputs),
    ):
        by_name = {tensor.name: tensor for tensor in others}
        for tensor in tensors:
            other = by_name.get(tensor.name)
            if other is not None and not _is_compatible(tensor, other):
                raise MismatchError(
                    f"{kind} {tensor.name!r} is {_type_text(tensor)} in the signature, "
                    f"and {_type_text(other)} in the models"
                )
    max_batch_size = configured.max_batch_size
    return derived.changed(
        versions=(graph.version,),
        platform=PLATFORM,
        inputs=configured.inputs or derived.inputs,
        outputs=configured.outputs or derived.outputs,
        max_batch_size=derived.max_batch_size if max_batch_size is None else max_batch_size,
        labels={**derived.labels, **configured.labels},
    )


def untyped_signature(graph: Graph) -> ModelMetadata:
    """Return the signature without datatypes and shapes, if no model metadata are available."""
    return ModelMetadata(
        name=graph.name,
        versions=(graph.version,),
        platform=PLATFORM,
        inputs=tuple(TensorMetadata(name, None, None) for name in graph.inputs),
        outputs=tuple(TensorMetadata(name, None, None) for name in graph.outputs),
    )


def _check_names(graph: Graph, step: Step, model: ModelMetadata, *, all_inputs: bool) -> None:
    inputs = [tensor.name for tensor in model.inputs]
    outputs = [tensor.name for tensor in model.outputs]
    for name in step.inputs if inputs else ():
        if name not in inputs:
            raise MismatchError(
                f"{step} has no input {name!r}; its inputs are {quote_names(inputs)}"
            )
    for name in inputs if all_inputs else ():
        if name not in step.inputs:
            raise MismatchError(f"{step} needs input {name!r}, got {quote_names(step.inputs)}")
    for name in graph.used_outputs(step) if outputs else ():
        if name not in outputs:
            raise MismatchError(
                f"{step} has no output {name!r}; its outputs are {quote_names(outputs)}"
            )


def _merge(
    source: TensorMetadata, target: TensorMetadata, origin: Source, step: Step
) -> TensorMetadata:
    """Return the merged metadata of both ends of a connection, under the source's name."""
    if not _is_compatible(source, target):
        raise MismatchError(
            f"{step} needs input {target.name!r} as {_type_text(target)}, "
            f"{str(origin)!r} is {_type_text(source)}"
        )
    return TensorMetadata(
        source.name,
        source.datatype or target.datatype,
        _narrower(source.shape, target.shape),
    )


def _is_compatible(one: TensorMetadata, other: TensorMetadata) -> bool:
    if one.datatype is not None and other.datatype not in {None, one.datatype}:
        return False
    if one.shape is None or other.shape is None:
        return True
    return len(one.shape) == len(other.shape) and all(
        a == b or -1 in (a, b) for a, b in zip(one.shape, other.shape, strict=True)
    )


def _narrower(one: Shape | None, other: Shape | None) -> Shape | None:
    if one is None or other is None:
        return one or other
    return tuple(max(a, b) for a, b in zip(one, other, strict=True))


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
    """Return the largest batch size of all models; 0 if one does not batch, None if unknown."""
    sizes = [model.max_batch_size for model in models]
    if 0 in sizes:
        return 0
    found = [size for size in sizes if size is not None]
    return min(found) if found and len(found) == len(sizes) else None


def _type_text(tensor: TensorMetadata) -> str:
    datatype = "any datatype" if tensor.datatype is None else tensor.datatype.name
    return datatype if tensor.shape is None else f"{datatype} {list(tensor.shape)}"
