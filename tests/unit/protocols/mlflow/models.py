"""The models of the recordings, in the gateway's own process, and a frontend before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gateway.api.backend import Arrays
from gateway.backends.python import PythonBackend
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import Call, ModelConfigRequest, ServerLiveRequest, ServerReadyRequest
from gateway.ir.errors import ModelNotNamed
from gateway.ir.metadata import ModelConfiguration, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.policies.complete.policy import Complete
from gateway.protocols.mlflow.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest, HttpResponse

D = Datatype


def digits(inputs: Arrays) -> Arrays:
    return {"output": inputs["input"].sum(axis=1)}


def add_sub(inputs: Arrays) -> Arrays:
    a, b = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": a + b, "OUTPUT1": a - b}


def frame(inputs: Arrays) -> Arrays:
    return {"total": inputs["a"] + inputs["b"], "text": inputs["s"]}


def nan(_inputs: Arrays) -> Arrays:
    return {"y": np.array([np.nan, np.inf, -0.0, 1e300, 0.1])}


def count(inputs: Arrays) -> Iterator[Arrays]:
    for number in range(int(inputs["n"][0])):
        if number == 3:
            raise RuntimeError("broken")
        yield {"y": np.array([number], np.int64)}


def tensors(*declared: tuple[str, Datatype, tuple[int, ...]]) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(*each) for each in declared)


AB = ("INPUT0", D.INT32, (-1, 16)), ("INPUT1", D.INT32, (-1, 16))
MODELS: dict[str, tuple[Any, tuple[TensorMetadata, ...], tuple[TensorMetadata, ...]]] = {
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


class OneModel:
    """A service of one model, which is the default."""

    def __init__(self, name: str) -> None:
        self._name = name
        function, inputs, outputs = MODELS[name or "digits"]
        self._backend = PythonBackend(name or "digits", function, inputs=inputs, outputs=outputs)
        self._complete = Complete(self._backend, frozenset())

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, ServerLiveRequest | ServerReadyRequest):
            return True
        if call.model is None and not self._name:
            raise ModelNotNamed("no model; set default_model")
        if isinstance(call, ModelConfigRequest):
            is_decoupled = self._name == "count"
            return ModelConfiguration({"model_transaction_policy": {"decoupled": is_decoupled}})
        if not self._backend.is_loaded:
            await self._backend.start()
        return await self._complete(call)

    async def close(self) -> None:
        await self._backend.stop()


async def answers(
    model: str, wire: HttpRequest, options: Mapping[str, Any] | None = None
) -> list[HttpResponse]:
    """Return the responses of a frontend whose default model is *model*, "" for none."""
    default = {"default_model": model} if model else {}
    service = OneModel(model)
    frontend = Frontend(HttpCodec(options={**default, **(options or {})}), service)
    try:
        return [response async for response in frontend(wire)]
    finally:
        await service.close()


def post(body: bytes | str, *headers: tuple[str, str], path: str = "/invocations") -> HttpRequest:
    """Return a request with a body."""
    data = body.encode() if isinstance(body, str) else body
    return HttpRequest("POST", path, "", Headers(headers), (memoryview(data),))
