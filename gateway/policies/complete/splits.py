"""One array without names becomes the inputs of a model, each of some of its columns.

Source: docs/protocols/rows.md, "3. Tables".
"""

from functools import partial
from typing import Any

from msgspec.structs import replace  # noqa: TID251  # of data, not of calls

from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.data import JsonLayout, UntypedData
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.tensors.validation import quote_names
from gateway.ir.values.number_lists import nested_shape
from gateway.ir.values.untyped import (
    RowsForm,
    matrix_tensor,
    parsed,
    table_columns,
    typed_tensor,
    value_place,
)

_MATRIX_RANK = 2


def split_inputs(
    model: ModelRef, data: UntypedData, metadata: ModelMetadata, form: RowsForm
) -> tuple[Tensor, ...]:
    """Return the inputs of a model, each with its columns of one array.

    Args:
        model: The model.
        data: The array.
        metadata: The metadata of the model.
        form: Its declaration, with the columns of each input.

    Raises:
        InvalidRequest: The array has no such columns, an input has no columns, or a value is wrong.
    """
    data = parsed(data)
    key = f"models.NAME.protocols.{data.rules.protocol}.columns"
    shape = nested_shape(data.value) if data.shape is None else data.shape
    count = 1 + max(column for columns in form.splits.values() for column in columns)
    if len(shape) != _MATRIX_RANK or shape[1] != count:
        raise InvalidRequest(
            f"{value_place(data, ())} has shape {list(shape)}: expected rows of {count} values "
            f"({key})",
            model=model,
        )
    known = [declared.name for declared in metadata.inputs]
    if set(known) != set(form.splits):
        raise InvalidRequest(
            f"{key} has columns for {quote_names(form.splits)}: expected {quote_names(known)}, the "
            f"inputs of model {str(model)!r}",
            model=model,
        )
    table = _table(data, shape)
    columns = table_columns(table)
    inputs = []
    for declared in metadata.inputs:
        names = [str(each) for each in form.splits[declared.name]]
        if len(names) == 1:
            inputs.append(typed_tensor(declared.name, columns[names[0]], declared))
        else:
            inputs.append(matrix_tensor(declared.name, table, declared, names))
    return tuple(inputs)


def _table(data: UntypedData, shape: tuple[int, ...]) -> UntypedData:
    """Return an array of rows as a table whose columns are numbered.

    Raises:
        InvalidRequest: A row has another number of values.
    """
    rows, width, reread = data.value, shape[1], data.reread
    if data.shape is not None:
        is_list = type(rows) is list
        rows = _divided(shape, rows) if is_list else rows.reshape(shape)
        if reread is not None:
            reread = reread.then(partial(_divided, shape))
    elif type(rows) is list:
        for index, row in enumerate(rows):
            if type(row) is not list or len(row) != width:
                found = f"a list of {len(row)}" if type(row) is list else "no list"
                raise InvalidRequest(
                    f"{value_place(data, (index,))} is {found}: expected a list of {width}, as the "
                    "first one"
                )
    names = tuple(map(str, range(width)))
    return replace(
        data, value=rows, layout=JsonLayout.TABLE, member="", columns=names, reread=reread
    )


def _divided(shape: tuple[int, ...], flat: list[Any]) -> list[list[Any]]:
    count, width = shape
    return [flat[at * width : (at + 1) * width] for at in range(count)]
