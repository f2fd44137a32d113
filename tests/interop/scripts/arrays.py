"""Arrays as JSON has them, bit by bit: dtype, shape and bytes. Nothing but numpy is needed."""

import hashlib
from typing import Any

import numpy.typing as npt

_SHOWN_BYTES = 2000


def printed(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return *array* as JSON has it; of long ones, and of many strings, the digest."""
    if array.dtype.kind in "SUO":
        items = [bytes(_utf8(each)) for each in array.reshape(-1)]
        data = b"".join(len(item).to_bytes(4, "little") + item for item in items)
        return {"dtype": "bytes", "shape": list(array.shape), "data": _hex_or_digest(data)}
    name = array.dtype.name
    return {"dtype": name, "shape": list(array.shape), "data": _hex_or_digest(array.tobytes())}


def _utf8(item: Any) -> bytes:
    return item.encode() if isinstance(item, str) else bytes(item)


def _hex_or_digest(data: bytes) -> str:
    return data.hex() if len(data) <= _SHOWN_BYTES else hashlib.sha256(data).hexdigest()
