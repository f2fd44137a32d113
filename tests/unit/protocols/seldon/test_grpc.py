"""What clients of Seldon send over gRPC, and get; messages are those of the protobuf library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import ListValue

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, Unsupported, UpstreamError
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, items_tensor
from gateway.ir.values.untyped import typed_tensor
from gateway.protocols.seldon.grpc.codec import GrpcCodec
from gateway.schema import seldon_pb2 as pb
from gateway.schema import tensorflow_messages_pb2 as tf
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from tests.unit.protocols.seldon.models import answer

PREDICT = "/seldon.protos.Seldon/Predict"


def tensor(shape: list[int], values: list[float]) -> pb.SeldonMessage:
    return pb.SeldonMessage(
        data=pb.DefaultData(names=["a"], tensor=pb.Tensor(shape=shape, values=values))
    )


def ndarray(rows: Any) -> pb.SeldonMessage:
    message = pb.SeldonMessage()
    values = ListValue()
    values.extend(rows)
    message.data.ndarray.ParseFromString(values.SerializeToString())
    return message


def rows_of(message: pb.SeldonMessage) -> Any:
    found = ListValue()
    found.ParseFromString(message.data.ndarray.SerializeToString())
    return [list(each) if isinstance(each, ListValue) else each for each in found]


async def response_to(
    model: str, message: pb.SeldonMessage, declared: Any = None, **options: Any
) -> GrpcResponse:
    wire = GrpcRequest(PREDICT, (memoryview(message.SerializeToString()),))
    response: GrpcResponse = await answer(model, wire, options, declared)
    return response


async def ask(
    model: str, message: pb.SeldonMessage, declared: Any = None, **options: Any
) -> pb.SeldonMessage:
    """Return the message of an answer."""
    response = await response_to(model, message, declared, **options)
    assert response.status is GrpcStatus.OK
    return pb.SeldonMessage.FromString(b"".join(map(bytes, response.message)))


async def test_replies_have_the_form_of_the_request() -> None:
    """Doubles become the datatype of the model and back."""
    found = await ask("integers", tensor([2, 1], [3.0, -4.0]))
    assert (list(found.data.tensor.shape), list(found.data.tensor.values)) == ([2, 1], [6, -8])
    assert list(found.data.names) == ["t:0"]


@pytest.mark.parametrize(
    ("model", "rows", "expected"),
    [
        ("integers", [[1.0, 2.0], [3.0, 4.0]], [[2.0, 4.0], [6.0, 8.0]]),
        ("integers", [[1.0, 2.0]], [[2.0, 4.0]]),
        ("integers", [], []),
        ("texts", [["é", ""]], [["é", ""]]),
        ("flags", [[True, False], [False, True]], [[True, False], [False, True]]),
        ("doubles", [[math.inf, -math.inf, 0.1]], [[math.inf, -math.inf, 0.2]]),
    ],
)
async def test_replies_to_rows_are_rows(model: str, rows: Any, expected: Any) -> None:
    """Their elements are numbers, texts or booleans, as the model's."""
    assert expected == rows_of(await ask(model, ndarray(rows)))


async def test_a_tensor_proto_keeps_its_datatype() -> None:
    """It lies in the message as it does for TensorFlow Serving."""
    proto = tf.TensorProto(dtype=tf.DT_INT64, int64_val=[2**60 + 1])
    for _ in range(2):
        proto.tensor_shape.dim.add(size=1)
    message = pb.SeldonMessage(data=pb.DefaultData(tftensor=proto.SerializeToString()))
    reply = tf.TensorProto.FromString((await ask("integers", message)).data.tftensor)
    assert reply.dtype == tf.DT_INT64
    assert reply.tensor_content == (2**61 + 2).to_bytes(8, "little")


def json_message(document: dict[str, Any]) -> pb.SeldonMessage:
    message = pb.SeldonMessage()
    message.jsonData.struct_value.update(document)
    return message


async def test_texts_bytes_and_json_are_one_element() -> None:
    """The answer has the same form; JSON needs a declaration."""
    found = await ask("upper", pb.SeldonMessage(strData="é"))
    assert found.WhichOneof("data_oneof") == "strData"
    assert (await ask("backwards", pb.SeldonMessage(binData=b"\x00\xff"))).binData == b"\xff\x00"
    message = json_message({"a": [1, None, "x"]})
    assert (await response_to("wrapped", message)).status is GrpcStatus.INVALID_ARGUMENT
    found = await ask("wrapped", message, {"json": "text"})
    assert MessageToDict(found.jsonData) == {"got": {"a": [1, None, "x"]}}
    message = json_message({"a": [[1, 2]], "b": [3]})
    found = await ask("both", message, {"json": "inputs", "json_outputs": True})
    assert MessageToDict(found.jsonData) == {"sum": [6], "b": [3]}


