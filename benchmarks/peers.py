"""GraphPipe messages by the builder and the generated readers of flatbuffers, for codecs.py."""

from typing import Any

import flatbuffers  # type: ignore[import-untyped]  # it is not typed
import numpy as np
import numpy.typing as npt

from gateway.schema import graphpipe_fb

fb: Any = graphpipe_fb  # generated, without types

_ROOM = 1024


def flatbuffers_write(array: npt.NDArray[np.float32]) -> bytes:
    """Return an InferRequest with one tensor, by a builder of the right size."""
    builder: Any = flatbuffers.Builder(array.nbytes + _ROOM)
    data = builder.CreateNumpyVector(np.frombuffer(array, np.uint8))
    shape = builder.CreateNumpyVector(np.array(array.shape, np.int64))
    fb.TensorStart(builder)
    fb.TensorAddType(builder, fb.Type.Float32)
    fb.TensorAddShape(builder, shape)
    fb.TensorAddData(builder, data)
    tensor = fb.TensorEnd(builder)
    fb.InferRequestStartInputTensorsVector(builder, 1)
    builder.PrependUOffsetTRelative(tensor)
    tensors = builder.EndVector()
    fb.InferRequestStart(builder)
    fb.InferRequestAddInputTensors(builder, tensors)
    request = fb.InferRequestEnd(builder)
    fb.RequestStart(builder)
    fb.RequestAddReqType(builder, fb.Req.InferRequest)
    fb.RequestAddReq(builder, request)
    builder.Finish(fb.RequestEnd(builder))
    return bytes(builder.Output())


def flatbuffers_read(message: bytes) -> npt.NDArray[np.float32]:
    """Return the tensor of an InferRequest by the generated readers, without a copy."""
    request: Any = fb.Request.GetRootAs(message)
    table = request.Req()
    infer: Any = fb.InferRequest()
    infer.Init(table.Bytes, table.Pos)
    tensor = infer.InputTensors(0)
    shape = [tensor.Shape(index) for index in range(tensor.ShapeLength())]
    found: npt.NDArray[np.float32] = tensor.DataAsNumpy().view(np.float32).reshape(shape)
    return found
