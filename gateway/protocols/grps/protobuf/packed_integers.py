"""Packed integers, short ways for the usual: few of them, bytes, and values below 128.

grps has no raw tensors, so every integer is a varint.  What these do not follow takes the general
way (`gateway.wire.protobuf_packed`).

Source: docs/protocols/grps.md, "4. Messages"; Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.datatypes import Datatype
from gateway.wire.protobuf import varint
from gateway.wire.protobuf_packed import packed_varints

_MORE: Final = 0x80
_FEW: Final = 64


def unpacked(values: Sequence[Any], datatype: Datatype) -> npt.NDArray[Any] | None:
    """Read a repeated integer field where that is short; None where it is not.

    Args:
        values: Its occurrences, packed (views) and not (ints).
        datatype: An integer datatype, whose range the values are known to be in then.
    """
    if len(values) != 1 or isinstance(values[0], int):
        return None
    data = bytes(values[0])
    raw = np.frombuffer(data, np.uint8)
    if data.isascii():  # each varint is one byte long
        return raw.astype(datatype.numpy_dtype)
    return _bytes(raw) if datatype is Datatype.UINT8 else None


def packed(flat: npt.NDArray[Any]) -> memoryview:
    """Encode an integer array of one dimension as packed varints."""
    if flat.size <= _FEW:
        few = flat.tolist()
        if few and min(few) >= 0 and max(few) < _MORE:
            return memoryview(bytes(few))
        return memoryview(b"".join(map(varint, few)))
    if flat.dtype != np.uint8:
        return packed_varints(flat)
    high = flat >= _MORE
    # A high byte is its own first byte, the flag for more included, and 1 follows.
    places = np.arange(flat.size)
    places += np.cumsum(high)
    places -= high
    out = np.ones(flat.size + int(np.count_nonzero(high)), np.uint8)
    out[places] = flat
    return out.data


def _bytes(raw: npt.NDArray[np.uint8]) -> npt.NDArray[Any] | None:
    """Read varints of values up to 255 in their shortest form; None when there are others."""
    more = raw >= _MORE
    second = np.zeros_like(more)
    second[1:] = more[:-1]
    if more[-1] or (more & second).any() or (raw[second] != 1).any():
        return None
    return raw[~second]
