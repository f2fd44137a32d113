"""What the test models compute, as MLServer runtimes.

It runs in MLServer's own environment, copied beside the model settings: it imports nothing of
this project.
"""

# mypy: disable-error-code="misc"
# MLServer is not installed where mypy runs, so its base class is untyped there.

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    Parameters,
    RequestInput,
    ResponseOutput,
    TensorData,
)

Array = np.ndarray[Any, np.dtype[Any]]


class Base(MLModel):
    """What the models share: nothing to load, and answers cut to the outputs asked for."""

    async def load(self) -> bool:
        """Be ready at once."""
        return True

    def answer(self, request: InferenceRequest, outputs: list[ResponseOutput]) -> InferenceResponse:
        """Return *outputs*, or those of them that *request* names."""
        if request.outputs:
            by_name = {output.name: output for output in outputs}
            unknown = [each.name for each in request.outputs if each.name not in by_name]
            if unknown:
                raise InferenceError(f"unknown output {unknown[0]}")
            outputs = [by_name[each.name] for each in request.outputs]
        return InferenceResponse(
            id=request.id, model_name=self.name, model_version=self.version, outputs=outputs
        )


class AddSub(Base):
    """Answers the sum and the difference of two inputs."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        left, right = _array(request, "INPUT0"), _array(request, "INPUT1")
        if left.shape != right.shape:
            raise InferenceError(f"shapes differ: {left.shape} and {right.shape}")
        sums = _output("OUTPUT0", "INT32", left + right)
        return self.answer(request, [sums, _output("OUTPUT1", "INT32", left - right)])


class Identity(Base):
    """Answers its one input unchanged."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        datatype = _datatype(request.inputs[0])
        return self.answer(request, [_output("OUTPUT0", datatype, _array(request, "INPUT0"))])


class ParamsEcho(Base):
    """Answers the request's parameters as sorted JSON."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        parameters = request.parameters.model_dump() if request.parameters else {}
        own_parameters = {k: v for k, v in parameters.items() if v is not None and k != "headers"}
        text = json.dumps(own_parameters, sort_keys=True).encode()
        return self.answer(request, [_output("PARAMS", "BYTES", _objects([text]))])


class TextsOrNull(Base):
    """Answers its texts in the other case, null as null, and the parameter `extra`."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        texts = StringCodec.decode_input(request.inputs[0])
        data = TensorData(root=[None if text is None else text.swapcase() for text in texts])
        output = ResponseOutput(name="Y", datatype="BYTES", shape=[len(texts)], data=data)
        response = self.answer(request, [output])
        response.parameters = Parameters(extra=getattr(request.parameters, "extra", None))
        return response


class Fail(Base):
    """Fails: with MLServer's own error for 0, with an ordinary exception otherwise."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        if int(_array(request, "INPUT0").ravel()[0]) == 0:
            raise InferenceError("failed on purpose")
        raise ValueError("model raised on purpose")


class Repeat(Base):
    """Streams a response for each element of IN."""

    async def predict_stream(
        self, payloads: AsyncIterator[InferenceRequest]
    ) -> AsyncIterator[InferenceResponse]:
        """Answer a stream of requests."""
        async for request in payloads:
            for index, value in enumerate(_array(request, "IN").ravel()):
                out = _output("OUT", "INT32", np.array([value], np.int32))
                yield self.answer(
                    request, [out, _output("IDX", "UINT32", np.array([index], np.uint32))]
                )


class Slow(Base):
    """Sleeps MS milliseconds, then answers MS."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        duration = _array(request, "MS")
        await asyncio.sleep(int(duration.ravel()[0]) / 1000)
        return self.answer(request, [_output("MS_OUT", "INT32", duration)])


class SumAndEmpty(Base):
    """Answers the sum of X, and an output of no elements."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        total = np.array([_array(request, "X").sum()], np.float64)
        empty = _output("EMPTY", "FP32", np.zeros((0,), np.float32))
        return self.answer(request, [_output("SUM", "FP64", total), empty])


class CountText(Base):
    """Answers how many elements X has, which it decodes to numpy as MLServer's own models do."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        count = NumpyCodec.decode_input(request.inputs[0]).size
        return self.answer(request, [_output("COUNT", "INT64", np.array([count], np.int64))])


class Versions(Base):
    """Answers with the version that runs."""

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        number = np.array([int(self.version)], np.int32)
        return self.answer(request, [_output("VERSION", "INT32", number)])


def _array(request: InferenceRequest, name: str) -> Array:
    for tensor in request.inputs:
        if tensor.name == name:
            return _decoded(tensor)
    raise InferenceError(f"missing input {name}")


def _decoded(tensor: RequestInput) -> Array:
    if _datatype(tensor) == "BYTES":
        # NumpyCodec strips trailing zero bytes, which an identity must not.
        return _objects([_as_bytes(each) for each in _flat(tensor.data)]).reshape(tensor.shape)
    array: Array = NumpyCodec.decode_input(tensor)
    return array


def _datatype(tensor: RequestInput) -> str:
    return str(getattr(tensor.datatype, "value", tensor.datatype))


def _flat(data: Iterable[Any]) -> Iterator[Any]:
    for each in data:
        if isinstance(each, list | tuple):
            yield from _flat(each)
        else:
            yield each


def _as_bytes(element: str | bytes) -> bytes:
    return element.encode() if isinstance(element, str) else bytes(element)


def _objects(elements: list[bytes]) -> Array:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def _output(name: str, datatype: str, array: Array) -> ResponseOutput:
    data = TensorData(root=array.ravel().tolist())
    return ResponseOutput(name=name, datatype=datatype, shape=list(array.shape), data=data)
