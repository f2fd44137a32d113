"""The side of a client: what a server of TorchServe gets, and how its responses are read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerReadyRequest,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Unauthenticated,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
    VersionNotFound,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_items,
    as_numpy,
    items_tensor,
)
from gateway.policies.complete.policy import Complete
from gateway.protocols.torchserve.declarations import read_declaration
from gateway.protocols.torchserve.grpc import messages
from gateway.protocols.torchserve.grpc.codec import GrpcCodec
from gateway.protocols.torchserve.http.codec import HttpCodec
from gateway.schema import torchserve_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpRequest, HttpResponse

D = Datatype
X = TensorMetadata("x", D.FP32, (-1, 2))
Y = TensorMetadata("y", D.FP32, (-1,))
ROWS = array_tensor("x", np.array([[1, 2], [3, 4]], np.float32))
ROW = array_tensor("x", np.array([[1, 2]], np.float32))


class Server:
    """A server whose responses are known, and what it was sent, over either carrier."""

    def __init__(
        self,
        *bodies: bytes | str,
        inputs: tuple[TensorMetadata, ...] = (X,),
        outputs: tuple[TensorMetadata, ...] = (Y,),
        status: int = 200,
        is_grpc: bool = False,
        **form: Any,
    ) -> None:
        self.codec: Any = GrpcCodec() if is_grpc else HttpCodec()
        self.codec.declare({"m": read_declaration(form, str)})
        self.sent: list[Any] = []
        data = [each.encode() if isinstance(each, str) else each for each in bodies]
        self._responses: list[Any] = [HttpResponse(status, Headers(), (each,)) for each in data]
        if is_grpc:
            found = [messages.RESPONSE.write(prediction=each) for each in data]
            self._responses = [GrpcResponse(tuple(each)) for each in found]
        self._metadata = ModelMetadata(name="m", inputs=inputs, outputs=outputs)
        self.service = Complete(self._ask, self.codec.needs)

    async def _ask(self, call: Call[Any], /) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return self._metadata
        self.sent.append(self.codec.encode_call(call))
        return self.codec.decode_reply(call, self._responses.pop(0))

    async def infer(self, *inputs: Tensor, **fields: Any) -> InferResponse:
        fields = {"model": ModelRef("m"), **fields}
        return await self.service(InferRequest(inputs=inputs, **fields))


@pytest.mark.parametrize("is_grpc", [False, True])
async def test_each_item_of_a_batch_is_a_request(is_grpc: bool) -> None:
    """The answers are joined along the batch axis, with the declared datatypes."""
    server = Server("3", "7.5", is_grpc=is_grpc)
    reply = await server.infer(ROWS)
    (output,) = reply.outputs
    assert (output.name, output.datatype, output.shape) == ("y", D.FP32, (2,))
    assert as_numpy(output).tolist() == [3, 7.5]
    if is_grpc:
        found = [pb.PredictionsRequest.FromString(bytes(each.view)) for each in server.sent]
        assert [dict(each.input) for each in found] == [
            {"data": b"[1.0,2.0]"},
            {"data": b"[3.0,4.0]"},
        ]
        return
    assert [bytes(each.view) for each in server.sent] == [b"[1.0,2.0]", b"[3.0,4.0]"]
    assert {each.path for each in server.sent} == {"/predictions/m"}
    assert server.sent[0].headers.get("content-type") == "application/json"


async def test_several_inputs_and_outputs_are_objects() -> None:
    """Names are those of the signature."""
    names = ("INPUT0", "INPUT1")
    inputs = tuple(TensorMetadata(name, D.INT64, (-1, 2)) for name in names)
    outputs = tuple(TensorMetadata(name, D.INT64, (-1, 2)) for name in ("A", "B"))
    server = Server('{"B": [9007199254740993, 2], "A": [3, 4]}', inputs=inputs, outputs=outputs)
    most = np.array([[2**63 - 1, 0]])
    reply = await server.infer(*[array_tensor(name, most) for name in names])
    assert json.loads(bytes(server.sent[0].view)) == {each: [2**63 - 1, 0] for each in names}
    found = {each.name: as_numpy(each).tolist() for each in reply.outputs}
    assert found == {"A": [[3, 4]], "B": [[9007199254740993, 2]]}


async def test_bytes_and_text_are_sent_as_declared() -> None:
    """Bytes of a response are the only element of an output of BYTES."""
    text = (TensorMetadata("t", D.BYTES, (1,)),)
    image = items_tensor("t", (1,), [b"\xff\xd8\x00"])
    server = Server(b"\xfe", inputs=text, outputs=text, request="bytes", response="bytes")
    reply = await server.infer(image)
    assert bytes(server.sent[0].view) == b"\xff\xd8\x00"
    assert server.sent[0].headers.get("content-type") == "application/octet-stream"
    assert [bytes(each) for each in as_items(reply.outputs[0])] == [b"\xfe"]
    server = Server("plain text", inputs=text, outputs=text, request="text")
    reply = await server.infer(items_tensor("t", (1,), ["ä".encode()]))
    assert server.sent[0].headers.get("content-type") == "text/plain; charset=utf-8"
    assert [bytes(each) for each in as_items(reply.outputs[0])] == [b"plain text"]
    with pytest.raises(Unsupported, match="not UTF-8"):
        await Server("", inputs=text, outputs=text, request="text").infer(image)
    raw = Server(
        np.array([1.5], "<f2").tobytes(),
        inputs=(X,),
        outputs=(TensorMetadata("y", D.FP16, (-1,)),),
        request="bytes",
        response="bytes",
    )
    assert as_numpy((await raw.infer(ROW)).outputs[0]).tolist() == [1.5]
    assert bytes(raw.sent[0].view) == np.array([1, 2], "<f4").tobytes()


@pytest.mark.parametrize("is_grpc", [False, True])
async def test_columns_are_the_fields_of_a_form(is_grpc: bool) -> None:
    """The gateway's own listener reads them back."""
    inputs = (X, TensorMetadata("t", D.BYTES, (-1, 1)))
    server = Server("3", inputs=inputs, is_grpc=is_grpc, request="columns")
    await server.infer(ROW, items_tensor("t", (1, 1), [b"--tensor-gateway\r\n\xff"]))
    codec = GrpcCodec() if is_grpc else HttpCodec()
    codec.declare({"m": read_declaration({"request": "columns"}, str)})
    call: Any = codec.decode_call(server.sent[0])
    assert [each.name for each in call.inputs] == ["x", "t"]
    assert [bytes(each.data.raw) for each in call.inputs] == [
        b"[1.0,2.0]",
        b"--tensor-gateway\r\n\xff",
    ]


