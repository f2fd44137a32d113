"""The models of the recordings, in the gateway's own process, and frontends before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gateway.api.backend import Arrays
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.torchserve.declarations import read_declaration
from gateway.protocols.torchserve.grpc.codec import GrpcCodec
from gateway.protocols.torchserve.http.codec import HttpCodec
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.unit.protocols.served import Models, Signature, add_sub, digits, tensors

D = Datatype
JSON = ("Content-Type", "application/json")
TEXT = ("Content-Type", "text/plain")
OCTETS = ("Content-Type", "application/octet-stream")


def echo(inputs: Arrays) -> Arrays:
    return {"y": next(iter(inputs.values()))}


def stream(inputs: Arrays) -> Iterator[Arrays]:
    for number in range(int(inputs["n"][0])):
        if number == 3:
            raise RuntimeError("broken")
        yield {"y": np.array([number], np.int64)}


MODELS: dict[str, Signature] = {
    "digits": (digits, tensors(("input", D.FP32, (-1, -1))), tensors(("output", D.FP32, (-1,)))),
    "add_sub": (
        add_sub,
        tensors(("INPUT0", D.INT32, (-1, -1)), ("INPUT1", D.INT32, (-1, -1))),
        tensors(("OUTPUT0", D.INT32, (-1, -1)), ("OUTPUT1", D.INT32, (-1, -1))),
    ),
    "raw": (echo, tensors(("x", D.BYTES, (-1, 1))), tensors(("y", D.BYTES, (-1, 1)))),
    "text": (echo, tensors(("x", D.BYTES, (1,))), tensors(("y", D.BYTES, (1,)))),
    "fixed": (echo, tensors(("x", D.INT16, (1, 2))), tensors(("y", D.INT16, (1, 2)))),
    "stream": (stream, tensors(("n", D.INT64, (1,))), tensors(("y", D.INT64, (1,)))),
    "halves": (echo, tensors(("x", D.FP16, (3,))), tensors(("y", D.FP16, (3,)))),
}


VERSIONS = {"digits": ("1", "2")}


async def answers(
    wire: HttpRequest,
    forms: Mapping[str, Mapping[str, Any]] | None = None,
    default: str = "",
    options: Mapping[str, Any] | None = None,
    *,
    is_ready: bool = True,
) -> list[HttpResponse]:
    """Return the responses of a frontend; *forms* are what is declared of models."""
    service = served(default)
    service.is_ready = is_ready
    return await service.responses(with_forms(HttpCodec(options=options), forms), wire)


async def grpc_answers(
    wire: GrpcRequest, forms: Mapping[str, Mapping[str, Any]] | None = None
) -> list[GrpcResponse]:
    """Return the responses of a frontend for gRPC."""
    return await served().responses(with_forms(GrpcCodec(), forms), wire)


def served(default: str = "") -> Models:
    return Models(MODELS, default, decoupled="stream", versions=VERSIONS)


def with_forms(codec: Any, forms: Mapping[str, Mapping[str, Any]] | None) -> Any:
    codec.declare({name: read_declaration(form, str) for name, form in (forms or {}).items()})
    return codec


def post(
    model: str, body: bytes | str, *headers: tuple[str, str], path: str = "", query: str = ""
) -> HttpRequest:
    """Return a request with a body."""
    data = body.encode() if isinstance(body, str) else body
    where = path or f"/predictions/{model}"
    return HttpRequest("POST", where, query, Headers(headers), (memoryview(data),))
