"""Inputs of JSON without datatypes become those that the model declares.

`Complete` gets the metadata; `gateway.ir.values.untyped` reads the values.

Source: docs/protocols/rows.md, "3. Tables".
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from gateway.accelerator import accelerated
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import NO_PARAMETERS, ModelRef
from gateway.ir.errors import InvalidRequest, TooLarge, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import ArrayData, JsonLayout, RawData, UntypedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor, array_tensor, as_numpy
from gateway.ir.tensors.validation import quote_names, unknown_input, unknown_output
from gateway.ir.values.field_tensors import element_tensor, field_tensor, setting_of
from gateway.ir.values.nearest import may_lie_between
from gateway.ir.values.number_lists import CODES, nested_numbers, nested_shape
from gateway.ir.values.untyped import (
    RowsForm,
    adds_axis,
    declared_form,
    matrix_tensor,
    parsed,
    table_columns,
    typed_tensor,
    value_place,
)
from gateway.policies.complete.splits import split_inputs

_MATRIX_RANK = 2
_FLOATS: Final = {"e": Datatype.FP16, "f": Datatype.FP32, "d": Datatype.FP64}
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
    is_rounded = code in _FLOATS and _is_rounded(flat, layout.unpack(packed), code)
    return None if is_rounded else (packed, shape)


def _is_rounded(flat: list[Any], held: Sequence[float], code: str) -> bool:
    """Return whether an integer was rounded, or a number may have been rounded twice."""
    for number, found in zip(flat, held, strict=True):
        if type(number) is int and number != found:
            return True
    return may_lie_between(flat, _FLOATS[code])


def _is_plain_matrix(data: UntypedData, metadata: ModelMetadata) -> bool:
    """Return whether a table is the only input of a model, in the order of its columns."""
    form = declared_form(metadata.declarations, data.rules.protocol)
    if form.is_matrix is False or len(metadata.inputs) != 1:
        return False
    return not form.columns or form.columns == data.columns


def typed_request(call: InferRequest, metadata: ModelMetadata) -> InferRequest:
    """Return *call* with the inputs of the model, each with its datatype and shape.

    Args:
        call: Some of its inputs are JSON without a datatype. With a batch size they are one item,
            and get a first axis of 1 if the model has a batch axis.
        metadata: The metadata of the model, with its maximum batch size for a call with one.

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
    elif metadata.supports_batching if call.batch_size is not None else adds_axis(data):
        items = _of_values(model, call.inputs, _of_items(model, call.inputs, metadata))
        inputs = tuple([_with_first_axis(each) for each in items])
    else:
        inputs = _of_values(model, call.inputs, metadata)
    if call.batch_size is None:
        return call.changed(inputs=inputs)
    return call.changed(inputs=inputs, batch_size=None)


def with_batch_axis(call: InferRequest, metadata: ModelMetadata) -> ModelMetadata:
    """Return the metadata of a model that batches, if it has an axis more than the item of *call*.

    The batch axis of a server without a largest batch is an axis like any other.
    """
    batching = metadata.changed(max_batch_size=None)
    if not (batching.supports_batching and is_untyped(call.inputs)):
        return metadata
    ranks = {each.name: len(each.shape or ()) for each in metadata.inputs}
    only = metadata.inputs[0].name if len(ranks) == 1 else ""
    for tensor in call.inputs:
        rank, data = ranks.get(tensor.name or only), tensor.data
        if type(data) is not UntypedData or type(data.value) is memoryview:
            return metadata
        if rank != len(nested_shape(parsed(data).value)) + 1:
            return metadata
    return batching


