"""The models of the recordings, in the gateway's own process, and a frontend before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gateway.api.backend import Arrays
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.mlflow.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.unit.protocols.served import Models, Signature, add_sub, digits, tensors

D = Datatype


def frame(inputs: Arrays) -> Arrays:
    return {"total": inputs["a"] + inputs["b"], "text": inputs["s"]}


def nan(_inputs: Arrays) -> Arrays:
    return {"y": np.array([np.nan, np.inf, -0.0, 1e300, 0.1])}


def count(inputs: Arrays) -> Iterator[Arrays]:
    for number in range(int(inputs["n"][0])):
        if number == 3:
            raise RuntimeError("broken")
        yield {"y": np.array([number], np.int64)}


AB = ("INPUT0", D.INT32, (-1, 16)), ("INPUT1", D.INT32, (-1, 16))
MODELS: dict[str, Signature] = {
    "digits": (digits, tensors(("input", D.FP32, (-1, 64))), tensors(("output", D.FP32, (-1,)))),
    "add_sub": (
        add_sub,
        tensors(*AB),
        tensors(("OUTPUT0", D.INT32, (-1, 16)), ("OUTPUT1", D.INT32, (-1, 16))),
    ),
    "frame": (
        frame,
        tensors(("a", D.FP64, (-1,)), ("b", D.INT64, (-1,)), ("s", D.BYTES, (-1,))),
        tensors(("total", D.FP64, (-1,)), ("text", D.BYTES, (-1,))),
    ),
    "nan": (nan, tensors(("x", D.INT64, (-1,))), tensors(("y", D.FP64, (-1,)))),
    "count": (count, tensors(("n", D.INT64, (-1,))), tensors(("y", D.INT64, (-1,)))),
}


async def answers(
    model: str, wire: HttpRequest, options: Mapping[str, Any] | None = None
) -> list[HttpResponse]:
    """Return the responses of a frontend whose default model is *model*, "" for none."""
    default = {"default_model": model} if model else {}
    codec = HttpCodec(options={**default, **(options or {})})
    return await Models(MODELS, model, decoupled="count").responses(codec, wire)


def post(body: bytes | str, *headers: tuple[str, str], path: str = "/invocations") -> HttpRequest:
    """Return a request with a body."""
    data = body.encode() if isinstance(body, str) else body
    return HttpRequest("POST", path, "", Headers(headers), (memoryview(data),))
