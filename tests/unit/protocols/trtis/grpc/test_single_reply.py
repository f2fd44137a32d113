"""StreamInfer: messages of clients that no service sees, and one request to an old server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.frontend import Frontend
from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, Overloaded, UpstreamProtocolError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensor import RequestedOutput, as_raw
from gateway.protocols.trtis.grpc.codec import GrpcCodec
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.upstream import Upstream
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from tests.cases.trtis_http import X
from tests.fakes import ScriptedService

CODEC: Any = GrpcCodec(DEFAULT_LIMITS, {})
STREAM = "/nvidia.inferenceserver.GRPCService/StreamInfer"


@pytest.mark.parametrize("batch_size", [1, 0], ids=["read", "unreadable"])
def test_a_refused_message_keeps_its_id(batch_size: int) -> None:
    """A client waits for ever for an answer whose id does not come."""
    header = pb.InferRequestHeader(id=77, batch_size=batch_size)
    header.input.add(name="" if not batch_size else "X", dims=[1])
    message = pb.InferRequest(model_name="m", model_version=-1, meta_data=header)
    message.raw_input.append(b"0123")
    wire = GrpcRequest(STREAM, (memoryview(message.SerializeToString()),))
    codec: Any = GrpcCodec(DEFAULT_LIMITS, {})
    frontend: Any = Frontend(codec, ScriptedService({}))
    answer = frontend.reject_message(wire, Overloaded("no place"))
    found = pb.InferResponse.FromString(bytes(answer.view))
    assert (pb.UNAVAILABLE, "no place") == (found.request_status.code, found.request_status.msg)
    assert found.meta_data.id == 77


ASKED = InferRequest(
    model=ModelRef("m"), inputs=(X,), outputs=(RequestedOutput("y"),), batch_size=2
)


class OldServer:
    """A client whose server gives these answers to the one message of each stream."""

    def __init__(self, *answers: pb.InferResponse) -> None:
        self.answers = answers
        self.requests: list[GrpcRequest] = []

    async def send(
        self, wire: GrpcRequest, /, *, deadline: float | None, decode: Any
    ) -> GrpcResponse:
        raise NotImplementedError

    async def stream(
        self, wire: GrpcRequest, /, *, deadline: float | None
    ) -> AsyncIterator[GrpcResponse]:
        self.requests.append(wire)
        for answer in self.answers:
            yield GrpcResponse((memoryview(answer.SerializeToString()),))

    async def close(self) -> None: ...


def answer(number: int, code: int = pb.SUCCESS) -> pb.InferResponse:
    found = pb.InferResponse(request_status={"code": code, "msg": "so it is"})
    found.meta_data.id = number
    if code == pb.SUCCESS:
        found.meta_data.model_name, found.meta_data.batch_size = "m", 2
        found.meta_data.output.add(name="y", raw={"dims": [1], "batch_byte_size": 8})
        found.raw_output.append(b"01234567")
    return found


@pytest.mark.parametrize(("text", "number"), [("", 1), ("77", 77), ("text", 1)])
async def test_a_stream_asks_an_old_server_once(text: str, number: int) -> None:
    """One message by StreamInfer with an id that is not 0, and the one answer to it."""
    server = OldServer(answer(number))
    call = StreamInferRequest(model=ModelRef("m"), request=ASKED.changed(id=text))
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
        ([answer(2)], UpstreamProtocolError, "id 2: the request has 1"),
        ([answer(1), answer(1)], UpstreamProtocolError, "a second response"),
        ([answer(1, pb.INVALID_ARG)], InvalidRequest, "so it is"),
    ],
)
async def test_a_stream_of_an_old_server_is_checked(
    answers: list[pb.InferResponse], failure: type[Exception], text: str
) -> None:
    """No answer, two, or another's are not taken; an error in band is raised."""
    call = StreamInferRequest(model=ModelRef("m"), request=ASKED)
    items = await Upstream("old", CODEC, OldServer(*answers))(call)
    with pytest.raises(failure, match=text):
        async for _ in items:
            pass
