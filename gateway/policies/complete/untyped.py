"""Inputs of JSON without datatypes become those that the model declares.

`Complete` gets the metadata; `gateway.ir.untyped` reads the values.

Source: docs/protocols/rows.md, "3. Tables".
"""

import struct
from collections.abc import Sequence
from typing import Final

import orjson

from gateway.accelerator import accelerated
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import NO_PARAMETERS, ModelRef
from gateway.ir.data import RawData, UntypedData
from gateway.ir.errors import InvalidRequest, TooLarge, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.number_lists import CODES, nested_numbers
from gateway.ir.tensor import Shape, Tensor
from gateway.ir.untyped import (
    RowsForm,
    declared_form,
    matrix_tensor,
    table_columns,
    typed_tensor,
    value_place,
)
from gateway.ir.validation import quote_names, unknown_input, unknown_output

_MATRIX_RANK = 2
_FLOATS: Final = "efd"
_INTEGERS: Final = frozenset({int})


def is_untyped(tensors: Sequence[Tensor]) -> bool:
    """Return whether some tensor is JSON without a datatype."""
    for tensor in tensors:  # noqa: SIM110  # a plain loop takes a third of the time of `any`
        if type(tensor.data) is UntypedData:
            return True
    return False


def quickly_typed(  # noqa: PLR0911  # one for each kind of input that takes more
    call: InferRequest, metadata: ModelMetadata
) -> InferRequest | None:
    """Return what `typed_request` returns, where short texts of numbers make it quick; else None.

    Args:
        call: Its inputs may be of any form.
        metadata: The metadata of the model.
    """
    expected = metadata.inputs
    if len(call.inputs) != len(expected):
        return None
    typed = []
    for at, tensor in enumerate(call.inputs):
        name, data, declared = tensor.name, tensor.data, expected[at]
        datatype, dims = declared.datatype, declared.shape
        if type(data) is not UntypedData or type(data.value) is not bytes:
            return None
        if datatype not in CODES or dims is None:
            return None
        if name != declared.name and (name or len(expected) > 1):
            return None  # in another order, or unknown
        if data.columns is not None and not _is_plain_matrix(data, metadata):
            return None
        code = CODES[datatype]
        found = packed_numbers(data.value, code, dims)
        if found is None:
            return None
        packed, shape = found
        raw = RawData(memoryview(packed))
        typed.append(Tensor(declared.name, datatype, shape, raw, NO_PARAMETERS))
    return call.changed(inputs=tuple(typed))


@accelerated
def packed_numbers(text: bytes, code: str, dims: Shape) -> tuple[bytes, Shape] | None:
    """Return the wire form and the shape of numbers in nested lists.

    None for lists of another shape, for a number that is not one of the datatype, and for an
    integer that would be rounded.

    Args:
        text: The lists as JSON.
        code: The code of the numbers, one of `CODES`.
        dims: The shape, -1 for any number of items.
    """
    found = nested_numbers(orjson.loads(text))
    if found is None or len(found[0]) != len(dims):
        return None
    shape, flat = found
    for size, dim in zip(shape, dims, strict=True):
        if dim not in (-1, size):
            return None
    if code == "?" or (code not in _FLOATS and not _INTEGERS.issuperset(map(type, flat))):
        return None
    layout = struct.Struct(f"<{len(flat)}{code}")
    try:
        packed = layout.pack(*flat)
    except (struct.error, OverflowError):
        return None
    if code in _FLOATS:
        for number, held in zip(flat, layout.unpack(packed), strict=True):
            if type(number) is int and number != held:
                return None
    return packed, shape


def _is_plain_matrix(data: UntypedData, metadata: ModelMetadata) -> bool:
    """Return whether a table is the only input of a model, in the order of its columns."""
    form = declared_form(metadata.declarations, data.rules.protocol)
    if form.is_matrix is False or len(metadata.inputs) != 1:
        return False
    return not form.columns or form.columns == data.columns


def typed_request(call: InferRequest, metadata: ModelMetadata) -> InferRequest:
    """Return *call* with the inputs of the model, each with its datatype and shape.

    Args:
        call: Some of its inputs are JSON without a datatype.
        metadata: The metadata of the model.

    Raises:
        InvalidRequest: The inputs are not those of the model, or a value is wrong.
        TooLarge: An element of BYTES is too long.
    """
    model = call.model or ModelRef(metadata.name)
    if not metadata.inputs:
        raise InvalidRequest(
            f"the metadata of model {str(model)!r} declare no inputs; expected "
            "models.NAME.signature",
            model=model,
        )
    first = call.inputs[0]
    data = first.data
    if type(data) is UntypedData and data.columns is not None:
        inputs = _of_table(model, data, metadata)
    else:
        inputs = _of_values(model, call.inputs, metadata)
    return call.changed(inputs=inputs)


def typed_reply(call: InferRequest, reply: InferResponse, metadata: ModelMetadata) -> InferResponse:
    """Return *reply* with the outputs of the model, those that *call* requests if it does.

    Raises:
        UpstreamProtocolError: The outputs are not those of the model, or a value is wrong.
    """
    model = call.model or reply.model
    requested = [output.name for output in call.outputs]
    if requested:
        known = [each.name for each in metadata.outputs]
        for name in requested:
            if name not in known:
                raise unknown_output(model, name, known)
    try:
        outputs = _typed_outputs(model, reply.outputs, metadata)
    except (InvalidRequest, TooLarge) as error:
        raise UpstreamProtocolError(
            f"the response is wrong: {error.message}", model=model
        ) from error
    kept = [each for each in outputs if not requested or each.name in requested]
    return reply.changed(outputs=tuple(kept))


