"""TensorRT v1: a request through the gateway, as its clients send it over HTTP."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from google.protobuf import text_format

from benchmarks import systems
from benchmarks.messages import Arrays, Case, Message, signature
from gateway.schema.tensorrt_v1_pb2 import InferResponseHeader

_MOST = 8


def path(case: Case) -> str:
    """Return the path of an inference, with the response format that the real client requests."""
    return f"/api/infer/{case.model}?format=binary"


def request(case: Case) -> Message:
    """Encode a batch of one: shapes in a header without the batch axis, and no datatypes."""
    inputs = [
        f'input {{ name: "{name}" {" ".join(f"dims: {dim}" for dim in array.shape[1:])} }}'
        for name, array in case.inputs.items()
    ]
    outputs = [f'output {{ name: "{name}" }}' for name in case.outputs]
    header = " ".join(["batch_size: 1", *inputs, *outputs])
    body = b"".join(array.tobytes() for array in case.inputs.values())
    fields = (("Content-Type", "application/octet-stream"), ("NV-InferRequest", header))
    return Message(body, fields)


def read(case: Case) -> Callable[[Message], Arrays]:
    """Return a reader for the outputs of a response, which has no datatypes."""

    def outputs(message: Message) -> Arrays:
        fields = {name.lower(): value for name, value in message.fields}
        header = text_format.Parse(fields["nv-inferresponse"], InferResponseHeader())
        found, at = {}, 0
        for output in header.output:
            data = message.body[at : at + output.raw.batch_byte_size]
            at += len(data)
            shape = (header.batch_size, *output.raw.dims)
            found[output.name] = np.frombuffer(data, case.outputs[output.name].dtype).reshape(shape)
        return found

    return outputs


def start(case: Case) -> Any:
    """Return a function that starts a gateway with a batching model.

    The canned upstream has no metadata. A real one is asked for it once in 30 s.
    """
    description = {**signature(case), "max_batch_size": _MOST}
    return partial(systems.gateway, models={case.model: {"signature": description}})
