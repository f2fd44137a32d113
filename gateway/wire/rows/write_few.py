"""Writes few rows of integers at once, as most replies are; `write.py` writes all others."""

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import orjson

from gateway.accelerator import accelerated
from gateway.ir.tensors.data import raw_of
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor
from gateway.ir.values.number_lists import CODES

_CACHE_ENTRIES: Final = 512
_FEW_BYTES: Final = 512
_MATRIX_RANK: Final = 2
_CODES: Final = {datatype: code for datatype, code in CODES.items() if datatype.is_integer}

RowPart = tuple[bytes, str, int, int, "np.dtype[Any]"]
"""The key of an output, the code of its elements, its rows, elements of a row, and their dtype."""

FewWriter = Callable[[Sequence[Tensor], bool], bytes | None]


@lru_cache(_CACHE_ENTRIES)
def row_part(name: str, datatype: Datatype | None, shape: Shape | None) -> RowPart | None:
    """Return what rows of a few integers are written with; None for other outputs."""
    code = None if datatype is None else _CODES.get(datatype)
    if code is None or datatype is None or shape is None or len(shape) != _MATRIX_RANK:
        return None
    if not 0 < math.prod(shape) * datatype.size_bytes <= _FEW_BYTES:
        return None
    rows, width = shape
    return orjson.dumps(name) + b":", code, rows, width, datatype.numpy_dtype


@accelerated
def row_writer(
    part_of: Callable[[str, Datatype | None, Shape | None], RowPart | None],
) -> FewWriter:
    """Return a function that writes outputs of the same number of rows as JSON.

    It takes the outputs, and whether several are written as an object of columns, not as an object
    for each row. It returns None for outputs that are not few integers in rows.

    Args:
        part_of: Returns what an output is written with.
    """

    def write(tensors: Sequence[Tensor], is_columns: bool, /) -> bytes | None:
        opened: list[bytes] = []
        columns: list[list[bytes]] = []
        for tensor in tensors:
            part = None
            if not tensor.parameters:
                part = part_of(tensor.name, tensor.datatype, tensor.shape)
            if part is None:
                return None
            key, code, rows, width, dtype = part
            raw = raw_of(tensor.data, dtype)
            size = rows * width * dtype.itemsize
            if raw is None or len(raw) != size or (columns and len(columns[0]) != rows):
                return None
            values = struct.iter_unpack(f"<{width}{code}", raw)
            opened.append(key)
            columns.append([orjson.dumps(row) for row in values])
        if not columns:
            return None
        if len(columns) == 1:
            return b"[%b]" % b",".join(columns[0])
        if is_columns:
            members = [
                b"%b[%b]" % (key, b",".join(column))
                for key, column in zip(opened, columns, strict=True)
            ]
            return b"{%b}" % b",".join(members)
        rows_text = [
            b"{%b}" % b",".join(map(b"%b%b".__mod__, zip(opened, row, strict=True)))
            for row in zip(*columns, strict=True)
        ]
        return b"[%b]" % b",".join(rows_text)

    return write


few_rows: Final = row_writer(row_part)
