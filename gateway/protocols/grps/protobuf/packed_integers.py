"""Reads packed integers with fast paths for common ones: bytes, and values below 128.

grps has no raw tensors, so every integer is a varint.  `gateway.wire.protobuf_packed` reads all
other integers, and writes them.

Source: docs/protocols/grps.md, "4. Messages"; Protocol Buffers, "Encoding".
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.datatypes import Datatype

_MORE: Final = 0x80


def unpacked(values: Sequence[Any], datatype: Datatype) -> npt.NDArray[Any] | None:
    """Read a repeated integer field with a fast path; None where there is none.

    Args:
        values: Its occurrences, packed (views) and not (ints).
        datatype: An integer datatype; the values of a fast path are always in its range.
    """
    if len(values) != 1 or isinstance(values[0], int):
        return None
    data = bytes(values[0])
    raw = np.frombuffer(data, np.uint8)
    if data.isascii():  # each varint has one byte
        return raw.astype(datatype.numpy_dtype)
    return _bytes(raw) if datatype is Datatype.UINT8 else None


def _bytes(raw: npt.NDArray[np.uint8]) -> npt.NDArray[Any] | None:
    """Read varints of values up to 255 in their shortest form; None for any other."""
    more = raw >= _MORE
    second = np.zeros_like(more)
    second[1:] = more[:-1]
    if more[-1] or (more & second).any() or (raw[second] != 1).any():
        return None
    return raw[~second]
