"""Messages of a StreamInfer that no service sees: answered in band, with their ids."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.frontend import Frontend
from gateway.ir.errors import Overloaded
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.trtis.grpc import GrpcCodec
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.transports.base import refuse
from gateway.wire.grpc import GrpcRequest
from tests.fakes import ScriptedService

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
    answer = refuse(frontend, wire, Overloaded("no place"))
    found = pb.InferResponse.FromString(bytes(answer.view))
    assert (pb.UNAVAILABLE, "no place") == (found.request_status.code, found.request_status.msg)
    assert found.meta_data.id == 77
