"""GraphPipe's messages, read: what each field must be, beyond lying inside the message.

Tensors come out as those of the IR, their data as views of the message. Which call or reply a
message is stands in calls.py; writing is in writer.py.

Source: dossier, sections 2, 4, 6 and 10.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

from gateway.ir.data import ItemsData, RawData
from gateway.ir.errors import InvalidRequest, InvalidTensor, MalformedMessage, TooLarge
from gateway.ir.limits import check_shape
from gateway.ir.tensor import Shape, Tensor
from gateway.protocols.graphpipe.datatypes import DATATYPES, STRING, TYPE_NAMES
from gateway.protocols.graphpipe.reader import Message, table
from gateway.protocols.graphpipe.strings import read_strings

_REQUEST: Final = table("the Request table", 1, 4)
_INFER_REQUEST: Final = table("the InferRequest table", 4, 4, 4, 4)
_METADATA_REQUEST: Final = table("the MetadataRequest table")
_INFER_RESPONSE: Final = table("the InferResponse table", 4, 4)
_TENSOR: Final = table("a Tensor table", 1, 4, 4, 4)

_INFER, _METADATA = 1, 2
_NOTHING: Final = memoryview(b"")


class InferMessage(NamedTuple):
    """An inference request as it came.

    Attributes:
        config: Opaque bytes; empty when absent.
        tensors: Named as the message names them; "" where it does not.
        output_names: In order, "" and repeated ones as they are.
    """

    config: memoryview
    tensors: tuple[Tensor, ...]
    output_names: list[str]


def open_request(message: Message) -> int | None:
    """Return where the table of an inference request stands; None for a metadata request.

    Raises:
        MalformedMessage: It is no request. Old servers take anything for a metadata request.
    """
    at = message.root()
    kind_at, member_at = message.fields(at, _REQUEST)
    kind = message.view[at + kind_at] if kind_at else 0
    if kind not in {_INFER, _METADATA}:
        raise MalformedMessage(
            f"a GraphPipe request of type {kind}: needed is {_INFER} (InferRequest) or "
            f"{_METADATA} (MetadataRequest)"
        )
    if not member_at:
        raise MalformedMessage(f"a GraphPipe request of type {kind} has no request in it")
    target = message.follow(at + member_at, "the request")
    if kind == _INFER:
        return target
    message.fields(target, _METADATA_REQUEST)
    return None


def read_infer_request(message: Message, at: int, *, lenient: bool) -> InferMessage:
    """Return the inference request whose table stands at *at*.

    Args:
        message: From `open_request`.
        at: From `open_request`.
        lenient: As the Go server does, take missing names for "" and leave out surplus ones.

    Raises:
        GatewayError: Something in it is not as it must be.
    """
    config_at, inputs_at, tensors_at, outputs_at = message.fields(at, _INFER_REQUEST)
    config = message.data(at + config_at, "config") if config_at else _NOTHING
    names = message.names(at + inputs_at, "input names") if inputs_at else []
    output_names = message.names(at + outputs_at, "output names") if outputs_at else []
    start, count = message.vector(at + tensors_at, 4, "the input tensors") if tensors_at else (0, 0)
    if names:
        if len(names) != count:
            names = _fitting(names, count, lenient=lenient)
        _check_twins(names)
    return InferMessage(config, _tensors(message, start, count, names), output_names)


def read_infer_response(
    message: Message, names: Sequence[str], drop: int
) -> tuple[tuple[Tensor, ...], int]:
    """Return the outputs of the InferResponse that is *message*, and where its errors are.

    Args:
        message: The answer.
        names: Of the outputs that were asked for, in order; empty for the model's own.
        drop: Number of tensors before them that are no outputs.

    Returns:
        The outputs, named if *names* are given; the place of the offset to the errors, or 0.

    Raises:
        GatewayError: Something in it is not as it must be, or the outputs are not as many as asked.
    """
    at = message.root()
    tensors_at, errors_at = message.fields(at, _INFER_RESPONSE)
    errors_at = at + errors_at if errors_at else 0
    if not tensors_at:
        return (), errors_at
    start, count = message.vector(at + tensors_at, 4, "the output tensors")
    if not count:
        return (), errors_at
    if count < drop or (names and len(names) != count - drop):
        before = f" after {drop} to leave out" if drop else ""
        raise MalformedMessage(
            f"an answer of {count} output tensors, asked for were {len(names)}{before}"
        )
    return _tensors(message, start + 4 * drop, count - drop, names), errors_at


def _tensors(message: Message, start: int, count: int, names: Sequence[str]) -> tuple[Tensor, ...]:
    """Return the *count* tensors of a vector whose elements begin at *start*."""
    most = message.limits.tensors
    if count > most:
        raise TooLarge(f"{count} tensors, at most {most} are allowed", limit="tensors")
    message.visit(count)
    found = []
    for index in range(count):
        name = names[index] if names else ""
        at = message.follow(start + 4 * index, "a tensor")
        found.append(_tensor(message, at, name, name or f"#{index}"))
    return tuple(found)


def _tensor(message: Message, at: int, name: str, label: str) -> Tensor:
    """Return the tensor whose table stands at *at*; *label* is its name in errors."""
    type_at, shape_at, data_at, strings_at = message.fields(at, _TENSOR)
    number = message.view[at + type_at] if type_at else 0
    datatype = DATATYPES[number] if number <= STRING else None
    if datatype is None:
        raise InvalidTensor(f"tensor {label!r} is of type {number}, GraphPipe has 1 to {STRING}")
    shape = message.shape(at + shape_at, f"tensor {label!r}") if shape_at else ()
    count = check_shape(label, datatype, shape, message.limits)
    if not count:
        _check_empty(message, label, shape)
    data_start, data_bytes = message.vector(at + data_at, 1, "data") if data_at else (0, 0)
    strings_start, strings = (
        message.vector(at + strings_at, 4, "string_val") if strings_at else (0, 0)
    )
    if number == STRING:
        if data_bytes:
            raise _misplaced(label, number, f"{data_bytes} bytes in data")
        if strings != count:
            raise _misfit(label, number, shape, f"{strings} strings", str(count))
        items = read_strings(message, strings_start, strings, f"tensor {label!r}")
        return Tensor(name, datatype, shape, ItemsData(items))
    if strings:
        raise _misplaced(label, number, f"{strings} strings in string_val")
    needed = count * datatype.size_bytes
    if data_bytes != needed:
        raise _misfit(label, number, shape, f"{data_bytes} bytes", str(needed))
    message.hand_out(data_bytes)
    return Tensor(name, datatype, shape, RawData(message.view[data_start : data_start + needed]))


def _check_empty(message: Message, label: str, shape: Shape) -> None:
    """Refuse a shape without elements whose other dimensions are absurd: numpy cannot hold it."""
    others = prod([dim for dim in shape if dim])
    if others > message.limits.elements:
        raise InvalidTensor(
            f"tensor {label!r} has shape {list(shape)}: no elements, and dimensions of {others}"
        )


def _misplaced(label: str, number: int, found: str) -> InvalidTensor:
    return InvalidTensor(
        f"tensor {label!r} is of type {TYPE_NAMES[number]} and has {found}: "
        "String has its elements in string_val, every other type in data"
    )


def _misfit(label: str, number: int, shape: Shape, found: str, needed: str) -> InvalidTensor:
    return InvalidTensor(
        f"tensor {label!r} has {found}, shape {list(shape)} of {TYPE_NAMES[number]} needs {needed}"
    )


def _fitting(names: list[str], count: int, *, lenient: bool) -> list[str]:
    """Return as many names as there are tensors."""
    if not lenient:
        raise InvalidRequest(
            f"{count} input tensors and {len(names)} input names: needed are as many names as "
            "tensors, or none"
        )
    return [*names, *[""] * (count - len(names))][:count]


def _check_twins(names: list[str]) -> None:
    """Refuse two tensors for one input; "" is the input at its place and may be there often."""
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if name and seen.setdefault(name, index) != index:
            raise InvalidRequest(
                f"input {name!r} is given twice, as tensors {seen[name]} and {index}"
            )
