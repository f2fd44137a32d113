"""A KServe ModelServer on the loopback, with models like those of `../triton`.

It runs in KServe's own environment: it imports nothing of this project.
"""

# mypy: disable-error-code="misc"
# KServe is not installed where mypy runs, so its base classes are untyped there.

import argparse
import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import uvicorn  # type: ignore[import-not-found]  # comes with KServe
from grpc import aio
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.errors import InferenceError, InvalidInput
from kserve.model_server import parser
from kserve.protocol.infer_type import to_http_parameters
from kserve.protocol.rest import server as rest

LOOPBACK = "127.0.0.1"

IDENTITIES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES",
)  # fmt: skip
"""Every datatype but BF16, which KServe does not know."""

Array = np.ndarray[Any, np.dtype[Any]]
Ports = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Inputs or outputs: name, datatype and shape."""

_VECTOR = (-1,)
_PAIR = ("INT32", (-1, 16))


class Base(Model):
    """What the models share: they are ready at once, and describe their inputs and outputs."""

    inputs: Ports = (("INPUT0", "INT32", _VECTOR),)
    outputs: Ports = (("OUTPUT0", "INT32", _VECTOR),)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ready = True

    def load(self) -> bool:
        """Be ready."""
        self.ready = True
        return True

    async def get_input_types(self) -> list[dict[str, object]]:
        """Describe the inputs, for the model's metadata."""
        return [_described(*port) for port in self.inputs]

    async def get_output_types(self) -> list[dict[str, object]]:
        """Describe the outputs, for the model's metadata."""
        return [_described(*port) for port in self.outputs]

    def answer(self, request: InferRequest, *arrays: Array) -> InferResponse:
        """Return *arrays* as this model's outputs, in their order."""
        described = zip(self.outputs, arrays, strict=True)
        outputs = [_output(name, datatype, array) for (name, datatype, _), array in described]
        return InferResponse(
            response_id=request.id or str(uuid.uuid4()),
            model_name=self.name,
            infer_outputs=outputs,
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )


class AddSub(Base):
    """Answers the sum and the difference of two inputs."""

    inputs = (("INPUT0", *_PAIR), ("INPUT1", *_PAIR))
    outputs = (("OUTPUT0", *_PAIR), ("OUTPUT1", *_PAIR))

    async def predict(self, request: InferRequest, *_: object, **__: object) -> InferResponse:
        """Answer one request."""
        left, right = _array(request, "INPUT0"), _array(request, "INPUT1")
        return self.answer(request, left + right, left - right)


class Identity(Base):
    """Answers its one input unchanged."""

    def __init__(self, datatype: str) -> None:
        super().__init__(f"identity_{datatype.lower()}")
        self.inputs = (("INPUT0", datatype, _VECTOR),)
        self.outputs = (("OUTPUT0", datatype, _VECTOR),)

    async def predict(self, request: InferRequest, *_: object, **__: object) -> InferResponse:
        """Answer one request."""
        return self.answer(request, _array(request, "INPUT0"))


class ParamsEcho(Base):
    """Answers the request's parameters as sorted JSON."""

    outputs = (("PARAMS", "BYTES", (1,)),)

    async def predict(self, request: InferRequest, *_: object, **__: object) -> InferResponse:
        """Answer one request."""
        parameters = request.parameters or {}
        if not isinstance(parameters, dict):
            parameters = to_http_parameters(parameters)
        return self.answer(request, _objects([json.dumps(parameters, sort_keys=True).encode()]))


class Fail(Base):
    """Fails: KServe's own errors for 0 and 1, an ordinary exception otherwise."""

    async def predict(self, request: InferRequest, *_: object, **__: object) -> InferResponse:
        """Answer one request."""
        number = int(_array(request, "INPUT0").ravel()[0])
        if number == 0:
            raise InferenceError("failed on purpose")
        if number == 1:
            raise InvalidInput("failed on purpose")
        raise ValueError("model raised on purpose")


class Slow(Base):
    """Sleeps MS milliseconds, then answers MS."""

    inputs = (("MS", "INT32", (1,)),)
    outputs = (("MS_OUT", "INT32", (1,)),)

    async def predict(self, request: InferRequest, *_: object, **__: object) -> InferResponse:
        """Answer one request."""
        duration = _array(request, "MS")
        await asyncio.sleep(int(duration.ravel()[0]) / 1000)
        return self.answer(request, duration)


class SumAndEmpty(Base):
    """Answers the sum of X, and an output of no elements."""

    inputs = (("X", "FP32", _VECTOR),)
    outputs = (("SUM", "FP64", (1,)), ("EMPTY", "FP32", _VECTOR))

    async def predict(self, request: InferRequest, *_: object, **__: object) -> InferResponse:
        """Answer one request."""
        total = np.array([_array(request, "X").sum()], np.float64)
        return self.answer(request, total, np.zeros((0,), np.float32))


class Rows(Base):
    """Answers the rows of a V1 request, which KServe writes one by one."""

    async def predict(self, request: dict[str, object], *_: object, **__: object) -> object:
        """Answer one request."""
        return {"predictions": request["instances"]}


def main() -> None:
    """Serve on the loopback until a signal."""
    _bind_loopback_only()
    argparse.ArgumentParser(parents=[parser], conflict_handler="resolve").parse_known_args()
    ModelServer(workers=1).start(list(_models()))


def _models() -> Iterator[Base]:
    yield AddSub("add_sub")
    for datatype in IDENTITIES:
        yield Identity(datatype)
    yield ParamsEcho("params_echo")
    yield Fail("fail_always")
    yield Slow("slow")
    yield SumAndEmpty("sum_and_empty")
    yield Rows("rows")


def _bind_loopback_only() -> None:
    """Replace the addresses that KServe has no option for: 0.0.0.0 (HTTP) and [::] (gRPC)."""

    class LoopbackConfig(uvicorn.Config):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "host": LOOPBACK})

    class Uvicorn:
        Config = LoopbackConfig

        def __getattr__(self, name: str) -> Any:
            return getattr(uvicorn, name)

    rest.uvicorn = Uvicorn()
    make_server = aio.server

    def make_loopback_server(*args: Any, **options: Any) -> Any:
        server = make_server(*args, **options)
        bind = server.add_insecure_port
        server.add_insecure_port = lambda address: bind(address.replace("[::]", LOOPBACK))
        return server

    aio.server = make_loopback_server


def _array(request: InferRequest, name: str) -> Array:
    tensor = request.get_input_by_name(name)
    if tensor is None:
        raise InvalidInput(f"missing input {name}")
    array: Array = tensor.as_numpy()
    if tensor.datatype == "BYTES":
        return _objects([_as_bytes(each) for each in array.ravel()]).reshape(array.shape)
    return array


def _as_bytes(element: str | bytes) -> bytes:
    return element.encode() if isinstance(element, str) else element


def _objects(elements: list[bytes]) -> Array:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def _output(name: str, datatype: str, array: Array) -> InferOutput:
    output = InferOutput(name=name, shape=list(array.shape), datatype=datatype)
    output.set_data_from_numpy(array, binary_data=True)
    return output


def _described(name: str, datatype: str, shape: tuple[int, ...]) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


if __name__ == "__main__":
    main()
