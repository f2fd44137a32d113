"""Reads GraphPipe messages into tensors of the IR, with their data as views of the message.

`translate.py` decides which call or reply a message is, `flatbuffer_writer.py` writes messages.

Source: docs/protocols/graphpipe.md, "2. Schema", "4. Inference requests".
"""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from gateway.ir.context import NO_PARAMETERS, ModelRef
from gateway.ir.errors import InvalidRequest, InvalidTensor, MalformedMessage, TooLarge
from gateway.ir.limits import check_shape
from gateway.ir.tensors.data import ItemsData, RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.expected_inputs import compare_inputs, is_comparing
from gateway.ir.tensors.items import ItemViews, Positions
from gateway.ir.tensors.tensor import Shape, Tensor
from gateway.ir.work import charge
from gateway.protocols.graphpipe.datatypes import DATATYPES, STRING, TYPE_NAMES
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage, table

_REQUEST: Final = table("the Request table", 1, 4)
_INFER_REQUEST: Final = table("the InferRequest table", 4, 4, 4, 4)
_METADATA_REQUEST: Final = table("the MetadataRequest table")
_INFER_RESPONSE: Final = table("the InferResponse table", 4, 4)
_TENSOR: Final = table("a Tensor table", 1, 4, 4, 4)

_INFER, _METADATA = 1, 2
EMPTY: Final = memoryview(b"")


def open_request(message: FlatbufferMessage) -> int | None:
    """Return the position of an inference request's table; None for a metadata request.

    Raises:
        MalformedMessage: It is not a request.  Old servers accept anything as a metadata request.
    """
    at = message.root()
    kind_at, member_at = message.fields(at, _REQUEST)
    kind = message.view[at + kind_at] if kind_at else 0
    if kind not in {_INFER, _METADATA}:
        raise MalformedMessage(
            f"GraphPipe request is of type {kind}: expected {_INFER} (InferRequest) or "
            f"{_METADATA} (MetadataRequest)"
        )
    if not member_at:
        raise MalformedMessage(f"GraphPipe request of type {kind} contains no request")
    target = message.follow(at + member_at, "the request")
    if kind == _INFER:
        return target
    message.fields(target, _METADATA_REQUEST)
    return None


def read_infer_request(
    message: FlatbufferMessage, at: int, model: ModelRef, *, lenient: bool
) -> tuple[memoryview, tuple[Tensor, ...], list[str]]:
    """Return the inference request whose table is at *at*.

    Args:
        message: A whole request, without the frame of its carrier.
        at: From `open_request`.
        model: From the URL or the listener.
        lenient: Read missing names as "" and drop surplus ones, as the Go server does.

    Returns:
        Its config, opaque bytes, empty when absent; its tensors, with "" for a name that the
        message lacks; and the names of its outputs, empty and repeated ones included.

    Raises:
        GatewayError: A part of it is wrong.
    """
    config_at, inputs_at, tensors_at, outputs_at = message.fields(at, _INFER_REQUEST)
    limits = message.limits
    config = message.data(at + config_at, "config") if config_at else EMPTY
    names: list[str] = []
    if inputs_at:
        names = message.names(at + inputs_at, "input name", limits.tensors, "tensors")
    output_names: list[str] = []
    if outputs_at:
        output_names = message.names(at + outputs_at, "output name", limits.outputs, "outputs")
    start, count = message.vector(at + tensors_at, 4, "the input tensors") if tensors_at else (0, 0)
    if names:
        if len(names) != count:
            names = _fitting(names, count, lenient=lenient)
        if count > 1:
            _check_twins(names)
    if is_comparing():
        compare_inputs(model, names or ("",) * count)
    return config, _tensors(message, start, count, names), output_names


