"""Tables as tensors, and the texts of errors about JSON values; `read.py` reads JSON."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import simdjson

from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.tensors.data import JsonLayout, UntypedData, UntypedRules
from gateway.ir.tensors.tensor import Tensor

_SHOWN: Final = 64


def column_names(found: Sequence[Any], place: str, limits: MessageLimits) -> tuple[str, ...]:
    """Return the names of the columns of a table, each of them once; numbers become their text.

    Raises:
        InvalidRequest: One is neither text nor an integer, or occurs twice.
        TooLarge: There are too many.
    """
    check_count(f"names in {place}", len(found), limits.json_keys, "json_keys")
    names = []
    for index, each in enumerate(found):
        if type(each) is not str and type(each) is not int:
            raise InvalidRequest(f"{place}[{index}] is {show(each)}: expected the name of a column")
        name = str(each)
        check_name("name of a column", name, limits.name_bytes, "name_bytes")
        names.append(name)
    if len(set(names)) != len(names):
        raise InvalidRequest(f"{place} has {repeated_key(names)[:_SHOWN]!r} twice")
    return tuple(names)


def table_tensor(
    place: str,
    columns: tuple[str, ...],
    rows: Any,
    layout: JsonLayout,
    rules: UntypedRules,
    size_bytes: int = 0,
) -> Tensor:
    """Return a table as one tensor without a name; rows of one column may be values.

    Raises:
        InvalidRequest: A row has another number of values than there are columns.
    """
    if isinstance(rows, np.ndarray) and rows.shape[1:] != (len(columns),):
        rows = rows.tolist()
    if not isinstance(rows, np.ndarray):
        if len(columns) == 1:
            rows = [row if type(row) is list else [row] for row in rows]
        for index, row in enumerate(rows):
            if type(row) is not list or len(row) != len(columns):
                found = f"{len(row)} values" if type(row) is list else show(row)
                raise InvalidRequest(
                    f"{place}[{index}] has {found}: expected {len(columns)}, one for each column"
                )
    data = UntypedData(rows, layout, place, rules, "", columns, size_bytes)
    return Tensor("", None, None, data)


def is_object(value: Any) -> bool:
    """Return whether a value is an object of JSON."""
    return type(value) is dict or type(value) is simdjson.Object


def repeated_key(keys: Sequence[str]) -> str:
    """Return the first key that occurs a second time."""
    seen: set[str] = set()
    return next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # `add` returns None


def show(value: Any) -> str:
    """Return a value as an error may show it."""
    if value is None:
        return "null or missing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) in (list, simdjson.Array):
        return f"a list of {len(value)} items"
    if is_object(value):
        return "an object"
    if isinstance(value, str):
        value = value[: _SHOWN + 1]
    text = f"{value!r}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