def _typed_outputs(
    model: ModelRef, tensors: Sequence[Tensor], metadata: ModelMetadata
) -> list[Tensor]:
    by_name = {declared.name: declared for declared in metadata.outputs}
    if not by_name:
        raise InvalidRequest(
            f"the metadata of model {str(model)!r} declare no outputs; expected "
            "models.NAME.signature"
        )
    typed = []
    for tensor in tensors:
        declared = by_name.get(tensor.name)
        if declared is None and not tensor.name and len(by_name) == 1:
            declared = metadata.outputs[0]
        data = tensor.data
        if declared is None:
            raise InvalidRequest(
                f"it has output {tensor.name!r}: expected {quote_names(by_name)} of model "
                f"{str(model)!r}"
            )
        if type(data) is UntypedData:
            form = declared_form(metadata.declarations, data.rules.protocol)
            typed.append(typed_tensor(declared.name, data, declared, form))
        else:
            typed.append(tensor)
    missing = by_name.keys() - {each.name for each in typed}
    if missing:
        raise InvalidRequest(f"it lacks output {min(missing)!r} of model {str(model)!r}")
    return typed


def _of_values(
    model: ModelRef, tensors: Sequence[Tensor], metadata: ModelMetadata
) -> tuple[Tensor, ...]:
    by_name = {declared.name: declared for declared in metadata.inputs}
    found: list[tuple[Tensor, TensorMetadata]] = []
    for tensor in tensors:
        declared = by_name.get(tensor.name)
        if not tensor.name:
            declared = _only_input(model, tensor, metadata)
        if declared is not None:
            found.append((tensor, declared))
        elif not (type(tensor.data) is UntypedData and tensor.data.rules.drops_surplus):
            raise unknown_input(model, tensor.name, by_name)
    _check_missing(model, [declared.name for _, declared in found], metadata)
    typed = []
    for tensor, declared in found:
        data = tensor.data
        if type(data) is not UntypedData:
            typed.append(tensor)
            continue
        form = declared_form(metadata.declarations, data.rules.protocol)
        typed.append(typed_tensor(declared.name, data, declared, form))
    return tuple(typed)


def _only_input(model: ModelRef, tensor: Tensor, metadata: ModelMetadata) -> TensorMetadata:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0]
    data = tensor.data
    where = value_place(data, ()) if type(data) is UntypedData else "the request"
    names = quote_names([declared.name for declared in metadata.inputs])
    raise InvalidRequest(
        f"{where} has values without names, and model {str(model)!r} has {len(metadata.inputs)} "
        f"inputs: expected objects with {names}",
        model=model,
    )


def _check_missing(model: ModelRef, names: Sequence[str], metadata: ModelMetadata) -> None:
    for declared in metadata.inputs:
        if declared.name not in names:
            raise InvalidRequest(
                f"model {str(model)!r} needs input {declared.name!r}, the request has "
                f"{quote_names(names)}",
                model=model,
            )


def _of_table(model: ModelRef, data: UntypedData, metadata: ModelMetadata) -> tuple[Tensor, ...]:
    form = declared_form(metadata.declarations, data.rules.protocol)
    if _is_matrix(model, data, form, metadata):
        return (_matrix(model, data, form, metadata),)
    by_name = {declared.name: declared for declared in metadata.inputs}
    columns = table_columns(data)
    if not data.rules.drops_surplus:
        for name in columns:
            if name not in by_name:
                raise unknown_input(model, name, by_name)
    _check_missing(model, list(columns), metadata)
    return tuple(
        [
            typed_tensor(declared.name, columns[declared.name], declared, form)
            for declared in metadata.inputs
        ]
    )


def _is_matrix(model: ModelRef, data: UntypedData, form: RowsForm, metadata: ModelMetadata) -> bool:
    inputs = metadata.inputs
    if form.is_matrix is not None:
        if form.is_matrix and len(inputs) != 1:
            raise InvalidRequest(
                f"{data.place} is a table, and model {str(model)!r} has {len(inputs)} inputs: "
                f"expected one for a matrix (models.NAME.protocols.{data.rules.protocol}.columns)",
                model=model,
            )
        return form.is_matrix
    if len(inputs) > 1:
        return False
    shape = inputs[0].shape
    if shape is None or len(shape) == _MATRIX_RANK:
        return True
    raise InvalidRequest(
        f"{data.place} is a table, and input {inputs[0].name!r} of model {str(model)!r} has shape "
        f"{list(shape)}: expected one input of rank 2 or several inputs "
        f"(models.NAME.protocols.{data.rules.protocol}.columns)",
        model=model,
    )


def _matrix(model: ModelRef, data: UntypedData, form: RowsForm, metadata: ModelMetadata) -> Tensor:
    declared = metadata.inputs[0]
    found = data.columns or ()
    columns = form.columns or found
    if form.columns and set(form.columns) != set(found):
        missing = [name for name in form.columns if name not in found]
        text = (
            f"has no column {missing[0]!r}"
            if missing
            else f"has the unknown column {next(n for n in found if n not in form.columns)!r}"
        )
        raise InvalidRequest(
            f"{data.place} {text}: expected {quote_names(form.columns)}", model=model
        )
    return matrix_tensor(declared.name, data, declared, columns)