def read_infer_response(
    message: FlatbufferMessage, names: Sequence[str], drop: int
) -> tuple[tuple[Tensor, ...], int]:
    """Return the outputs of the InferResponse *message*, and the position of its errors.

    Args:
        message: The response.
        names: Of the requested outputs, in order; empty for the model's own.
        drop: Number of tensors before them that are not outputs.

    Returns:
        The outputs, named if *names* are given; the position of the offset to the errors, or 0.

    Raises:
        GatewayError: A part of it is wrong, or the number of outputs differs from the request.
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
        before = f" after {drop} to drop" if drop else ""
        raise MalformedMessage(
            f"response has {count} output tensors: expected {len(names)}{before}"
        )
    return _tensors(message, start + 4 * drop, count - drop, names), errors_at


def _tensors(
    message: FlatbufferMessage, start: int, count: int, names: Sequence[str]
) -> tuple[Tensor, ...]:
    """Return the *count* tensors of a vector whose elements begin at *start*."""
    most = message.limits.tensors
    if count > most:
        raise TooLarge(f"{count} tensors, at most {most} are allowed", limit="tensors")
    message.visit(count)
    found = []
    total = 0
    for index in range(count):
        at = message.follow(start + 4 * index, "a tensor")
        tensor, size = _tensor(message, at, names[index] if names else "", index)
        total += size
        found.append(tensor)
    message.hand_out(total)
    return tuple(found)


def _tensor(message: FlatbufferMessage, at: int, name: str, index: int) -> tuple[Tensor, int]:
    """Return the tensor whose table is at *at*, and the size of its data.

    The strings of a String tensor are counted when they are read, not here.
    """
    type_at, shape_at, data_at, strings_at = message.fields(at, _TENSOR)
    label = name or f"#{index}"
    number = message.view[at + type_at] if type_at else 0
    datatype = DATATYPES[number] if number <= STRING else None
    if datatype is None:
        raise InvalidTensor(f"tensor {label!r} is of type {number}: expected 1 to {STRING}")
    shape = message.shape(at + shape_at, label) if shape_at else ()
    start, size = message.vector(at + data_at, 1, "data") if data_at else (0, 0)
    if number == STRING or strings_at:
        strings = message.vector(at + strings_at, 4, "string_val") if strings_at else (0, 0)
        if number == STRING:
            return _strings(message, name, label, shape, strings, size), 0
        if strings[1]:
            raise _misplaced(label, number, f"{strings[1]} strings in string_val")
    needed = datatype.size_bytes
    for dim in shape:
        if dim < 1:
            needed = -1  # no size equals it, so that the shape is checked below
            break
        needed *= dim
    if size != needed:
        _check_numeric(message, label, number, shape, size)
    elif size > message.limits.elements or size > message.limits.dim:
        # A shape that fits these bytes, which have arrived, keeps every limit.
        check_shape(label, datatype, shape, message.limits)
    data = RawData(message.view[start : start + size])
    return Tensor(name, datatype, shape, data, NO_PARAMETERS), size


def _strings(
    message: FlatbufferMessage,
    name: str,
    label: str,
    shape: Shape,
    strings: tuple[int, int],
    data_bytes: int,
) -> Tensor:
    """Return the String tensor with *strings*, the start and count of a vector."""
    start, found = strings
    count = check_shape(label, Datatype.BYTES, shape, message.limits)
    _check_empty(message, label, shape, count)
    if data_bytes:
        raise _misplaced(label, STRING, f"{data_bytes} bytes in data")
    if found != count:
        raise _misfit(label, STRING, shape, f"{found} strings", str(count))
    message.count_strings(count)
    items = read_strings(message, start, count, f"an element of tensor {label!r}")
    return Tensor(name, Datatype.BYTES, shape, ItemsData(items))


def _check_numeric(
    message: FlatbufferMessage, label: str, number: int, shape: Shape, size: int
) -> None:
    """Refuse a tensor whose shape is impossible, or does not fit *size* bytes of data."""
    datatype = DATATYPES[number]
    count = check_shape(label, datatype, shape, message.limits)
    _check_empty(message, label, shape, count)
    needed = count * (0 if datatype is None else datatype.size_bytes)
    if size != needed:
        raise _misfit(label, number, shape, f"{size} bytes", str(needed))


def _check_empty(message: FlatbufferMessage, label: str, shape: Shape, count: int) -> None:
    """Refuse a shape without elements whose other dimensions exceed the limits of numpy."""
    others = 0 if count else prod([dim for dim in shape if dim])
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
        f"tensor {label!r} has {found}: shape {list(shape)} of {TYPE_NAMES[number]} needs {needed}"
    )


def _fitting(names: list[str], count: int, *, lenient: bool) -> list[str]:
    """Return as many names as there are tensors."""
    if not lenient:
        raise InvalidRequest(
            f"{count} input tensors have {len(names)} input names: expected as many names as "
            "tensors, or none"
        )
    return [*names, *[""] * (count - len(names))][:count]


def _check_twins(names: list[str]) -> None:
    """Refuse two tensors for one input; "" may repeat, since it names no input."""
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if name and seen.setdefault(name, index) != index:
            raise InvalidRequest(
                f"input {name!r} occurs twice, as tensors {seen[name]} and {index}"
            )


# Fewer are faster one by one.
_FEW_STRINGS: Final = 32
# Items that one string is, where numpy finds it.
_EACH: Final = 1 / 8


def read_strings(
    message: FlatbufferMessage, start: int, count: int, what: str
) -> Sequence[memoryview]:
    """Return the strings of a vector whose *count* elements begin at *start*.

    Raises:
        MalformedMessage: One exceeds the end of the message.
        TooLarge: They overlap, and exceed the size of the message by far.
    """
    if count <= _FEW_STRINGS:
        most = message.limits.bytes_element_size
        found = [message.data(place, what) for place in range(start, start + 4 * count, 4)]
        for item in found:
            if len(item) > most:
                raise _too_long(what, len(item), most)
        return found
    charge(count * _EACH, count)
    view, size = message.view, message.size
    places = np.arange(start, start + 4 * count, 4, dtype=np.int64)
    distances = np.frombuffer(view, "<u4", count, start).astype(np.int64)
    counts = places + distances
    _check(what, (distances == 0) | (counts > size - 4), counts, size)
    octets = np.frombuffer(view, np.uint8)
    lengths = np.zeros(count, np.int64)
    for byte in range(4):
        lengths |= octets[counts + byte].astype(np.int64) << (8 * byte)
    starts = counts + 4
    ends = starts + lengths
    _check(what, ends > size, ends, size)
    longest = int(lengths.max())
    if longest > message.limits.bytes_element_size:
        raise _too_long(what, longest, message.limits.bytes_element_size)
    message.hand_out(int(lengths.sum()))
    return ItemViews(view, starts, ends)


def _check(what: str, wrong: npt.NDArray[np.bool_], places: Positions, size: int) -> None:
    if wrong.any():
        index = int(wrong.argmax())
        raise MalformedMessage(
            f"{what} (number {index}) would reach {int(places[index])}, the GraphPipe message "
            f"has {size} bytes"
        )


def _too_long(what: str, found: int, most: int) -> TooLarge:
    return TooLarge(
        f"{what} has {found} bytes, at most {most} are allowed",
        limit="bytes_element_size",
    )
