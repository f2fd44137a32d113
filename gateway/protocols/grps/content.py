"""The five forms of data, to and from tensors of the IR.

`gtensors` are tensors.  `ndarray` is one unnamed FP32 tensor.  `str_data` and `bin_data` are a
BYTES tensor of one element.  In a request it has no name, so that it becomes the model's input.
`gmap` becomes parameters and BYTES tensors called `gmap.<field>.<key>`.  The parameter `grps_form`
records the form of a call, so that a grps upstream receives the same form.

The form of a reply depends on the request: text for text, bytes for bytes, a map for a map, else
tensors.

Source: docs/protocols/grps.md, "5. Forms of data".
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import Parameter, Parameters
from gateway.ir.errors import InvalidRequest, MalformedMessage, TooLarge, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.tensors.data import ItemsData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, items_tensor
from gateway.ir.work import charge
from gateway.protocols.grps.datatypes import BY_DATATYPE, widened
from gateway.protocols.grps.errors import Unconvertible
from gateway.protocols.grps.messages import (
    GMAP_FIELDS,
    SUCCESS,
    ContentFormat,
    GrpsMessage,
    MapValue,
    check_names,
)

FORM_PARAMETER: Final = "grps_form"
"""Name of the parameter with the form of a call or a reply."""

_GMAP: Final = "gmap."
_BYTES_FIELD: Final = "s_b"
_INTEGERS: Final = {"s_i32": 32, "s_i64": 64}
_ONE: Final = (ContentFormat.STR_DATA, ContentFormat.BIN_DATA)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The form of the reply that a client expects.

    Attributes:
        form: The form of the request.
        is_ndarray: The reply is an ndarray.
        route: The route of the request, for the codec.
        key: The grps key of the model in the request; "" for none.
    """

    form: ContentFormat | None = None
    is_ndarray: bool = False
    route: object = None
    key: str = ""


def reply_format_of(call: Call[Any]) -> ReplyFormat:
    """Return the form of the reply to *call*, which the codec of its request has chosen."""
    origin = call.context.origin
    if origin is not None and isinstance(origin.form, ReplyFormat):
        return origin.form
    return ReplyFormat()


def request_content(
    message: GrpsMessage, limits: MessageLimits
) -> tuple[tuple[Tensor, ...], Parameters]:
    """Return the inputs and parameters in a client's message.

    Raises:
        InvalidRequest: It has no data, or names that are not allowed.
        InvalidTensor: Some of its tensors have no name, two have the same, or there are none.
        TooLarge: It has more entries than allowed, or an element has more bytes.
    """
    form = message.form
    if form is ContentFormat.GTENSORS:
        check_names(message.tensors)
        return message.tensors, {}
    if form is ContentFormat.NDARRAY:
        if not message.tensors:
            raise InvalidRequest("ndarray has no data: it exists in JSON only, use gtensors")
        return message.tensors, {}
    if form is ContentFormat.GMAP:
        return _of_map(message.entries, limits)
    if form is None:
        raise InvalidRequest(
            "the message has no data: expected one of str_data, bin_data, gtensors, ndarray, gmap"
        )
    # No shape: the rank that the model declares determines the number of ones in it.
    tensor = Tensor("", Datatype.BYTES, None, ItemsData([_one_element(message, limits)]))
    return (tensor,), {FORM_PARAMETER: form.value}


def reply_message(reply_format: ReplyFormat, reply: InferResponse) -> GrpsMessage:
    """Return the reply to a client, in the form that its request implies.

    Raises:
        Unconvertible: No allowed form can carry the outputs.
    """
    outputs = reply.outputs
    if reply_format.is_ndarray:
        return _ndarray(outputs)
    if reply_format.form in _ONE and len(outputs) == 1:
        item = _only_item(outputs[0])
        if item is not None:
            return _mirrored(reply_format.form, item)
    if reply_format.form is ContentFormat.GMAP and _is_map(outputs, reply.parameters):
        entries = _map_of(outputs, reply.parameters)
        return GrpsMessage(status=SUCCESS, form=ContentFormat.GMAP, entries=entries)
    if len(outputs) == 1:
        item = _only_item(outputs[0])
        if item is not None and _text_of(item) is None:
            return GrpsMessage(status=SUCCESS, form=ContentFormat.BIN_DATA, data=item)
    tensors = tuple([_outgoing(tensor) for tensor in outputs])
    return GrpsMessage(status=SUCCESS, form=ContentFormat.GTENSORS, tensors=tensors)


def has_only_text(reply: InferResponse) -> bool:
    """Return whether BYTES of *reply* can only be text: a single element may be `bin_data`."""
    outputs = reply.outputs
    return len(outputs) != 1 or math.prod(outputs[0].shape or ()) != 1


