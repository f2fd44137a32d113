"""Requests over gRPC that only some servers read: read as these do."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, ModelReadyRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, InvalidTensor, ModelNotFound, UnknownToServer
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.tensor import as_items, as_numpy
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcStatus

LISTENER = GrpcCodec(DEFAULT_LIMITS, {})
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def request(
    datatype: str, shape: list[int], raw: bytes | None = None, method: str = INFER, **contents: Any
) -> GrpcRequest:
    message = pb.ModelInferRequest(model_name="m", model_version="2", id="7")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return GrpcRequest(method, (memoryview(message.SerializeToString()),))


def read(wire: GrpcRequest, dialect: str) -> Any:
    with pytest.raises(InvalidRequest):
        LISTENER.decode_call(wire)
    assert ModelRef("m", "2") == LISTENER.inferred_model(wire)
    return LISTENER.decode_for_server(wire, dialect, "id-1")


@pytest.mark.parametrize("dialect", ["mlserver", "kserve"])
@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (request("INT64", [-1], struct.pack("<4q", 1, 2, 3, 4)), (4,)),
        (request("INT64", [2, -1], struct.pack("<4q", 1, 2, 3, 4)), (2, 2)),
        (request("INT64", [-1, 4], int64_contents=[1, 2, 3, 4]), (1, 4)),
    ],
    ids=["raw", "rows", "typed"],
)
def test_one_dimension_follows_from_the_elements(
    wire: GrpcRequest, expected: tuple[int, ...], dialect: str
) -> None:
    """MLServer and KServe reshape to one dimension of -1."""
    call = read(wire, dialect)
    assert isinstance(call, InferRequest)
    assert ("7", "id-1") == (call.id, call.context.request_id)
    array = as_numpy(call.inputs[0])
    assert (expected, [1, 2, 3, 4]) == (array.shape, array.ravel().tolist())


def test_a_message_of_a_stream_is_read_as_well() -> None:
    """A dimension of a BYTES input in a stream follows from its elements."""
    raw = b"\1\0\0\0a\2\0\0\0bc"
    call = read(request("BYTES", [-1, 1], raw, STREAM), "mlserver")
    assert isinstance(call, StreamInferRequest)
    assert [b"a", b"bc"] == [bytes(each) for each in as_items(call.request.inputs[0])]
    assert (2, 1) == call.request.inputs[0].shape


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (request("INT64", [2], int_contents=[1, 2]), [1, 2]),
        (request("FP32", [2], fp64_contents=[1.5, 2]), [1.5, 2.0]),
        (request("BOOL", [2], int_contents=[1, 0]), [True, False]),
        (request("INT8", [1], fp32_contents=[-3.0]), [-3]),
    ],
    ids=["int64", "fp32", "bool", "int8"],
)
def test_mlserver_reads_the_field_of_another_datatype(
    wire: GrpcRequest, expected: list[Any]
) -> None:
    """MLServer looks at no datatype, and KServe refuses it."""
    assert expected == as_numpy(read(wire, "mlserver").inputs[0]).tolist()
    with pytest.raises(InvalidTensor, match="expected"):
        LISTENER.decode_for_server(wire, "kserve")


def test_reserved_keys_are_the_models() -> None:
    """A parameter with the name of Triton's and another type goes to the model."""
    message = pb.ModelInferRequest(model_name="m", model_version="2")
    message.parameters["priority"].string_param = "high"
    call = read(GrpcRequest(INFER, (memoryview(message.SerializeToString()),)), "kserve")
    assert {"priority": "high"} == dict(call.parameters)


@pytest.mark.parametrize(
    "wire",
    [
        request("INT64", [-1, -1], bytes(8)),
        request("INT64", [3, -1], bytes(16)),
        request("INT8", [1], int64_contents=[300]),
        request("INT8", [-2], bytes(2)),
    ],
    ids=["two", "odd", "range", "negative"],
)
def test_what_no_server_reads_is_refused(wire: GrpcRequest) -> None:
    """A shape that elements do not fill, and a value out of range, are no request."""
    with pytest.raises(InvalidTensor):
        read(wire, LISTENER.most_lenient)


@pytest.mark.parametrize("dialect", ["triton", "ovms", "gateway", ""])
def test_other_servers_are_strict(dialect: str) -> None:
    """Triton refuses a dimension of -1."""
    assert read(request("INT64", [-1], bytes(8)), dialect) is None


@pytest.mark.parametrize("name", ["a\nb", "x" * 300])
def test_an_unusable_model_is_not_inferred(name: str) -> None:
    """A name that is refused is no model to ask about."""
    message = pb.ModelInferRequest(model_name=name)
    assert LISTENER.inferred_model(GrpcRequest(INFER, (message.SerializeToString(),))) is None
    other = GrpcRequest("/inference.GRPCInferenceService/ServerLive")
    assert LISTENER.inferred_model(other) is None


def test_rewriting_keeps_every_element() -> None:
    """Other inputs of the message are unchanged."""
    message = pb.ModelInferRequest(model_name="m", model_version="2")
    message.inputs.add(name="x", datatype="FP32", shape=[-1])
    message.inputs.add(name="y", datatype="FP64", shape=[1])
    message.raw_input_contents.extend([struct.pack("<2f", 1, 2), struct.pack("<d", 0.1)])
    call = read(GrpcRequest(INFER, (memoryview(message.SerializeToString()),)), "kserve")
    first, second = (as_numpy(one) for one in call.inputs)
    np.testing.assert_array_equal([1, 2], first)
    assert [0.1] == second.tolist()


def test_a_model_that_no_server_has_is_not_ready() -> None:
    """Triton replies so, and its clients raise an error for any status."""
    call = ModelReadyRequest(model=ModelRef("m"))
    response = LISTENER.encode_error(call, UnknownToServer("no m here"))
    assert (GrpcStatus.OK, b"") == (response.status, bytes(response.view))
    other = LISTENER.encode_error(call, ModelNotFound("no m here"))
    assert GrpcStatus.NOT_FOUND is other.status