def _of_items(model: ModelRef, tensors: Sequence[Tensor], metadata: ModelMetadata) -> ModelMetadata:
    """Return *metadata* with the shapes of one item.

    Raises:
        InvalidRequest: The first axis of an input is no batch axis.
    """
    items = []
    for declared in metadata.inputs:
        shape = declared.shape
        if shape is not None and (not shape or shape[0] not in (1, -1)):
            data = tensors[0].data
            setting = f" ({data.rules.setting}.batch)" if type(data) is UntypedData else ""
            raise InvalidRequest(
                f"input {declared.name!r} of model {str(model)!r} has the shape {list(shape)}: "
                f"expected a batch axis, because a request is one item{setting}",
                model=model,
            )
        item = None if shape is None else shape[1:]
        items.append(TensorMetadata(declared.name, declared.datatype, item))
    return metadata.changed(inputs=tuple(items))


def _with_first_axis(tensor: Tensor) -> Tensor:
    shape = (1, *(tensor.shape or ()))
    data = tensor.data
    if type(data) is ArrayData:
        data = ArrayData(data.array.reshape(shape))
    return Tensor(tensor.name, tensor.datatype, shape, data, tensor.parameters)


def typed_reply(call: InferRequest, reply: InferResponse, metadata: ModelMetadata) -> InferResponse:
    """Return *reply* with the outputs of the model, those that *call* requests if it does.

    With a batch size they are one item, without the batch axis of the model.

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
    declared = metadata.outputs
    if requested and not any(each.name for each in reply.outputs):
        declared = tuple([each for each in declared if each.name in requested])
    if reply.batch_size is not None and metadata.supports_batching:
        declared = tuple(
            [
                TensorMetadata(each.name, each.datatype, each.shape and each.shape[1:])
                for each in declared
            ]
        )
    try:
        outputs = _typed_outputs(model, reply.outputs, declared, metadata)
    except (InvalidRequest, TooLarge) as error:
        raise UpstreamProtocolError(
            f"the response is wrong: {error.message}", model=model
        ) from error
    kept = [each for each in outputs if not requested or each.name in requested]
    return reply.changed(outputs=tuple(kept))


def _typed_outputs(
    model: ModelRef,
    tensors: Sequence[Tensor],
    outputs: Sequence[TensorMetadata],
    metadata: ModelMetadata,
) -> list[Tensor]:
    by_name = {declared.name: declared for declared in outputs}
    if not by_name:
        raise InvalidRequest(
            f"the metadata of model {str(model)!r} declare no outputs; expected "
            "models.NAME.signature"
        )
    first = tensors[0].data if tensors else None
    if isinstance(first, UntypedData) and first.raw is not None:
        whole = _whole_message(tensors, first, outputs)
        if whole is not None:
            return [whole]
    typed = []
    for tensor in tensors:
        declared = by_name.get(tensor.name)
        if declared is None and not tensor.name and len(by_name) == 1:
            declared = outputs[0]
        if declared is None:
            raise InvalidRequest(
                f"it has output {tensor.name!r}: expected {quote_names(by_name)} of model "
                f"{str(model)!r}"
            )
        typed.append(_typed(tensor, declared, metadata))
    missing = by_name.keys() - {each.name for each in typed}
    if missing:
        raise InvalidRequest(f"it lacks output {min(missing)!r} of model {str(model)!r}")
    return typed


def _of_values(
    model: ModelRef, tensors: Sequence[Tensor], metadata: ModelMetadata
) -> tuple[Tensor, ...]:
    by_name = {declared.name: declared for declared in metadata.inputs}
    first = tensors[0].data
    if type(first) is UntypedData and first.raw is not None:
        whole = _whole_message(tensors, first, metadata.inputs)
        if whole is not None:
            return (whole,)
    if type(first) is UntypedData:
        form = declared_form(metadata.declarations, first.rules.protocol)
        if len(tensors) == 1 and not tensors[0].name and form.splits:
            return split_inputs(model, first, metadata, form)
        if len(by_name) == 1 and {each.name for each in tensors} == {*form.columns}:
            return (_stacked(tensors, form, metadata),)
    found: list[tuple[Tensor, TensorMetadata]] = []
    for tensor in tensors:
        declared = by_name.get(tensor.name)
        if not tensor.name:
            declared = _only_input(model, tensor, metadata)
        if declared is not None:
            found.append((tensor, declared))
        elif not (type(tensor.data) is UntypedData and tensor.data.rules.drops_surplus):
            raise _with_setting(unknown_input(model, tensor.name, by_name), tensor)
    _check_missing(model, [declared.name for _, declared in found], metadata, tensors[0])
    return tuple([_typed(tensor, declared, metadata) for tensor, declared in found])


def _stacked(tensors: Sequence[Tensor], form: RowsForm, metadata: ModelMetadata) -> Tensor:
    """Return the columns of a matrix that came as values of their own."""
    declared, by_name = metadata.inputs[0], {each.name: each for each in tensors}
    columns = [
        as_numpy(_typed(by_name[name], TensorMetadata(name, declared.datatype, (-1,)), metadata))
        for name in form.columns
    ]
    if len({len(each) for each in columns}) > 1:
        raise InvalidRequest(f"the columns {quote_names(form.columns)} differ in length")
    return array_tensor(declared.name, np.stack(columns, axis=1), declared.datatype)


def _typed(tensor: Tensor, declared: TensorMetadata, metadata: ModelMetadata) -> Tensor:
    data = tensor.data
    if type(data) is not UntypedData:
        return tensor
    if data.layout is JsonLayout.FIELD:
        return field_tensor(data, declared)
    form = declared_form(metadata.declarations, data.rules.protocol)
    return typed_tensor(declared.name, data, declared, form)


def _whole_message(
    tensors: Sequence[Tensor], data: UntypedData, known: Sequence[TensorMetadata]
) -> Tensor | None:
    """Return a message as one element of BYTES, if the model has no other tensor.

    A message that names the tensor is read as JSON.
    """
    declared = known[0]
    if data.raw is None or data.layout is JsonLayout.FIELD:
        return None
    if len(known) > 1 or declared.datatype is not Datatype.BYTES:
        return None
    if [each.name for each in tensors] == [declared.name]:
        return None
    return element_tensor(data, declared, data.raw)


def _with_setting(error: InvalidRequest, tensor: Tensor) -> InvalidRequest:
    """Return *error*, with the key that declares the form of the request, if there is one."""
    data = tensor.data
    setting = setting_of(data) if type(data) is UntypedData else ""
    return InvalidRequest(f"{error.message}{setting}", model=error.model) if setting else error


def _only_input(model: ModelRef, tensor: Tensor, metadata: ModelMetadata) -> TensorMetadata:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0]
    data = tensor.data
    where = value_place(data, ()) if type(data) is UntypedData else "the request"
    names = quote_names([declared.name for declared in metadata.inputs])
    error = InvalidRequest(
        f"{where} has values without names, and model {str(model)!r} has {len(metadata.inputs)} "
        f"inputs: expected objects with {names}",
        model=model,
    )
    raise _with_setting(error, tensor)


def _check_missing(
    model: ModelRef, names: Sequence[str], metadata: ModelMetadata, tensor: Tensor
) -> None:
    for declared in metadata.inputs:
        if declared.name not in names:
            error = InvalidRequest(
                f"model {str(model)!r} needs input {declared.name!r}, the request has "
                f"{quote_names(names)}",
                model=model,
            )
            raise _with_setting(error, tensor)


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
    _check_missing(model, list(columns), metadata, Tensor("", None, None, data))
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
    # A column of the input's name is the input; one of rank 2 may have it among others.
    if data.columns == (inputs[0].name,) or (
        shape is not None and len(shape) == 1 and inputs[0].name in (data.columns or ())
    ):
        return False
    if shape is None or len(shape) == _MATRIX_RANK:
        return True
    raise InvalidRequest(
        f"{data.place} is a table, and input {inputs[0].name!r} of model {str(model)!r} has shape "
        f"{list(shape)}: expected a column of its name, one input of rank 2 or several inputs "
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
