"""Opens TorchScript and exported programs, and gives both the same interface.

An exported program contains the datatypes and shapes of its tensors; TorchScript contains only the
names of its arguments.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.backends.torch.archive_check import NotServableError, ProgramKind, sample_inputs
from gateway.backends.torch.tensors import datatype_of, has_names, named
from gateway.ir.metadata import TensorMetadata

_TENSORS = frozenset({"Tensor", "Optional[Tensor]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An open program.

    Attributes:
        call: Runs the program with tensors by their names in it, and returns its result.
        inputs: Inputs of the program; datatype and shape are None in TorchScript.
        optional: Names of optional inputs.
        outputs: Outputs of the program; None in TorchScript, which does not declare them.
        has_output_names: Whether the program names its outputs.
        examples: Shapes of example inputs, by name, if the file has them.
        writes_inputs: Whether the program may change its input tensors.
        state: A buffer that each call changes; "" if none is known.
    """

    kind: ProgramKind
    call: Callable[[Mapping[str, Any]], Any]
    inputs: tuple[TensorMetadata, ...]
    optional: frozenset[str] = frozenset()
    outputs: tuple[TensorMetadata, ...] | None = None
    has_output_names: bool = False
    examples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    writes_inputs: bool = True
    state: str = ""


def open_program(torch: Any, path: Path, kind: ProgramKind, device: Any) -> Program:
    """Open the program at *path* on *device*.

    Raises:
        NotServableError: An input or output is not a tensor.
        Exception: PyTorch cannot open the file.
    """
    return (_torchscript if kind is ProgramKind.TORCHSCRIPT else _exported)(torch, path, device)


def _torchscript(torch: Any, path: Path, device: Any) -> Program:
    module = torch.jit.load(str(path), map_location=device)
    if hasattr(module, "training"):  # frozen modules have no such attribute
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
                f"argument {argument.name!r} of forward is a {argument.type}; expected a Tensor"
            )
    return Program(
        kind=ProgramKind.TORCHSCRIPT,
        call=lambda tensors: module(**tensors),
        inputs=tuple(TensorMetadata(name, None, None) for name in names),
        optional=frozenset(optional),
    )


def _exported(torch: Any, path: Path, device: Any) -> Program:
    _check_sample_inputs(torch, path)
    with path.open("rb") as file:
        program = torch.export.load(file)
    if device.type != "cpu":
        # The program also contains the devices of the tensors that it creates.
        from torch.export.passes import move_to_device_pass  # noqa: PLC0415  # optional

        program = move_to_device_pass(program, device)
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    leaves: list[Any] = []
    inputs: list[TensorMetadata] = []
    for spec in signature.input_specs:
        if spec.kind.name != "USER_INPUT":
            continue
        tensor = _tensor_metadata(torch, spec.arg, values)
        if tensor is None:  # a constant number or text of the export
            leaves.append(spec.arg.value)
        else:
            leaves.append(_ArgumentSlot(tensor.name))
            inputs.append(tensor)
    outputs = [
        _tensor_metadata(torch, spec.arg, values)
        for spec in signature.output_specs
        if spec.kind.name == "USER_OUTPUT"
    ]
    written = _written_tensors(program)
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    structure = program.call_spec.out_spec.unflatten(outputs)
    return Program(
        kind=ProgramKind.EXPORTED,
        call=_exported_call(program, leaves),
        inputs=tuple(inputs),
        outputs=_outputs(structure),
        has_output_names=has_names(structure),
        examples=_examples(program, leaves),
        writes_inputs=any(tensor.name in written for tensor in inputs),
        state=next((name for node, name in weights.items() if node in written), ""),
    )


@dataclass(frozen=True, slots=True)
class _ArgumentSlot:
    """The position of an input among the arguments."""

    name: str


def _exported_call(program: Any, leaves: Sequence[Any]) -> Callable[[Mapping[str, Any]], Any]:
    module = program.module()
    spec = program.call_spec.in_spec

    def call(tensors: Mapping[str, Any]) -> Any:
        values = [
            tensors[leaf.name] if isinstance(leaf, _ArgumentSlot) else leaf for leaf in leaves
        ]
        arguments, keywords = spec.unflatten(values)
        return module(*arguments, **keywords)

    return call


def _written_tensors(program: Any) -> set[str]:
    """Return the names of the inputs and buffers that the program writes into."""
    signature = program.graph_signature
    buffers = set(signature.buffers_to_mutate.values())
    written = {node for node, name in signature.inputs_to_buffers.items() if name in buffers}
    written.update(signature.user_inputs_to_mutate.values())
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.add(_viewed(value).name)
    return written


def _viewed(node: Any) -> Any:
    """Return the tensor that *node* is a view of, through any number of views."""
    while node.op == "call_function" and node.args:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.returns or schema.returns[0].alias_info is None:
            break
        node = node.args[0]
    return node


def _check_sample_inputs(torch: Any, path: Path) -> None:
    """Reject sample inputs that PyTorch can only read with an unsafe unpickler."""
    sample = sample_inputs(path)
    if not sample:
        return
    try:
        torch.load(io.BytesIO(sample), weights_only=True)
    except Exception as error:
        raise NotServableError(
            "its sample inputs are a pickle with other objects than tensors, which can run any code"
        ) from error


def _tensor_metadata(torch: Any, argument: Any, values: dict[str, Any]) -> TensorMetadata | None:
    """Return the metadata of a tensor argument; None for a constant."""
    kind = type(argument).__name__
    if kind == "ConstantArgument":
        return None
    value = values.get(argument.name)
    if kind != "TensorArgument" or value is None:
        raise NotServableError(f"its input or output {argument.name!r} is a {kind}, not a tensor")
    datatype = datatype_of(torch, value.dtype)
    if datatype is None:
        raise NotServableError(
            f"its input or output {argument.name!r} is a tensor of {value.dtype}, "
            "which is not a supported datatype"
        )
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)
    return TensorMetadata(argument.name, datatype, shape)


def _outputs(structure: Any) -> tuple[TensorMetadata, ...]:
    outputs = []
    for name, value in named(structure):
        if not isinstance(value, TensorMetadata):
            raise NotServableError(
                f"it returns a {type(value).__name__} as {name!r}; expected a tensor"
            )
        outputs.append(TensorMetadata(name, value.datatype, value.shape))
    return tuple(outputs)


def _examples(program: Any, leaves: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the example inputs of the export, if the file has them."""
    if program.example_inputs is None:
        return {}
    examples = program.call_spec.in_spec.flatten_up_to(program.example_inputs)
    return {
        leaf.name: tuple(tensor.shape)
        for tensor, leaf in zip(examples, leaves, strict=True)
        if isinstance(leaf, _ArgumentSlot)
    }