def test_several_texts_are_not_one_field() -> None:
    """They would be read back as one element."""
    texts = (TensorMetadata("t", D.BYTES, (-1,)),)
    server = Server("", inputs=texts, outputs=texts, request="columns")
    call = InferRequest(model=ModelRef("m"), inputs=(items_tensor("t", (2,), [b"a", b"b"]),))
    with pytest.raises(Unsupported, match="expected one"):
        server.codec.encode_call(call)


async def test_an_envelope_has_one_item() -> None:
    """The answer is its only row."""
    server = Server('{"predictions": [3]}', envelope="json")
    assert as_numpy((await server.infer(ROW)).outputs[0]).tolist() == [3]
    assert bytes(server.sent[0].view) == b'{"instances":[[1.0,2.0]]}'
    with pytest.raises(GatewayError):
        await Server('{"predictions": [3, 4]}', envelope="json").infer(ROW)


async def test_versions_and_sequences_are_those_of_the_protocol() -> None:
    """Version N is N.0, or what the table says."""
    server = Server("1", "1", version_map={"blue": "3"})
    sequence = CallSequence(7, end=True)
    await server.infer(ROW, model=ModelRef("m", "1"), sequence=sequence)
    await server.infer(ROW, model=ModelRef("m", "3"))
    assert [each.path for each in server.sent] == ["/predictions/m/1.0", "/predictions/m/blue"]
    assert server.sent[0].headers.get("ts_request_sequence_id") == "7"
    assert server.sent[0].headers.get("ts_request_sequence_end") == "true"


