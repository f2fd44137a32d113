"""StreamInfer: rejected messages of clients, and one request to an old server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.frontend.frontend import Frontend
from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, Overloaded, UpstreamProtocolError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.tensor import RequestedOutput, as_raw
from gateway.protocols.trtis.grpc.codec import GrpcCodec
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.upstream import Upstream
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from tests.cases.trtis_http import X
from tests.fakes import ScriptedService

CODEC: Any = GrpcCodec(DEFAULT_LIMITS, {})
STREAM = "/nvidia.inferenceserver.GRPCService/StreamInfer"


@pytest.mark.parametrize("batch_size", [1, 0], ids=["read", "unreadable"])
def test_rejected_message_keeps_its_id(batch_size: int) -> None:
    """Without the id, the client would wait forever."""
    header = pb.InferRequestHeader(id=77, batch_size=batch_size)
    header.input.add(name="" if not batch_size else "X", dims=[1])
    message = pb.InferRequest(model_name="m", model_version=-1, meta_data=header)
    message.raw_input.append(b"0123")
    wire = GrpcRequest(STREAM, (memoryview(message.SerializeToString()),))
    codec: Any = GrpcCodec(DEFAULT_LIMITS, {})
    frontend: Any = Frontend(codec, ScriptedService({}))
    response = frontend.reject_message(wire, Overloaded("no place"))
    found = pb.InferResponse.FromString(bytes(response.view))
    assert (pb.UNAVAILABLE, "no place") == (found.request_status.code, found.request_status.msg)
    assert found.meta_data.id == 77


CALL = InferRequest(model=ModelRef("m"), inputs=(X,), outputs=(RequestedOutput("y"),), batch_size=2)


class OldServer:
    """A client whose server sends these responses to the one message of each stream."""

    def __init__(self, *responses: pb.InferResponse) -> None:
        self.responses = responses
        self.requests: list[GrpcRequest] = []

    async def send(
        self, wire: GrpcRequest, /, *, deadline: float | None, decode: Any
    ) -> GrpcResponse:
        raise NotImplementedError

    async def stream(
        self, wire: GrpcRequest, /, *, deadline: float | None
    ) -> AsyncIterator[GrpcResponse]:
        self.requests.append(wire)
        for response in self.responses:
            yield GrpcResponse((memoryview(response.SerializeToString()),))

    async def close(self) -> None: ...


def response(number: int, code: int = pb.SUCCESS) -> pb.InferResponse:
    found = pb.InferResponse(request_status={"code": code, "msg": "so it is"})
    found.meta_data.id = number
    if code == pb.SUCCESS:
        found.meta_data.model_name, found.meta_data.batch_size = "m", 2
        found.meta_data.output.add(name="y", raw={"dims": [1], "batch_byte_size": 8})
        found.raw_output.append(b"01234567")
    return found


@pytest.mark.parametrize(("text", "number"), [("", 1), ("77", 77), ("text", 1)])
async def test_stream_sends_one_request_to_an_old_server(text: str, number: int) -> None:
    """The message has an id other than 0, and one response."""
    server = OldServer(response(number))
    call = StreamInferRequest(model=ModelRef("m"), request=CALL.changed(id=text))
    (item,) = [item async for item in await Upstream("old", CODEC, server)(call)]
    assert (text, True, b"01234567") == (item.id, item.is_final, bytes(as_raw(item.outputs[0])))
    (wire,) = server.requests
    message = pb.InferRequest.FromString(bytes(wire.view))
    assert (STREAM, number) == (wire.method, message.meta_data.id)
    assert [bytes(as_raw(X))] == list(message.raw_input)


@pytest.mark.parametrize(
    ("answers", "failure", "text"),
    [
        ([], UpstreamProtocolError, "ended without a response"),
        ([response(2)], UpstreamProtocolError, "id 2: the request has 1"),
        ([response(1), response(1)], UpstreamProtocolError, "a second response"),
        ([response(1, pb.INVALID_ARG)], InvalidRequest, "so it is"),
    ],
)
async def test_invalid_stream_of_an_old_server_is_rejected(
    answers: list[pb.InferResponse], failure: type[Exception], text: str
) -> None:
    """A missing, second or foreign response is an error; an error in band is raised."""
    call = StreamInferRequest(model=ModelRef("m"), request=CALL)
    items = await Upstream("old", CODEC, OldServer(*answers))(call)
    with pytest.raises(failure, match=text):
        async for _ in items:
            pass
