"""GraphPipe: its messages alone, compared with flatbuffers, and a request through the gateway.

The peers do the same work as the gateway's reader and writer: they read the same fields, decode
names as text, and build the same response in a buffer of the right size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flatbuffers  # type: ignore[import-untyped]  # it is not typed
import numpy as np
import numpy.typing as npt

from benchmarks import systems
from benchmarks.messages import Arrays, Case, Message, signature
from benchmarks.peers import fb
from gateway.ir.calls import InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.datatypes import Datatype, datatype_of
from gateway.ir.tensors.tensor import Tensor, raw_tensor
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage
from gateway.protocols.graphpipe.messages import open_request, read_infer_request
from gateway.protocols.graphpipe.translate import encode_infer_reply

NAME = "graphpipe messages"
BUILD, READ = "build answer", "read request"

_NUMBERS = {"int32": 6, "float32": 10}
_DTYPES = {number: np.dtype(name) for name, number in _NUMBERS.items()}
_ROOM = 4096

Step = Callable[[], object]


def steps(case: Case) -> dict[str, Step]:
    """Return the gateway's steps: read a request, and build a response with the same tensors."""
    received = memoryview(request(case).body)
    tensors = tuple(_tensor(name, array) for name, array in case.inputs.items())
    reply = InferResponse(model=ModelRef(case.model), outputs=tensors)

    def read() -> object:
        message = FlatbufferMessage(received, DEFAULT_LIMITS)
        at = open_request(message)
        if at is None:
            return None
        return read_infer_request(message, at, ModelRef(case.model), lenient=False)

    return {BUILD: lambda: encode_infer_reply(reply, ()), READ: read}


def peers(case: Case) -> dict[str, Step]:
    """Return the same steps with the Builder of flatbuffers and its generated code."""
    body = request(case).body
    return {BUILD: lambda: built_answer(case.inputs), READ: lambda: read_request(body)}


def request(case: Case) -> Message:
    """Encode the request as the Python client does: every input and output by name, no config."""
    builder = _builder(case.inputs)
    tensors = _tensors(builder, case.inputs, fb.InferRequestStartInputTensorsVector)
    outputs = _names(builder, case.outputs, fb.InferRequestStartOutputNamesVector)
    inputs = _names(builder, case.inputs, fb.InferRequestStartInputNamesVector)
    config = builder.CreateString("")
    fb.InferRequestStart(builder)
    fb.InferRequestAddConfig(builder, config)
    fb.InferRequestAddInputNames(builder, inputs)
    fb.InferRequestAddInputTensors(builder, tensors)
    fb.InferRequestAddOutputNames(builder, outputs)
    infer = fb.InferRequestEnd(builder)
    fb.RequestStart(builder)
    fb.RequestAddReqType(builder, fb.Req.InferRequest)
    fb.RequestAddReq(builder, infer)
    builder.Finish(fb.RequestEnd(builder))
    return Message(bytes(builder.Output()))


def read(case: Case) -> Callable[[Message], Arrays]:
    """Return a reader for the outputs of a response, which have positions and no names."""

    def outputs(message: Message) -> Arrays:
        answer: Any = fb.InferResponse.GetRootAs(message.body)
        found = [answer.OutputTensors(index) for index in range(answer.OutputTensorsLength())]
        return {
            name: tensor.DataAsNumpy().view(_DTYPES[tensor.Type()]).reshape(tensor.ShapeAsNumpy())
            for name, tensor in zip(case.outputs, found, strict=True)
        }

    return outputs


def start(case: Case) -> Any:
    """Return a function that starts a gateway with the signature of the model.

    The canned upstream has no metadata. A real one is asked for it once in 30 s.
    """
    return partial(systems.gateway, models={case.model: {"signature": signature(case)}})


def built_answer(arrays: Arrays) -> object:
    """Build an InferResponse."""
    builder = _builder(arrays)
    tensors = _tensors(builder, arrays, fb.InferResponseStartOutputTensorsVector)
    fb.InferResponseStartErrorsVector(builder, 0)
    errors = builder.EndVector()
    fb.InferResponseStart(builder)
    fb.InferResponseAddOutputTensors(builder, tensors)
    fb.InferResponseAddErrors(builder, errors)
    builder.Finish(fb.InferResponseEnd(builder))
    return builder.Output()


def read_request(body: bytes) -> object:
    """Read every field of an InferRequest with the generated code. Tensors are not copied."""
    message: Any = fb.Request.GetRootAs(body)
    if message.ReqType() != fb.Req.InferRequest:
        raise ValueError("no InferRequest")
    member = message.Req()
    infer: Any = fb.InferRequest()
    infer.Init(member.Bytes, member.Pos)
    config = infer.Config()
    inputs = [infer.InputNames(at).decode() for at in range(infer.InputNamesLength())]
    outputs = [infer.OutputNames(at).decode() for at in range(infer.OutputNamesLength())]
    tensors = []
    for index in range(infer.InputTensorsLength()):
        tensor = infer.InputTensors(index)
        shape = tuple([tensor.Shape(at) for at in range(tensor.ShapeLength())])
        tensors.append((tensor.Type(), shape, tensor.DataAsNumpy()))
    return config, inputs, outputs, tensors


def _tensor(name: str, array: npt.NDArray[Any]) -> Tensor:
    return raw_tensor(name, _datatype(name, array), array.shape, memoryview(array.tobytes()))


def _datatype(name: str, array: npt.NDArray[Any]) -> Datatype:
    datatype = datatype_of(array.dtype)
    if datatype is None:
        raise ValueError(f"{name!r} is {array.dtype}, which has no datatype")
    return datatype


def _builder(arrays: Arrays) -> Any:
    return flatbuffers.Builder(sum(array.nbytes for array in arrays.values()) + _ROOM)


def _tensors(builder: Any, arrays: Arrays, begin: Callable[[Any, int], object]) -> Any:
    places = []
    for array in arrays.values():
        data = builder.CreateNumpyVector(np.frombuffer(array, np.uint8))
        shape = builder.CreateNumpyVector(np.array(array.shape, np.int64))
        fb.TensorStart(builder)
        fb.TensorAddType(builder, _NUMBERS[array.dtype.name])
        fb.TensorAddShape(builder, shape)
        fb.TensorAddData(builder, data)
        places.append(fb.TensorEnd(builder))
    return _offsets(builder, places, begin)


def _names(builder: Any, arrays: Arrays, begin: Callable[[Any, int], object]) -> Any:
    return _offsets(builder, [builder.CreateString(name) for name in arrays], begin)


def _offsets(builder: Any, places: list[Any], begin: Callable[[Any, int], object]) -> Any:
    begin(builder, len(places))
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return builder.EndVector()