def request_message(call: InferRequest, form: ContentFormat | None, *, widen: bool) -> GrpsMessage:
    """Return the data of a request to an upstream.

    Args:
        call: grps cannot carry its sequence, priority, id and own parameters.
        form: The configured form; None for that of the caller.
        widen: Send datatypes that grps lacks as wider ones.

    Raises:
        Unsupported: The form cannot carry the inputs, or grps cannot carry the call.
    """
    _check_plain(call)
    if form is None:
        value = call.parameters.get(FORM_PARAMETER)
        form = _FORMS.get(value) if isinstance(value, str) else None
    if form in _ONE:
        return _single_message(form, call.inputs)
    if form is ContentFormat.GMAP:
        return GrpsMessage(form=form, entries=_map_of(call.inputs, call.parameters))
    tensors = tuple([_sent(tensor, widen=widen) for tensor in call.inputs])
    if form is ContentFormat.NDARRAY:
        if len(tensors) != 1 or tensors[0].datatype is not Datatype.FP32:
            raise Unsupported("ndarray carries one FP32 tensor, the request has other inputs")
        return GrpsMessage(form=form, tensors=(tensors[0].renamed(""),))
    unnamed = [index for index, tensor in enumerate(tensors) if not tensor.name]
    if 0 < len(unnamed) < len(tensors):
        raise Unsupported(
            f"input {unnamed[0]} has no name, others have one: expected names for all or for none"
        )
    return GrpsMessage(form=ContentFormat.GTENSORS, tensors=tensors)


def reply_content(
    message: GrpsMessage, output: str, limits: MessageLimits
) -> tuple[tuple[Tensor, ...], Parameters]:
    """Return the outputs and parameters in an upstream's response.

    Args:
        message: A successful one.
        output: Name for the tensor of `str_data` and `bin_data`; "" for that of the form.
        limits: For the number of entries in a gmap.

    Raises:
        MalformedMessage: It has no data.
        TooLarge: It has more entries than allowed, or an element has more bytes.
    """
    form = message.form
    if form is ContentFormat.GTENSORS or (form is ContentFormat.NDARRAY and message.tensors):
        return message.tensors, {}
    if form is ContentFormat.GMAP:
        return _of_map(message.entries, limits)
    if form not in _ONE:
        raise MalformedMessage("response has no data")
    tensor = items_tensor(output or form.value, (1,), [_one_element(message, limits)])
    return (tensor,), {FORM_PARAMETER: form.value}


_FORMS: Final = {form.value: form for form in ContentFormat}


def _one_element(message: GrpsMessage, limits: MessageLimits) -> bytes | memoryview:
    """Return the element in `str_data` or `bin_data`.

    Raises:
        TooLarge: It exceeds the size limit of an element.
    """
    if message.form is ContentFormat.STR_DATA:
        return _bounded("str_data", message.text.encode(), limits)
    return _bounded("bin_data", message.data, limits)


E = TypeVar("E", bytes, bytes | memoryview)


def _bounded(what: str, item: E, limits: MessageLimits) -> E:
    most = limits.bytes_element_size
    if len(item) > most:
        raise TooLarge(
            f"{what} has {len(item)} bytes; at most {most} are allowed (bytes_element_size)",
            limit="bytes_element_size",
        )
    return item


def _only_item(tensor: Tensor) -> bytes | memoryview | None:
    """Return the element of a BYTES tensor of one element; None for any other tensor."""
    if tensor.datatype is not Datatype.BYTES:
        return None
    items = as_items(tensor)
    return items[0] if len(items) == 1 else None


def _text_of(item: bytes | memoryview) -> str | None:
    try:
        return str(item, "utf-8")
    except UnicodeDecodeError:
        return None


def _mirrored(form: ContentFormat | None, item: bytes | memoryview) -> GrpsMessage:
    words = _text_of(item) if form is ContentFormat.STR_DATA else None
    if words is not None:
        return GrpsMessage(status=SUCCESS, form=ContentFormat.STR_DATA, text=words)
    return GrpsMessage(status=SUCCESS, form=ContentFormat.BIN_DATA, data=item)


def _ndarray(outputs: tuple[Tensor, ...]) -> GrpsMessage:
    if len(outputs) != 1 or outputs[0].datatype is not Datatype.FP32:
        found = ", ".join(f"{one.name!r} of {_spelled(one)}" for one in outputs[:8]) or "none"
        raise Unconvertible(
            f"reply cannot be an ndarray: expected one output of FP32, found {found}"
        )
    return GrpsMessage(status=SUCCESS, form=ContentFormat.NDARRAY, tensors=outputs)


def _spelled(tensor: Tensor) -> str:
    return "no datatype" if tensor.datatype is None else tensor.datatype.name


def _outgoing(tensor: Tensor) -> Tensor:
    """Return an output in a datatype of grps, with its text checked."""
    try:
        tensor = widened(tensor)
        _check_text(tensor)
    except Unsupported as error:
        raise Unconvertible(f"output {error.message}") from error
    return tensor


