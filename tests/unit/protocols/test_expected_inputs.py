"""Codecs compare inputs before they read elements: each message has invalid elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.expected_inputs import UncheckedInputs, with_expected_inputs
from gateway.registry import protocol
from gateway.schema import grps_pb2, open_inference_pb2
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest
from tests.cases import graphpipe_oracle as oracle


@dataclass(frozen=True)
class Case:
    """A message for model "m" with wrong elements, and the names of its inputs."""

    name: str
    codec: Any
    wire: Any
    names: tuple[str, ...] = ("a", "b")


def http(path: str, body: str | bytes) -> HttpRequest:
    """Return a POST request."""
    data = body.encode() if isinstance(body, str) else body
    headers = Headers([("content-type", "application/json")])
    return HttpRequest("POST", path, "", headers, (memoryview(data),))


def oip_grpc() -> GrpcRequest:
    """Return a request with a BYTES input whose lengths are wrong."""
    request = open_inference_pb2.ModelInferRequest(model_name="m")
    for name in ("a", "b"):
        request.inputs.add(name=name, datatype="BYTES", shape=[1])
        request.raw_input_contents.append(b"\xff\0\0\0")
    return GrpcRequest("/inference.GRPCInferenceService/ModelInfer", (request.SerializeToString(),))


def grps_grpc() -> GrpcRequest:
    """Return a request whose tensors have too few elements."""
    message = grps_pb2.GrpsMessage(model="m")
    for name in ("a", "b"):
        message.gtensors.tensors.add(name=name, dtype=grps_pb2.DT_INT64, shape=[2], flat_int64=[1])
    return GrpcRequest("/grps.protos.v1.GrpsService/Predict", (message.SerializeToString(),))


def graphpipe(*names: str) -> HttpRequest:
    """Return a request whose tensors have too few bytes."""
    tensors = tuple([oracle.PlainTensor(10, (2, 2), b"1234")] * 2)
    body = oracle.build_request(oracle.PlainRequest(b"", names, tensors, ()))
    return http("/graphpipe/m", body)


OIP, GRPS, GRAPHPIPE = protocol("oip"), protocol("grps"), protocol("graphpipe")
OIP_INPUT = '{"name":"%s","datatype":"INT64","shape":[1],"data":["x"]}'
GRPS_INPUT = '{"name":"%s","dtype":"DT_INT64","shape":[1],"flat_int64":["x"]}'
CASES = [
    Case(
        "oip_http",
        OIP.http,
        http("/v2/models/m/infer", f'{{"inputs":[{OIP_INPUT % "a"},{OIP_INPUT % "b"}]}}'),
    ),
    Case("oip_grpc", OIP.grpc, oip_grpc()),
    Case(
        "grps_http",
        GRPS.http,
        http(
            "/grps/v1/infer/predict",
            f'{{"model":"m","gtensors":{{"tensors":[{GRPS_INPUT % "a"},{GRPS_INPUT % "b"}]}}}}',
        ),
    ),
    Case("grps_grpc", GRPS.grpc, grps_grpc()),
    Case("graphpipe", GRAPHPIPE.http, graphpipe("a", "b")),
    Case("graphpipe_without_names", GRAPHPIPE.http, graphpipe(), ("", "")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_inputs_are_compared_before_elements_are_read(case: Case) -> None:
    """Invalid elements raise an error only if the inputs are accepted."""
    codec = case.codec.codec(DEFAULT_LIMITS, {})
    with pytest.raises(UncheckedInputs) as raised:
        with_expected_inputs(lambda _model, _names: False, codec.decode_call, case.wire)
    assert (ModelRef("m"), case.names) == (raised.value.model, raised.value.names)
    for found in (
        codec.decode_call,
        lambda wire: with_expected_inputs(lambda *_: True, codec.decode_call, wire),
    ):
        with pytest.raises(GatewayError):
            found(case.wire)