async def test_meta_has_the_id_and_the_tags() -> None:
    """The id is made where the client sends none."""
    message = tensor([1, 1], [1])
    assert (await ask("integers", message)).meta.puid
    message.meta.puid = "p"
    message.meta.tags["n"].number_value = 1.5
    message.meta.tags["l"].list_value.values.add(string_value="x")
    message.meta.routing["r"] = 1
    found = (await ask("integers", message)).meta
    assert found.puid == "p"
    assert found.tags["n"].number_value == 1.5
    assert found.tags["l"].list_value.values[0].string_value == "x"
    assert not found.routing


BROKEN = pb.SeldonMessage(data=pb.DefaultData(tftensor=b"\xff"))


@pytest.mark.parametrize(
    ("model", "message", "place"),
    [
        ("integers", tensor([2, 2], [1, 2, 3]), "data.tensor.values has 3 numbers"),
        ("integers", tensor([-1], [1]), "negative"),
        ("integers", tensor([2**31 - 1] * 4, [1]), "data.tensor"),
        ("integers", tensor([1, 2], [1, 1.5]), "data.tensor.values[1] is 1.5"),
        ("integers", tensor([1, 2], [1, 2**53 + 2]), "data.tensor.values[1] is 9007199254740994"),
        ("bytes8", tensor([1, 2], [1, 128]), "data.tensor.values[1] is 128"),
        ("flags", tensor([1, 1], [1]), "data.tensor.values[0] is 1.0"),
        ("integers", ndarray([[1, 2], [3]]), "data.ndarray[1]"),
        ("integers", ndarray([[1, None]]), "data.ndarray[0][1] is null"),
        ("integers", ndarray([[1, "x"]]), "data.ndarray[0][1] is 'x'"),
        ("integers", ndarray([[1, {"a": 1}]]), "data.ndarray[0][1] is an object"),
        ("integers", pb.SeldonMessage(), "no payload"),
        ("floats", tensor([1, 1], [1e39]), "data.tensor.values[0] is 1e+39"),
        ("integers", BROKEN, "data.tftensor cannot be read"),
    ],
)
async def test_a_wrong_value_is_refused_with_its_place(
    model: str, message: pb.SeldonMessage, place: str
) -> None:
    """The status is INVALID_ARGUMENT, or RESOURCE_EXHAUSTED for a limit."""
    found = await response_to(model, message)
    assert found.status in (GrpcStatus.INVALID_ARGUMENT, GrpcStatus.RESOURCE_EXHAUSTED)
    assert place in found.details


@pytest.mark.parametrize("data", [b"\xff", b"\x1a\x05\x12\x03", b"\x1a\x03\x12\x01\x12"])
async def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    """The status is INVALID_ARGUMENT."""
    response = await answer("integers", GrpcRequest(PREDICT, (memoryview(data),)))
    assert response.status is GrpcStatus.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("method", "status"),
    [
        ("Router/Route", GrpcStatus.UNIMPLEMENTED),
        ("Generic/TransformInput", GrpcStatus.UNIMPLEMENTED),
        ("Combiner/Aggregate", GrpcStatus.UNIMPLEMENTED),
        ("Seldon/Nope", GrpcStatus.UNIMPLEMENTED),
        ("Model/SendFeedback", GrpcStatus.OK),
        ("Seldon/SendFeedback", GrpcStatus.OK),
    ],
)
async def test_methods_of_graphs_are_refused(method: str, status: GrpcStatus) -> None:
    """Feedback is answered."""
    response = await answer("integers", GrpcRequest(f"/seldon.protos.{method}", (b"",)))
    assert status is response.status


async def test_metadata_describe_inputs_and_outputs() -> None:
    """They are in the style of Open Inference, for the model and for the graph."""
    for method, kind in (
        ("Seldon/ModelMetadata", pb.SeldonModelMetadata),
        ("Model/Metadata", pb.SeldonModelMetadata),
        ("Seldon/GraphMetadata", pb.SeldonGraphMetadata),
    ):
        wire = GrpcRequest(f"/seldon.protos.{method}", (b"",))
        response = await answer("integers", wire)
        found = kind.FromString(bytes(response.message[0]))
        assert (found.name, found.inputs[0].datatype) == ("integers", "INT64")
        assert list(found.outputs[0].shape) == [-1, -1]


