"""Programs: TorchScript and exported programs, opened and called in one way.

What a program says of itself differs: an exported one tells datatypes and shapes, TorchScript only
the names of its arguments.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.backends.torch.archive_check import Kind, NotServableError, sample_inputs
from gateway.backends.torch.tensors import datatype_of, has_names, named
from gateway.ir.metadata import TensorMetadata

_TENSORS = frozenset({"Tensor", "Optional[Tensor]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that has been opened.

    Attributes:
        call: Takes tensors by the program's names of them, and returns what the program does.
        inputs: As the program has them; datatype and shape are None in TorchScript.
        optional: Names of inputs that may be left out.
        outputs: None in TorchScript, which does not tell them.
        named: The outputs have names of their own.
        examples: Shape of each input to warm up with, where the file has it.
        writes_inputs: It may change the tensors that it is given.
        state: Name of a buffer that each call changes; "" for none that is known.
    """

    kind: Kind
    call: Callable[[Mapping[str, Any]], Any]
    inputs: tuple[TensorMetadata, ...]
    optional: frozenset[str] = frozenset()
    outputs: tuple[TensorMetadata, ...] | None = None
    named: bool = False
    examples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    writes_inputs: bool = True
    state: str = ""


def open_program(torch: Any, path: Path, kind: Kind, device: Any) -> Program:
    """Open the program at *path* on *device*.

    Raises:
        NotServableError: It takes or gives something that is no tensor.
        Exception: PyTorch cannot open it.
    """
    return (_torchscript if kind is Kind.TORCHSCRIPT else _exported)(torch, path, device)


def _torchscript(torch: Any, path: Path, device: Any) -> Program:
    module = torch.jit.load(str(path), map_location=device)
    if hasattr(module, "training"):  # a frozen one has none
        module.eval()
    names: list[str] = []
    optional: list[str] = []
    for argument in module.forward.schema.arguments[1:]:  # the first is the module itself
        if str(argument.type) in _TENSORS:
            names.append(argument.name)
            if argument.has_default_value():
                optional.append(argument.name)
        elif not argument.has_default_value():
            raise NotServableError(
                f"its forward takes {argument.name!r}, a {argument.type}: needed is a Tensor"
            )
    return Program(
        kind=Kind.TORCHSCRIPT,
        call=lambda tensors: module(**tensors),
        inputs=tuple(TensorMetadata(name, None, None) for name in names),
        optional=frozenset(optional),
    )


def _exported(torch: Any, path: Path, device: Any) -> Program:
    _check_sample_inputs(torch, path)
    with path.open("rb") as file:
        program = torch.export.load(file)
    if device.type != "cpu":
        # Devices stand in the program itself, where it makes tensors of its own.
        from torch.export.passes import move_to_device_pass  # noqa: PLC0415  # an extra

        program = move_to_device_pass(program, device)
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    leaves: list[Any] = []
    inputs: list[TensorMetadata] = []
    for spec in signature.input_specs:
        if spec.kind.name != "USER_INPUT":
            continue
        tensor = _described(torch, spec.arg, values)
        if tensor is None:  # a number or text that the program was exported with
            leaves.append(spec.arg.value)
        else:
            leaves.append(_ArgumentSlot(tensor.name))
            inputs.append(tensor)
    returned = [
        _described(torch, spec.arg, values)
        for spec in signature.output_specs
        if spec.kind.name == "USER_OUTPUT"
    ]
    written = _written(program)
    kept = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    structure = program.call_spec.out_spec.unflatten(returned)
    return Program(
        kind=Kind.EXPORTED,
        call=_caller(program, leaves),
        inputs=tuple(inputs),
        outputs=_named_outputs(structure),
        named=has_names(structure),
        examples=_examples(program, leaves),
        writes_inputs=any(tensor.name in written for tensor in inputs),
        state=next((name for place, name in kept.items() if place in written), ""),
    )


@dataclass(frozen=True, slots=True)
class _ArgumentSlot:
    """Where an input goes among the arguments."""

    name: str


def _caller(program: Any, leaves: Sequence[Any]) -> Callable[[Mapping[str, Any]], Any]:
    module = program.module()
    spec = program.call_spec.in_spec

    def call(tensors: Mapping[str, Any]) -> Any:
        filled = [
            tensors[leaf.name] if isinstance(leaf, _ArgumentSlot) else leaf for leaf in leaves
        ]
        arguments, keywords = spec.unflatten(filled)
        return module(*arguments, **keywords)

    return call


def _written(program: Any) -> set[str]:
    """Return the names of what the program is given and writes into, its own buffers included."""
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    found = {place for place, name in signature.inputs_to_buffers.items() if name in changed}
    found.update(signature.user_inputs_to_mutate.values())
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found.add(_origin(value).name)
    return found


def _origin(node: Any) -> Any:
    """Return what *node* is a view of, however often it was viewed."""
    while node.op == "call_function" and node.args:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.returns or schema.returns[0].alias_info is None:
            break
        node = node.args[0]
    return node


def _check_sample_inputs(torch: Any, path: Path) -> None:
    """Refuse sample inputs that PyTorch could only read by running what they say."""
    sample = sample_inputs(path)
    if not sample:
        return
    try:
        torch.load(io.BytesIO(sample), weights_only=True)
    except Exception as error:
        raise NotServableError(
            "its sample inputs are a pickle of more than tensors, which can run any code"
        ) from error


def _described(torch: Any, argument: Any, values: dict[str, Any]) -> TensorMetadata | None:
    """Return the metadata of a tensor argument; None for a constant."""
    kind = type(argument).__name__
    if kind == "ConstantArgument":
        return None
    value = values.get(argument.name)
    if kind != "TensorArgument" or value is None:
        raise NotServableError(f"it takes or gives {argument.name!r}, a {kind}, which is no tensor")
    datatype = datatype_of(torch, value.dtype)
    if datatype is None:
        raise NotServableError(
            f"it takes or gives {argument.name!r}, a tensor of {value.dtype}, which no datatype is"
        )
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)
    return TensorMetadata(argument.name, datatype, shape)


def _named_outputs(returned: Any) -> tuple[TensorMetadata, ...]:
    outputs = []
    for name, value in named(returned):
        if not isinstance(value, TensorMetadata):
            raise NotServableError(
                f"it returns a {type(value).__name__} as {name!r}, needed is a tensor"
            )
        outputs.append(TensorMetadata(name, value.datatype, value.shape))
    return tuple(outputs)


def _examples(program: Any, leaves: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs that the program was exported with, where it keeps them."""
    if program.example_inputs is None:
        return {}
    given = program.call_spec.in_spec.flatten_up_to(program.example_inputs)
    return {
        leaf.name: tuple(tensor.shape)
        for tensor, leaf in zip(given, leaves, strict=True)
        if isinstance(leaf, _ArgumentSlot)
    }
