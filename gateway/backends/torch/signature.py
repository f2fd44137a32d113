"""Matches the signature of the configuration with the program's tensors.

The signature uses the names of the program, or other names in the same order.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.backends.torch.archive_check import NotServableError
from gateway.backends.torch.programs import Program
from gateway.backends.torch.tensors import has_names, named
from gateway.ir.metadata import ModelMetadata, TensorMetadata


def resolve_signature(
    program: Program, signature: ModelMetadata | None, name: str
) -> ModelMetadata:
    """Return the signature of the model *name*: the configured one, or the program's.

    Raises:
        NotServableError: Neither exists, or they do not match.
    """
    if signature is None:
        if program.outputs is None:
            raise NotServableError(
                "TorchScript has no datatypes and shapes; expected a 'signature' in the "
                f"configuration; {_inputs_text(program)}"
            )
        return ModelMetadata(name=name, inputs=program.inputs, outputs=program.outputs)
    if program.outputs is not None:
        _check_outputs(program.outputs, signature.outputs, program.has_output_names)
    return signature


def match_inputs(program: Program, declared: Sequence[TensorMetadata]) -> tuple[str, ...]:
    """Return the program's name of each declared input: the same one, or that of its position.

    Raises:
        NotServableError: The inputs do not match.
    """
    own = {tensor.name: tensor for tensor in program.inputs}
    common = [tensor.name for tensor in declared if tensor.name in own]
    if common and len(common) < len(declared):
        other = next(tensor.name for tensor in declared if tensor.name not in own)
        raise NotServableError(
            f"the signature names {common[0]!r} as the program does, but not {other!r}; "
            f"{_inputs_text(program)}; expected all of these names, or none"
        )
    names = tuple(common) if common else tuple(own)[: len(declared)]
    missing = set(own) - set(names) - program.optional
    if missing or len(names) < len(declared):
        raise NotServableError(
            f"the signature has inputs {_names(declared)}; {_inputs_text(program)}"
        )
    for name, tensor in zip(names, declared, strict=True):
        _check_match("input", own[name], tensor)
    return names


def select_outputs(
    result: Any, declared: Sequence[TensorMetadata], names: Sequence[str]
) -> list[Any]:
    """Return the outputs *names* from the result of a program, by name or else by position.

    Raises:
        TypeError: An output is missing.
    """
    outputs = dict(named(result))
    if not has_names(result):
        if len(outputs) != len(declared):
            raise TypeError(
                f"the program returned {len(outputs)} tensors; the signature has {len(declared)}"
            )
        outputs = dict(zip((tensor.name for tensor in declared), outputs.values(), strict=True))
    for name in names:
        if name not in outputs:
            returned = ", ".join(outputs) or "nothing"
            raise TypeError(f"the program returned no {name!r}; it returned {returned}")
    return [outputs[name] for name in names]


def _check_outputs(
    own: Sequence[TensorMetadata], declared: Sequence[TensorMetadata], by_name: bool
) -> None:
    if not by_name and len(own) != len(declared):
        raise NotServableError(
            f"the signature has outputs {_names(declared)}; the program has {_names(own)}"
        )
    by_names = {tensor.name: tensor for tensor in own}
    for position, tensor in enumerate(declared):
        output = by_names.get(tensor.name) if by_name else own[position]
        if output is None:
            raise NotServableError(
                f"the signature has output {tensor.name!r}; the program has {_names(own)}"
            )
        _check_match("output", output, tensor)


def _check_match(kind: str, own: TensorMetadata, declared: TensorMetadata) -> None:
    """Reject a declared tensor that contradicts the program's tensor."""
    if own.datatype is not None and declared.datatype not in {None, own.datatype}:
        raise NotServableError(
            f"the signature's {kind} {declared.name!r} is {_datatype(declared)}; "
            f"the program's is {_datatype(own)}"
        )
    if own.shape is None or declared.shape is None:
        return
    matches = len(own.shape) == len(declared.shape) and all(
        own_dim in (-1, dim) for own_dim, dim in zip(own.shape, declared.shape, strict=True)
    )
    if not matches:
        raise NotServableError(
            f"the signature's {kind} {declared.name!r} has shape {list(declared.shape)}; "
            f"the program's has {list(own.shape)}"
        )


def _inputs_text(program: Program) -> str:
    return f"the program has inputs {_names(program.inputs)}"


def _names(tensors: Iterable[TensorMetadata]) -> str:
    return ", ".join(repr(tensor.name) for tensor in tensors) or "nothing"


def _datatype(tensor: TensorMetadata) -> str:
    return "none" if tensor.datatype is None else tensor.datatype.name
