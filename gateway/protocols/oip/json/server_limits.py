"""What servers of one process can bear of the inputs of a request over HTTP.

MLServer and KServe answer nobody else while they read a request. The limits are those of the
upstream's `messages`.
"""

import math
from collections.abc import Sequence
from typing import Final

from gateway.ir.errors import TooLarge
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.data import JsonItemsData, RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor, as_items, as_raw
from gateway.protocols.oip.dialects import Dialect
from gateway.protocols.oip.json.write import JsonTarget

_SAMPLE: Final = 4096
# numpy has four bytes for each character of a text.
_CHARACTER_BYTES: Final = 4


def check_inputs(
    inputs: Sequence[Tensor], dialect: Dialect, numbers: int, limits: MessageLimits
) -> None:
    """Refuse more elements than a server of one process can read in time.

    Args:
        inputs: The inputs that the request has.
        dialect: The dialect of the server.
        numbers: Its default of `json_numbers`.
        limits: The limits that the upstream has.

    Raises:
        TooLarge: All inputs together have more than `json_strings` or `json_numbers` elements, or
            take more than `bytes_rectangle` in a server that makes numpy arrays of text.
    """
    texts = others = rectangle = 0
    for tensor in inputs:
        count = math.prod(tensor.shape or ())
        if tensor.datatype is not Datatype.BYTES:
            others += count
            continue
        texts += count
        if not dialect.has_binary and texts <= limits.json_strings:
            data = tensor.data
            items = data.values if type(data) is JsonItemsData else as_items(tensor)
            rectangle += len(items) * max(map(len, items), default=0) * _CHARACTER_BYTES
    _check_count("BYTES", texts, limits.json_strings, "json_strings", dialect)
    most = numbers if limits.json_numbers is None else limits.json_numbers
    _check_count("numeric", others, most, "json_numbers", dialect)
    if rectangle > limits.bytes_rectangle:
        raise TooLarge(
            f"the BYTES inputs would take {rectangle} bytes in {dialect.name}, which makes each "
            f"element as wide as the longest; at most {limits.bytes_rectangle} are allowed over "
            "HTTP: use its gRPC port",
            limit="bytes_rectangle",
        )


def _check_count(kind: str, count: int, most: int, limit: str, dialect: Dialect) -> None:
    if count > most:
        raise TooLarge(
            f"the inputs have {count} {kind} elements, {dialect.name} gets at most {most} over "
            "HTTP: use its gRPC port",
            limit=limit,
        )


def check_numbers(tensor: Tensor, shape: Shape, limits: MessageLimits, target: JsonTarget) -> None:
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
    expected = len(target.elements(sample)) * count // _SAMPLE
    if expected > 2 * limits.json_bytes:
        raise too_long(tensor.name, expected, limits, target.hint)


def too_long(name: str, size: int, limits: MessageLimits, hint: str) -> TooLarge:
    """Return the error for an input whose text has *size* bytes."""
    return TooLarge(
        f"input {name!r} has some {size} bytes as JSON, at most {limits.json_bytes} are allowed: "
        f"{hint}",
        limit="json_bytes",
    )
