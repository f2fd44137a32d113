"""A signature from the configuration against the program it is for. Pure.

The signature may use the program's names or others; with others, places count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.backends.torch.archive_check import NotServableError
from gateway.backends.torch.programs import Program
from gateway.backends.torch.tensors import has_names, named
from gateway.ir.metadata import ModelMetadata, TensorMetadata


def declared_by(program: Program, signature: ModelMetadata | None, name: str) -> ModelMetadata:
    """Return the signature of the model *name*: the configured one, or the program's own.

    Raises:
        NotServableError: There is neither, or they do not agree.
    """
    if signature is None:
        if program.outputs is None:
            raise NotServableError(
                "TorchScript tells neither datatypes nor shapes: set 'signature' in the "
                f"configuration; {_takes(program)}"
            )
        return ModelMetadata(name=name, inputs=program.inputs, outputs=program.outputs)
    if program.outputs is not None:
        _check_outputs(program.outputs, signature.outputs, program.named)
    return signature


def matched_inputs(program: Program, declared: Sequence[TensorMetadata]) -> tuple[str, ...]:
    """Return the program's own name of each declared input: the same, or the one at its place.

    Raises:
        NotServableError: They do not fit together.
    """
    own = {tensor.name: tensor for tensor in program.inputs}
    known = [tensor.name for tensor in declared if tensor.name in own]
    if known and len(known) < len(declared):
        other = next(tensor.name for tensor in declared if tensor.name not in own)
        raise NotServableError(
            f"the signature's input {other!r} is none of the program's, and {known[0]!r} is one; "
            f"{_takes(program)}: name all inputs so, or none"
        )
    names = tuple(known) if known else tuple(own)[: len(declared)]
    left_out = set(own) - set(names) - program.optional
    if left_out or len(names) < len(declared):
        raise NotServableError(f"the signature has inputs {_listed(declared)}; {_takes(program)}")
    for name, tensor in zip(names, declared, strict=True):
        _check_same("input", own[name], tensor)
    return names


def wanted_outputs(
    result: Any, declared: Sequence[TensorMetadata], wanted: Sequence[str]
) -> list[Any]:
    """Return the *wanted* ones of what a program returned, by name or else by place.

    Raises:
        TypeError: They are not there.
    """
    found = dict(named(result))
    if not has_names(result):
        if len(found) != len(declared):
            raise TypeError(
                f"it returned {len(found)} tensors, the signature has {len(declared)} outputs"
            )
        found = dict(zip((tensor.name for tensor in declared), found.values(), strict=True))
    for name in wanted:
        if name not in found:
            raise TypeError(f"it returned no {name!r}; it returned {', '.join(found) or 'nothing'}")
    return [found[name] for name in wanted]


def _check_outputs(
    own: Sequence[TensorMetadata], declared: Sequence[TensorMetadata], by_name: bool
) -> None:
    if not by_name and len(own) != len(declared):
        raise NotServableError(
            f"the signature has outputs {_listed(declared)}; the program gives {_listed(own)}"
        )
    names = {tensor.name: tensor for tensor in own}
    for place, tensor in enumerate(declared):
        found = names.get(tensor.name) if by_name else own[place]
        if found is None:
            raise NotServableError(
                f"the signature has output {tensor.name!r}; the program gives {_listed(own)}"
            )
        _check_same("output", found, tensor)


def _check_same(kind: str, own: TensorMetadata, declared: TensorMetadata) -> None:
    """Refuse a declared tensor that the program's own one contradicts."""
    if own.datatype is not None and declared.datatype not in {None, own.datatype}:
        raise NotServableError(
            f"the signature's {kind} {declared.name!r} is {_datatype(declared)}, "
            f"the program's is {_datatype(own)}"
        )
    if own.shape is None or declared.shape is None:
        return
    same = len(own.shape) == len(declared.shape) and all(
        mine in (-1, said) for mine, said in zip(own.shape, declared.shape, strict=True)
    )
    if not same:
        raise NotServableError(
            f"the signature's {kind} {declared.name!r} has shape {list(declared.shape)}, "
            f"the program's has {list(own.shape)}"
        )


def _takes(program: Program) -> str:
    return f"the program takes {_listed(program.inputs)}"


def _listed(tensors: Iterable[TensorMetadata]) -> str:
    return ", ".join(repr(tensor.name) for tensor in tensors) or "nothing"


def _datatype(tensor: TensorMetadata) -> str:
    return "none" if tensor.datatype is None else tensor.datatype.name
