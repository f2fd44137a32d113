"""The models of the recordings, in the gateway's own process, and frontends before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.api.backend import Arrays
from gateway.backends.python import PythonBackend
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import Call, ServerLiveRequest, ServerReadyRequest
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.policies.complete.policy import Complete
from gateway.policies.complete.tensors import ALL_NEEDS
from gateway.protocols.seldon.declarations import read_declaration
from gateway.protocols.seldon.grpc.codec import GrpcCodec
from gateway.protocols.seldon.http.codec import HttpCodec
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse

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
Tensors = tuple[TensorMetadata, ...]


def signature(name: str) -> tuple[Any, Tensors, Tensors]:
    """Return function, inputs and outputs of a model."""
    if name == "both":
        inputs = TensorMetadata("a", D.FP32, (-1, 2)), TensorMetadata("b", D.FP32, (-1,))
        outputs = TensorMetadata("sum", D.FP32, (-1,)), TensorMetadata("b", D.FP32, (-1,))
        return both, inputs, outputs
    function, datatype, shape = FUNCTIONS[name]
    return (
        function,
        (TensorMetadata("x", datatype, shape),),
        (TensorMetadata("y", datatype, shape),),
    )


class OneModel:
    """A service of one model, which is the default."""

    def __init__(self, name: str, declared: Any = None) -> None:
        self._declared = declared
        function, inputs, outputs = signature(name)
        self._backend = PythonBackend(name, function, inputs=inputs, outputs=outputs)
        self._complete = Complete(self._metadata, ALL_NEEDS)

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, ServerLiveRequest | ServerReadyRequest):
            return True
        if not self._backend.is_loaded:
            await self._backend.start()
        return await self._complete(call)

    async def _metadata(self, call: Call[Any], /) -> Any:
        reply = await self._backend(call)
        if self._declared is not None and hasattr(reply, "declarations"):
            return reply.changed(declarations={"seldon": self._declared})
        return reply

    async def close(self) -> None:
        await self._backend.stop()


async def answer(
    model: str,
    wire: HttpRequest | GrpcRequest,
    options: Mapping[str, Any] | None = None,
    declared: Mapping[str, Any] | None = None,
) -> Any:
    """Return the response of a frontend whose default model is *model*."""
    typed = None if declared is None else read_declaration(declared, str)
    service = OneModel(model, typed)
    kind: Any = HttpCodec if isinstance(wire, HttpRequest) else GrpcCodec
    codec = kind(options={"default_model": model, **(options or {})})
    if typed is not None:
        codec.declare({model: typed})
    try:
        (response,) = [each async for each in Frontend(codec, service)(wire)]
    finally:
        await service.close()
    assert isinstance(response, HttpResponse | GrpcResponse)
    return response


def post(body: bytes | str, *headers: tuple[str, str], path: str = "/predict") -> HttpRequest:
    """Return a request with a body."""
    data = body.encode() if isinstance(body, str) else body
    return HttpRequest("POST", path, "", Headers(headers), (memoryview(data),))
