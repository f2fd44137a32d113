"""The models of the recordings, in the gateway's own process, and frontends before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.api.backend import Arrays
from gateway.ir.tensors.datatypes import Datatype
from gateway.policies.complete.tensors import ALL_NEEDS
from gateway.protocols.seldon.declarations import read_declaration
from gateway.protocols.seldon.grpc.codec import GrpcCodec
from gateway.protocols.seldon.http.codec import HttpCodec
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest
from tests.unit.protocols.served import Models, Signature, tensors

D = Datatype


def twice(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"] * 2}


def same(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"]}


def upper(inputs: Arrays) -> Arrays:
    return {"y": np.array([each.upper() for each in inputs["x"].reshape(-1)], object)}


def backwards(inputs: Arrays) -> Arrays:
    return {"y": np.array([each[::-1] for each in inputs["x"].reshape(-1)], object)}


def wrapped(inputs: Arrays) -> Arrays:
    return {"y": np.array([b'{"got":%b}' % each for each in inputs["x"].reshape(-1)], object)}


def broken(inputs: Arrays) -> Arrays:
    raise ValueError("raised on purpose")


def both(inputs: Arrays) -> Arrays:
    return {"sum": inputs["a"].sum(axis=1) + inputs["b"], "b": inputs["b"]}


FUNCTIONS: dict[str, tuple[Any, Datatype, tuple[int, ...]]] = {
    "integers": (twice, D.INT64, (-1, -1)),
    "bytes8": (same, D.INT8, (-1, -1)),
    "doubles": (twice, D.FP64, (-1, -1)),
    "list": (twice, D.FP64, (-1,)),
    "floats": (same, D.FP32, (-1, -1)),
    "halves": (same, D.FP16, (-1, -1)),
    "unsigned": (same, D.UINT64, (-1,)),
    "flags": (same, D.BOOL, (-1, -1)),
    "texts": (same, D.BYTES, (-1, -1)),
    "upper": (upper, D.BYTES, (-1,)),
    "backwards": (backwards, D.BYTES, (-1,)),
    "wrapped": (wrapped, D.BYTES, (-1,)),
    "broken": (broken, D.BYTES, (-1,)),
}
MODELS: dict[str, Signature] = {
    name: (function, tensors(("x", datatype, shape)), tensors(("y", datatype, shape)))
    for name, (function, datatype, shape) in FUNCTIONS.items()
}
MODELS["both"] = (
    both,
    tensors(("a", D.FP32, (-1, 2)), ("b", D.FP32, (-1,))),
    tensors(("sum", D.FP32, (-1,)), ("b", D.FP32, (-1,))),
)


async def answer(
    model: str,
    wire: HttpRequest | GrpcRequest,
    options: Mapping[str, Any] | None = None,
    declared: Mapping[str, Any] | None = None,
) -> Any:
    """Return the response of a frontend whose default model is *model*."""
    typed = None if declared is None else read_declaration(declared, str)
    kind: Any = HttpCodec if isinstance(wire, HttpRequest) else GrpcCodec
    codec = kind(options={"default_model": model, **(options or {})})
    if typed is not None:
        codec.declare({model: typed})
    declarations = None if typed is None else {"seldon": typed}
    models = Models(MODELS, model, needs=ALL_NEEDS, declarations=declarations)
    (response,) = await models.responses(codec, wire)
    return response


def post(body: bytes | str, *headers: tuple[str, str], path: str = "/predict") -> HttpRequest:
    """Return a request with a body."""
    data = body.encode() if isinstance(body, str) else body
    return HttpRequest("POST", path, "", Headers(headers), (memoryview(data),))
