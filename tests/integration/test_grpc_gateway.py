"""Both gRPC implementations through whole gateways, one in front of the other, chosen in YAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running, get, serving

MODEL = """
version: 1
listeners:
  - grpc: 127.0.0.1:0
    transport: {make}
    limits: {{grpc_metadata_bytes: 8KiB, message_bytes: 1MiB}}
admin: {{address: null, metrics: null}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
lifecycle: {{pre_stop: 0s}}
"""
FRONT = """
version: 1
listeners:
  - grpc: 127.0.0.1:0
    http: 127.0.0.1:0
    transport: {make}
admin: {{address: 127.0.0.1:0, metrics: null}}
upstreams:
  model: {{url: "oip+grpc://{address}", transport: {make}}}
lifecycle: {{pre_stop: 0s}}
"""
INFER = "/inference.GRPCInferenceService/ModelInfer"


def infer_message(model: str = "simple") -> bytes:
    """Return a request of two rows of sixteen integers."""
    request = pb.ModelInferRequest(model_name=model, id="q")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(np.arange(16, dtype="<i4").tobytes())
    return request.SerializeToString()


def sums(message: bytes) -> list[int]:
    """Return the first output of a response."""
    response = pb.ModelInferResponse.FromString(message)
    assert "q" == response.id
    return [int(each) for each in np.frombuffer(response.raw_output_contents[0], "<i4")]


@pytest.fixture(scope="module", params=["native", "reference"])
def front(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A gateway in front of a gateway with a model, both of one implementation."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "model.yaml").write_text(MODEL.format(make=request.param))
    with serving(str(folder / "model.yaml")) as model:
        address = model.addresses["main.grpc"]
        (folder / "front.yaml").write_text(FRONT.format(make=request.param, address=address))
        with serving(str(folder / "front.yaml")) as running:
            yield running


def test_inference_through_two_gateways(front: Running) -> None:
    """A real gRPC client gets its sums and its request id in the trailing metadata."""
    with grpc.insecure_channel(front.addresses["main.grpc"]) as channel:
        response, call = channel.unary_unary(INFER).with_call(
            infer_message(), metadata=(("x-request-id", "mine"),), timeout=10
        )
    assert [2 * number for number in range(16)] == sums(response)
    assert "mine" == dict(call.trailing_metadata())["x-request-id"]


def test_http_call_is_forwarded_over_grpc(front: Running) -> None:
    """JSON over HTTP reaches the model over gRPC."""
    row = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
    body = {"inputs": [{"name": name, **row} for name in ("INPUT0", "INPUT1")]}
    status, response = get(front.url("/v2/models/simple/infer"), body)
    assert 200 == status
    assert [2 * number for number in range(16)] == response["outputs"][0]["data"]


def test_errors_keep_their_status(front: Running) -> None:
    """The caller gets the status of the gateway behind."""
    with grpc.insecure_channel(front.addresses["main.grpc"]) as channel:
        call = channel.unary_unary(INFER)
        with pytest.raises(grpc.RpcError) as unknown:
            call(infer_message("none"), timeout=60)
        with pytest.raises(grpc.RpcError) as broken:
            call(b"\xff", timeout=60)
    assert grpc.StatusCode.NOT_FOUND is unknown.value.code()
    assert grpc.StatusCode.INVALID_ARGUMENT is broken.value.code()


def test_stream_through_two_gateways(front: Running) -> None:
    """Each message of a bidirectional stream gets a response on it."""
    with grpc.insecure_channel(front.addresses["main.grpc"]) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        responses = list(stream(iter([infer_message()] * 3), timeout=60))
    assert 3 == len(responses)


def test_health_and_reflection_are_served(front: Running) -> None:
    """The server's own services are available next to the protocols."""
    with grpc.insecure_channel(front.addresses["main.grpc"]) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=10
        )
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert health_pb2.HealthCheckResponse.SERVING == health.status
    assert "inference.GRPCInferenceService" in services


def test_sigterm_ends_open_connections_with_status_0(tmp_path: Path) -> None:
    """SIGTERM ends a gateway with open native connections at once, with status 0."""
    config = tmp_path / "gateway.yaml"
    config.write_text(MODEL.format(make="native"))
    with (
        serving(str(config)) as running,
        grpc.insecure_channel(running.addresses["main.grpc"]) as channel,
    ):
        assert [0, 2] == sums(channel.unary_unary(INFER)(infer_message(), timeout=60))[:2]
        began = monotonic()
        assert 0 == running.stop()
    assert monotonic() - began < 20
