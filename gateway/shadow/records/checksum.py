"""The checksum of a recorded call: CRC-32 of the values of all its rows.

`schema.py` stores it, and every reader computes it again, so the text of a value must never change.
Parts that calls repeat are kept.
"""

import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

Values = tuple[Any, ...]

_OK: Final = "ok"
_MAX_KNOWN_TEXT: Final = 1024
# Shorter parts are joined for one checksum, longer ones are not copied.
_JOINED_BYTES: Final = 65_536


def checksum(
    call: Values, tensors: Iterable[Values], items: Iterable[Values], wire: Iterable[Values]
) -> int:
    """Return the checksum of a call.

    Args:
        call: The values of a `CallRow`.
        tensors: The values of each `TensorRow`; the last two are bytes or None.
        items: The values of each `ItemRow`.
        wire: The values of each `WireRow`; the last one is bytes.
    """
    parts = _call_parts(call)
    size = found = 0
    for values in tensors:
        parts.append(_tensor_part(values))
        for value in values[-2:]:
            if value is None:
                parts.append(_NONE)
                continue
            parts += (b"b%d;" % len(value), value)
            size += len(value)
            if size > _JOINED_BYTES:
                size, found = 0, _continued(parts, found)
    parts += map(_joined_part, items)
    for *head, body in wire:
        parts += (_joined_part(tuple(head)), b"b%d;" % len(body), body)
        found = _continued(parts, found)
    return zlib.crc32(b"".join(parts), found)


def _continued(parts: list[bytes], found: int) -> int:
    """Return *found* continued over *parts*, which become empty."""
    short: list[bytes] = []
    for part in parts:
        if len(part) <= _JOINED_BYTES:
            short.append(part)
            continue
        found = zlib.crc32(part, zlib.crc32(b"".join(short), found))
        short.clear()
    parts.clear()
    return zlib.crc32(b"".join(short), found)


def _call_parts(values: Values) -> list[bytes]:
    """Return what a checksum covers of a call.

    Start, time and request id differ in each call, and the last values in most calls are the same.
    """
    same, last = values[3:12], values[12:]
    known = _known_part if len("".join(same)) <= _MAX_KNOWN_TEXT else _joined_part
    parts = [*map(_value_part, values[:3]), known(same)]
    if last == _USUAL_LAST:
        parts.append(_USUAL_LAST_PART)
    else:
        parts += map(_value_part, last)
    return parts


def _tensor_part(row: Values) -> bytes:
    """Return what a checksum covers of a tensor without its elements."""
    values = row[:-2]
    _, _, _, name, datatype, shape, form, *_ = values
    size = len(name) + len(datatype or "") + len(shape or "") + len(form)
    return _known_part(values) if size <= _MAX_KNOWN_TEXT else _joined_part(values)


def _joined_part(values: Values) -> bytes:
    return b"".join(map(_value_part, values))


def _value_part(value: Any) -> bytes:
    if value is None:
        return _NONE
    text = repr(value).encode("utf-8", "surrogatepass")
    return b"v%d;%b" % (len(text), text)


_NONE: Final = b"v4;None"
_known_part: Final = lru_cache(4096)(_joined_part)
# No sequence, parameters or details, and no error.
_USUAL_LAST: Final = (None, None, "{}", _OK, "")
_USUAL_LAST_PART: Final = _joined_part(_USUAL_LAST)
