"""The models of the server, by their names; it runs in the server's own Python, without torch."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np


def _body(row: dict[str, Any]) -> Any:
    body = row.get("body", row.get("data"))
    return json.loads(body) if isinstance(body, (bytes, bytearray)) else body


def _add_sub(row: dict[str, Any]) -> Any:
    body = _body(row)
    a, b = (np.array(body[name], np.int64) for name in ("INPUT0", "INPUT1"))
    return {"OUTPUT0": (a + b).tolist(), "OUTPUT1": (a - b).tolist()}


def _raw(row: dict[str, Any]) -> bytes:
    return bytes(row["data"] if "data" in row else row["body"])


def _fail(_row: dict[str, Any]) -> Any:
    raise ValueError("raised on purpose")


_MODELS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "digits": lambda row: float(np.sum(_body(row))),
    "add_sub": _add_sub,
    "raw": _raw,
    "columns": lambda row: float(json.loads(row["x"])[0]) + len(row["t"]),
    "fail": _fail,
}


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[Any] | None:
    """Return one answer for each request of a batch."""
    if data is None:
        return None
    model = _MODELS[context.manifest["model"]["modelName"]]
    return [model(row) for row in data]
