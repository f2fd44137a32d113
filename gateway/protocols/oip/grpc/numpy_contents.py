"""Rewrites gRPC requests that servers read which convert elements with numpy (MLServer, KServe).

A shape may have one -1, and the elements of an input may be in the contents field of another
datatype.  `decode.py` refuses both; only then is a message rewritten, by the protobuf library.

Source: docs/protocols/open-inference.md, "5. Tensors over gRPC" and "17. Dialects of upstream
servers".
"""

import math
from typing import Final

import numpy as np

from gateway.ir.errors import InvalidTensor, TooLarge
from gateway.ir.tensors.data import split_items
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.work import OBJECT_BYTE, charge
from gateway.protocols.oip.datatypes import CONTENTS_FIELD, CONTENTS_NAMES, parse_datatype
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.protobuf.library import parse

VARIABLE: Final = -1

# Each element becomes a Python object.
_MOST_BYTES: Final = 8 << 20
_FIELDS: Final = {name: number for number, name in CONTENTS_NAMES.items()}
_BYTES: Final = 8


def rewritten(view: memoryview, *, any_field: bool) -> memoryview:
    """Return a request with complete shapes, and with elements in the field of their datatype.

    Args:
        view: A ModelInferRequest.
        any_field: The elements of an input may be in the field of another datatype.

    Raises:
        MalformedMessage: The bytes are not such a message.
        InvalidTensor: A shape cannot be completed, or an element cannot be converted.
        TooLarge: The message is too long to be rewritten.
    """
    if len(view) > _MOST_BYTES:
        raise TooLarge(f"a request of {len(view)} bytes cannot be rewritten", limit="message_bytes")
    charge(len(view) * OBJECT_BYTE)
    message = parse(view, pb.ModelInferRequest)
    raws = message.raw_input_contents
    for index, one in enumerate(message.inputs):
        datatype = parse_datatype(one.name, one.datatype)
        raw = memoryview(raws[index]) if index < len(raws) else None
        if any_field and raw is None:
            _move_elements(one, datatype)
        if list(one.shape).count(VARIABLE) == 1:
            count = _count(one, datatype, raw)
            rest = math.prod(dim for dim in one.shape if dim != VARIABLE)
            if rest <= 0 or count % rest:
                raise InvalidTensor(
                    f"tensor {one.name!r} has {count} elements: they do not fill shape "
                    f"{list(one.shape)}"
                )
            one.shape[:] = [count // rest if dim == VARIABLE else dim for dim in one.shape]
    return memoryview(message.SerializeToString())


def _move_elements(one: pb.ModelInferRequest.InferInputTensor, datatype: Datatype) -> None:
    """Move elements to the field of their datatype; numpy converts them."""
    found = [field.name for field, _ in one.contents.ListFields()]
    needed = CONTENTS_NAMES.get(CONTENTS_FIELD.get(datatype, 0))
    if len(found) != 1 or needed is None or needed in found or datatype is Datatype.BYTES:
        return
    if _FIELDS[found[0]] == _BYTES:
        return
    values = list(getattr(one.contents, found[0]))
    try:
        with np.errstate(all="ignore"):
            array = np.array(values, datatype.numpy_dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidTensor(
            f"tensor {one.name!r} has elements that are no {datatype.name}: {error}"
        ) from error
    one.contents.ClearField(found[0])
    getattr(one.contents, needed).extend(array.tolist())


def _count(
    one: pb.ModelInferRequest.InferInputTensor, datatype: Datatype, raw: memoryview | None
) -> int:
    """Return the number of elements of an input."""
    if raw is None:
        return sum(len(values) for _, values in one.contents.ListFields())
    if datatype is Datatype.BYTES:
        return len(split_items(one.name, raw))
    return len(raw) // datatype.size_bytes
