"""What servers of one process can bear of an input that is written as JSON for them.

MLServer and KServe answer nobody else while they read a request. The limits are those of the
upstream's `messages`.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.ir.data import RawData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import TooLarge
from gateway.ir.limits import MessageLimits
from gateway.ir.tensor import Shape, Tensor, as_items, as_raw
from gateway.protocols.oip.json.write import elements_text

_SAMPLE: Final = 4096
# numpy has four bytes for each character of a text.
_CHARACTER_BYTES: Final = 4


def check_text_input(tensor: Tensor, shape: Shape, limits: MessageLimits, server: str) -> None:
    """Refuse more BYTES elements than a server can read in time.

    Raises:
        TooLarge: There are more than `json_strings`.
    """
    count = math.prod(shape)
    if count > limits.json_strings:
        raise TooLarge(
            f"input {tensor.name!r} has {count} BYTES elements, {server} gets at most "
            f"{limits.json_strings} over HTTP: use its gRPC port",
            limit="json_strings",
        )


def check_rectangle(tensor: Tensor, limits: MessageLimits, server: str) -> None:
    """Refuse BYTES of which one is so long that an array of all as wide as it is too large.

    Raises:
        TooLarge: The array is larger than `bytes_rectangle`.
    """
    items = as_items(tensor)
    size = len(items) * max(map(len, items), default=0) * _CHARACTER_BYTES
    if size > limits.bytes_rectangle:
        raise TooLarge(
            f"input {tensor.name!r} would take {size} bytes in {server}, which makes each of "
            f"{len(items)} elements as wide as the longest; at most {limits.bytes_rectangle} are "
            "allowed over HTTP: use its gRPC port",
            limit="bytes_rectangle",
        )


def check_numbers(
    tensor: Tensor, shape: Shape, limits: MessageLimits, hint: str, *, half: bool
) -> None:
    """Refuse numbers whose text is surely longer than allowed, before it is written.

    The length is estimated from the text of the first elements.

    Raises:
        TooLarge: The text would have more than `json_bytes`.
        Unsupported: As `elements_text`.
    """
    count = math.prod(shape)
    datatype = tensor.datatype
    if datatype is None or datatype is Datatype.BYTES or count <= _SAMPLE:
        return
    view = as_raw(tensor)[: _SAMPLE * datatype.size_bytes]
    sample = Tensor(tensor.name, datatype, (_SAMPLE,), RawData(view))
    expected = len(elements_text("input", sample, hint, half=half)) * count // _SAMPLE
    if expected > 2 * limits.json_bytes:
        raise too_long(tensor.name, expected, limits, hint)


def too_long(name: str, size: int, limits: MessageLimits, hint: str) -> TooLarge:
    """Return the error for an input whose text has *size* bytes."""
    return TooLarge(
        f"input {name!r} has some {size} bytes as JSON, at most {limits.json_bytes} are allowed: "
        f"{hint}",
        limit="json_bytes",
    )
