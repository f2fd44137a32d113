"""Recorded JSON values whose datatypes only the model knows, and what stays of them."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import convert, to_builtins

from gateway.ir.tensors.data import JsonLayout, UntypedData, UntypedRules
from gateway.ir.values.untyped import parsed
from gateway.ir.work import JSON_BYTE, charge
from gateway.shadow.records.privacy import Payload, least_payload


def untyped_text(data: UntypedData) -> bytes:
    """Return a value, its place and its rules as JSON; NaN and infinities are words."""
    charge(data.size_bytes * JSON_BYTE)
    value = parsed(data).value
    document = {
        "layout": data.layout.value,
        "place": data.place,
        "rules": to_builtins(data.rules),
        "member": data.member,
        "columns": data.columns,
        "shape": data.shape,
    }
    if data.raw is not None:
        document["raw"] = b64encode(data.raw).decode()
    if not isinstance(value, memoryview):  # then `raw` is all of it
        document["value"] = value.tolist() if isinstance(value, np.ndarray) else value
    return json.dumps(document).encode()


def untyped_data(text: bytes, size_bytes: int) -> UntypedData:
    """Return the value of a recorded text.

    Raises:
        ValueError: It has another form.
        KeyError: A member is missing.
        TypeError: A member is of another type.
    """
    found = json.loads(text)
    columns, shape = found["columns"], found.get("shape")
    raw = memoryview(b64decode(found["raw"], validate=True)) if "raw" in found else None
    return UntypedData(
        found["value"] if raw is None or "value" in found else raw,
        JsonLayout(found["layout"]),
        convert(found["place"], str),
        convert(found["rules"], UntypedRules),
        convert(found["member"], str),
        None if columns is None else convert(columns, tuple[str, ...]),
        size_bytes,
        shape=None if shape is None else convert(shape, tuple[int, ...]),
        raw=raw,
    )


def untyped_payload(
    name: str, of_tensor: Callable[[str], Payload], tensors: Mapping[str, Any]
) -> Payload:
    """Return what is written of a value, which may be any input where it has no name.

    Args:
        name: Of the tensor; "" where only the model knows it.
        of_tensor: Returns what is written of a tensor.
        tensors: Those that are named in the rules.
    """
    return of_tensor(name) if name else least_payload(map(of_tensor, ("", *tensors)))