@pytest.mark.parametrize("body", ["[1", '"text"', "true", "[1, 2]", '{"z": 1}', "", "1e999"])
async def test_a_response_that_is_not_the_output_is_the_servers_fault(body: str) -> None:
    """No value is guessed."""
    with pytest.raises(GatewayError) as caught:
        await Server(body).infer(ROW)
    assert isinstance(caught.value, UpstreamProtocolError | InvalidRequest)


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (404, "ModelNotFoundException", ModelNotFound),
        (404, "ModelVersionNotFoundException", VersionNotFound),
        (400, "BadRequestException", InvalidRequest),
        (400, "InvalidKeyException", Unauthenticated),
        (503, "InternalServerException", UpstreamError),
        (503, "ServiceUnavailableException", Overloaded),
        (513, "InternalServerException", UpstreamError),
        (500, "InternalServerException", UpstreamError),
        (507, "OutOfMemory", UpstreamError),
        (301, "", UpstreamProtocolError),
    ],
)
async def test_errors_are_of_their_kind(
    status: int, kind: str, expected: type[GatewayError]
) -> None:
    """A handler that fails is no overload: it is not asked again."""
    body = json.dumps({"code": status, "type": kind, "message": "why"})
    with pytest.raises(expected) as caught:
        await Server(body, status=status).infer(ROW)
    assert type(caught.value) is expected
    assert ("why" in caught.value.message) == (status != 301)
    assert caught.value.is_retryable == (expected is Overloaded)


def test_health_is_ping() -> None:
    """Nothing is known of one model."""
    codec = HttpCodec()
    for call in (ServerReadyRequest(), ModelReadyRequest(model=ModelRef("m"))):
        assert codec.encode_call(call).path == "/ping"
        assert codec.decode_reply(call, HttpResponse(200))
        assert not codec.decode_reply(call, HttpResponse(500))
    grpc = GrpcCodec()
    healthy = pb.TorchServeHealthResponse(health='{"status": "Healthy"}').SerializeToString()
    sick = pb.TorchServeHealthResponse(health='{"status": "Unhealthy"}').SerializeToString()
    assert grpc.decode_reply(ServerReadyRequest(), GrpcResponse((healthy,)))
    assert not grpc.decode_reply(ServerReadyRequest(), GrpcResponse((sick,)))
    assert not grpc.decode_reply(ServerReadyRequest(), GrpcResponse((b"\xff",)))


@pytest.mark.parametrize("status", [GrpcStatus.INTERNAL, GrpcStatus.UNAVAILABLE])
def test_the_name_in_an_error_over_grpc_is_its_kind(status: GrpcStatus) -> None:
    """The status is INTERNAL for most, and UNAVAILABLE for a handler that fails."""
    codec, call = GrpcCodec(), InferRequest(model=ModelRef("m"))
    for name, expected in (
        ("ModelNotFoundException", ModelNotFound),
        ("ModelVersionNotFoundException", VersionNotFound),
        ("ServiceUnavailableException", Overloaded),
        ("InternalServerException", UpstreamError),
    ):
        details = f"Why\norg.pytorch.serve.{name}"
        with pytest.raises(GatewayError) as caught:
            codec.decode_reply(call, GrpcResponse(status=status, details=details))
        assert type(caught.value) is expected
    bad = GrpcResponse(status=GrpcStatus.INTERNAL, details="Why\nBadRequestException")
    with pytest.raises(InvalidRequest):
        codec.decode_reply(call, bad)


def test_what_torchserve_has_not_is_refused() -> None:
    """Classes of outputs, and metadata."""
    codec = HttpCodec()
    call = InferRequest(model=ModelRef("m"), outputs=(RequestedOutput("y", classes=1),))
    with pytest.raises(Unsupported, match="classes"):
        codec.encode_call(call)
    with pytest.raises(Unsupported):
        codec.encode_call(ModelMetadataRequest(model=ModelRef("m")))


async def test_an_explanation_is_passed_on() -> None:
    """Only servers of TorchServe have explanations."""
    codec = HttpCodec()
    wire = HttpRequest("POST", "/explanations/m/2.0", "", Headers(), (b"{}",))
    sent = codec.encode_call(codec.decode_call(wire))
    assert (sent.path, bytes(sent.view)) == ("/explanations/m/2.0", b"{}")
    call = codec.decode_call(wire)
    answer = codec.encode_reply(call, codec.decode_reply(call, HttpResponse(200, body=(b"x",))))
    assert (answer.status, bytes(answer.view)) == (200, b"x")


def test_a_stream_over_grpc_has_items() -> None:
    """Each is a prediction of its own."""
    codec = GrpcCodec()
    wire = GrpcRequest(
        "/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions",
        (pb.PredictionsRequest(model_name="m", input={"data": b"[1]"}).SerializeToString(),),
    )
    call: Any = codec.decode_call(wire)
    item = codec.decode_item(call, GrpcResponse(tuple(messages.RESPONSE.write(prediction=b"[1]"))))
    assert item.outputs[0].data.value == [1]  # type: ignore[union-attr]