def _sent(tensor: Tensor, *, widen: bool) -> Tensor:
    """Return an input in a datatype of grps, with its text checked."""
    if tensor.datatype is not None and tensor.datatype not in BY_DATATYPE and not widen:
        raise Unsupported(
            f"tensor {tensor.name!r} is {tensor.datatype.name}, which grps does not have; the "
            "upstream's option 'widen' sends it as the next wider datatype"
        )
    tensor = widened(tensor)
    _check_text(tensor)
    return tensor


def _check_text(tensor: Tensor) -> None:
    if tensor.datatype is not Datatype.BYTES:
        return
    items = as_items(tensor)
    charge(len(items))
    # ASCII needs no check; other text may begin and end in the middle of a character.
    if b"".join(items).isascii():
        return
    for index, item in enumerate(items):
        if _text_of(item) is None:
            raise Unsupported(
                f"tensor {tensor.name!r} has bytes that are not UTF-8 at index {index}, and a "
                "tensor of grps carries text only"
            )


def _single_message(form: ContentFormat, inputs: tuple[Tensor, ...]) -> GrpsMessage:
    item = _only_item(inputs[0]) if len(inputs) == 1 else None
    if item is None:
        raise Unsupported(
            f"{form.value} carries one BYTES element, the request has {len(inputs)} inputs of "
            "other kinds"
        )
    if form is ContentFormat.BIN_DATA:
        return GrpsMessage(form=form, data=item)
    words = _text_of(item)
    if words is None:
        raise Unsupported(f"input {inputs[0].name!r} is not UTF-8, str_data carries text only")
    return GrpsMessage(form=form, text=words)


def _check_plain(call: InferRequest) -> None:
    if call.sequence is not None:
        raise Unsupported(
            f"sequence {call.sequence.id!r} cannot be carried: grps has no sequences",
            model=call.model,
        )
    if call.shares_memory:
        raise Unsupported("grps has no shared memory", model=call.model)
    for output in call.outputs:
        if output.classes:
            raise Unsupported(
                f"output {output.name!r} requests {output.classes} classes: grps has no "
                "classification",
                model=call.model,
            )


def _of_map(
    entries: Mapping[str, Mapping[str, MapValue]], limits: MessageLimits
) -> tuple[tuple[Tensor, ...], Parameters]:
    parameters: dict[str, Parameter] = {FORM_PARAMETER: ContentFormat.GMAP.value}
    tensors = []
    for member, values in entries.items():
        for key, value in values.items():
            name = f"{_GMAP}{member}.{key}"
            check_name("key of gmap", name, limits.name_bytes, "name_bytes")
            if isinstance(value, bytes):
                tensors.append(items_tensor(name, (1,), [_bounded(name, value, limits)]))
            else:
                parameters[name] = value
    check_count("entries of gmap", len(parameters) - 1, limits.parameters, "parameters")
    check_count("entries of gmap.s_b", len(tensors), limits.tensors, "tensors")
    return tuple(tensors), parameters


def _is_map(tensors: Iterable[Tensor], parameters: Parameters) -> bool:
    names = [tensor.name for tensor in tensors]
    return all(_split(name) for name in names) and (
        bool(names) or any(_split(name) for name in parameters)
    )


def _split(name: str) -> tuple[str, str] | None:
    """Return the field and key of a name; None when it does not belong to a gmap."""
    if not name.startswith(_GMAP):
        return None
    member, dot, key = name[len(_GMAP) :].partition(".")
    return (member, key) if dot and member in GMAP_FIELDS else None


def _map_of(tensors: Iterable[Tensor], parameters: Parameters) -> dict[str, dict[str, MapValue]]:
    """Return a gmap from the result of `_of_map`; it omits parameters of other names."""
    entries: dict[str, dict[str, MapValue]] = {}
    for tensor in tensors:
        place = _split(tensor.name)
        item = _only_item(tensor)
        if place is None or place[0] != _BYTES_FIELD or item is None:
            raise Unconvertible(
                f"tensor {tensor.name!r} cannot be an entry of gmap: expected one BYTES element "
                f"called {_GMAP}{_BYTES_FIELD}.<key>"
            )
        entries.setdefault(place[0], {})[place[1]] = bytes(item)
    for name, value in parameters.items():
        place = _split(name)
        if place is not None:
            entries.setdefault(place[0], {})[place[1]] = _entry(name, place[0], value)
    return entries


def _entry(name: str, member: str, value: Parameter) -> MapValue:
    bits = _INTEGERS.get(member)
    if member == "s_s" and isinstance(value, str):
        return value
    if bits is not None and type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1:
        return value
    if member in ("s_f", "s_d") and type(value) in (int, float):
        with suppress(OverflowError):  # an integer of more than 308 digits
            return float(value)
    raise Unconvertible(f"parameter {name!r} is {str(value)[:64]!r}, which {member} cannot hold")