def call_of(each: Tensor, **more: Any) -> InferRequest:
    return InferRequest(model=ModelRef("m"), inputs=(each,), **more)


def written(codec: GrpcCodec, call: InferRequest) -> pb.SeldonMessage:
    wire = codec.encode_call(call)
    return pb.SeldonMessage.FromString(b"".join(map(bytes, wire.message)))


def test_a_request_to_a_server_has_the_form_of_the_options() -> None:
    """The library reads every form, and the codec reads it back."""
    cube = np.arange(12, dtype=np.float32).reshape(2, 3, 2) / 3
    for form, datatype in (("auto", "tensor"), ("tensor", "tensor"), ("ndarray", "ndarray")):
        codec = GrpcCodec(options={"form": form})
        message = written(codec, call_of(array_tensor("x", cube)))
        assert message.data.WhichOneof("data_oneof") == datatype
        reply = codec.decode_reply(
            call_of(array_tensor("x", cube)), GrpcResponse((message.SerializeToString(),))
        )
        declared = TensorMetadata("y", Datatype.FP32, (-1, 3, 2))
        found = typed_tensor("y", reply.outputs[0].data, declared)  # type: ignore[arg-type]  # JSON
        assert array_tensor("y", cube) == found
    text = items_tensor("x", (1,), [b"\xc3\xa9"])
    assert written(GrpcCodec(options={"form": "text"}), call_of(text)).strData == "é"
    raw = items_tensor("x", (1,), [b"\xff"])
    assert written(GrpcCodec(options={"form": "text"}), call_of(raw)).binData == b"\xff"
    with pytest.raises(Unsupported, match="no single element"):
        GrpcCodec(options={"form": "text"}).encode_call(call_of(array_tensor("x", cube)))
    with pytest.raises(Unsupported, match="2\\*\\*53"):
        GrpcCodec().encode_call(call_of(array_tensor("x", np.array([2**53 + 1]))))
    with pytest.raises(Unsupported, match="UTF-8"):
        GrpcCodec().encode_call(call_of(raw))


def test_options_name_the_service_and_the_deployment() -> None:
    """Metadata go through an ingress."""
    options = {"service": "Model", "deployment": "d", "namespace": "n"}
    wire = GrpcCodec(options=options).encode_call(call_of(array_tensor("x", np.array([1.0]))))
    assert wire.method == "/seldon.protos.Model/Predict"
    assert wire.metadata == (("seldon", "d"), ("namespace", "n"))


def test_a_reply_of_a_server_may_fail_or_be_text() -> None:
    """A status of failure is an error; JSON is the text of an element."""
    codec, call = GrpcCodec(), InferRequest(model=ModelRef("m"))
    failed = pb.SeldonMessage(status=pb.Status(status=pb.Status.FAILURE, info="why"), strData="x")
    with pytest.raises(UpstreamError, match="why"):
        codec.decode_reply(call, GrpcResponse((failed.SerializeToString(),)))
    plain = pb.SeldonMessage(status=pb.Status(code=200), binData=b"\xff")
    reply = codec.decode_reply(call, GrpcResponse((plain.SerializeToString(),)))
    assert isinstance(reply, InferResponse)
    declared = TensorMetadata("y", Datatype.BYTES, (-1, 1))
    found = typed_tensor("y", reply.outputs[0].data, declared)  # type: ignore[arg-type]  # JSON
    assert (found.shape, list(as_items(found))) == ((1, 1), [b"\xff"])
    with pytest.raises(GatewayError, match="no text"):
        codec.decode_reply(call, GrpcResponse(status=GrpcStatus.UNKNOWN))


def test_metadata_of_an_author_without_datatypes_need_a_signature() -> None:
    """Those in the style of Open Inference are read."""
    codec, call = GrpcCodec(), ModelMetadataRequest(model=ModelRef("m"))
    found = pb.SeldonModelMetadata(name="x", versions=["1"])
    for entries in (found.inputs, found.outputs):
        entries.add(name="a", datatype="FP32", shape=[-1, 2])
    metadata = codec.decode_reply(call, GrpcResponse((found.SerializeToString(),)))
    assert metadata.inputs == (TensorMetadata("a", Datatype.FP32, (-1, 2)),)
    found.outputs[0].messagetype, found.outputs[0].datatype = "tensor", ""
    with pytest.raises(GatewayError, match=r"models\.NAME\.signature"):
        codec.decode_reply(call, GrpcResponse((found.SerializeToString(),)))
