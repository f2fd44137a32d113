"""Replies of the real Triton to clients without a library: the same through the gateway.

`curl` and `requests` show what client libraries hide: the text of the JSON, and what is missing.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running
from tests.interop.gateways import CARRIERS
from tests.interop.sacrifice import post
from tests.interop.servers.process import RunningServer
from tests.interop.test_gateway import sidecar

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=CARRIERS)
def gateway(request: pytest.FixtureRequest, triton_server: RunningServer) -> Iterator[Running]:
    """Run the default sidecar before Triton, over each carrier."""
    with sidecar(triton_server, request.param) as running:
        yield running


def ask(address: str, path: str, document: Any) -> tuple[int, str]:
    """Return the status and the text of a response, whatever the status."""
    status, text = post(address, path, json.dumps(document).encode())
    return status, text.decode()


def one_input(datatype: str, data: list[Any], shape: list[int] | None = None) -> dict[str, Any]:
    """Return the inputs of a request with one input."""
    member = {"name": "INPUT0", "datatype": datatype, "shape": shape or [len(data)], "data": data}
    return {"inputs": [member]}


@pytest.mark.parametrize("names", [(), ("OUTPUT1", "OUTPUT0")])
def test_ensemble_outputs_of_several_steps(
    triton_server: RunningServer, gateway: Running, names: tuple[str, ...]
) -> None:
    """Triton repeats parameter keys in such a reply; the gateway forwards all outputs."""
    document = one_input("INT32", [1, 2, 3]) | {"outputs": [{"name": name} for name in names]}
    path = "/v2/models/ensemble_int32/infer"
    status, text = ask(triton_server.http_address, path, document)
    assert 200 == status
    assert 2 == text.count('"sequence_id"'), "Triton repeats its keys no longer"
    for _ in range(3):
        seen, again = ask(gateway.addresses["main.http"], path, document)
        assert (200, outputs_of(text)) == (seen, outputs_of(again))


@pytest.mark.parametrize(
    "path",
    [
        "reciprocal/infer",
        "reciprocal/generate",
        "reciprocal/generate_stream",
        "reciprocal_stream/generate_stream",
    ],
)
def test_values_that_are_not_finite_are_forwarded(
    triton_server: RunningServer, gateway: Running, path: str
) -> None:
    """Triton writes them as words, which Python's json module reads."""
    document: dict[str, Any] = {"INPUT0": [1.5, -1.0, 0.0]}
    if path.endswith("infer"):
        document = one_input("FP64", [1.5, -1.0, 0.0])
    path = f"/v2/models/{path}"
    status, text = ask(triton_server.http_address, path, document)
    assert (200, True) == (status, "Infinity" in text and "NaN" in text)
    seen, again = ask(gateway.addresses["main.http"], path, document)
    assert (200, values_of(text)) == (seen, values_of(again))


def test_bool_bytes_other_than_0_and_1_are_forwarded(
    triton_server: RunningServer, gateway: Running
) -> None:
    """`perf_analyzer` sends random bytes: they reach the model and return unchanged."""
    document = {
        "inputs": [
            {
                "name": "INPUT0",
                "datatype": "BOOL",
                "shape": [4],
                "parameters": {"binary_data_size": 4},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(document).encode()
    length = {"Inference-Header-Content-Length": str(len(text))}
    elements = b"\x00\x02\xff\x01"
    for address in (triton_server.http_address, gateway.addresses["main.http"]):
        path = "/v2/models/identity_bool/infer"
        status, reply = post(address, path, text + elements, headers=length)
        assert (200, True) == (status, reply.endswith(b"}" + elements))


@pytest.mark.parametrize(
    ("model", "document"),
    [
        ("repeat_stream", {"IN": [-1, 2]}),
        ("repeat_stream", {"IN": [2, -1, 3]}),
        ("repeat_stream", {"IN": [-1]}),
        ("fail_always", {"INPUT0": [0]}),
        ("generate_text", {}),
        ("no_such_model", {"INPUT0": [0]}),
    ],
)
def test_errors_of_streams_are_those_of_triton(
    triton_server: RunningServer, gateway: Running, model: str, document: dict[str, Any]
) -> None:
    """Status and events of the error are equal."""
    path = f"/v2/models/{model}/generate_stream"
    status, text = ask(triton_server.http_address, path, document)
    seen, again = ask(gateway.addresses["main.http"], path, document)
    assert status == seen
    if model != "no_such_model":  # whose text has the gateway's words first
        assert events_of(text) == events_of(again)


def events_of(text: str) -> list[Any]:
    """Return the documents of a stream's events, or the one that is no event."""
    lines = text.split("\n\n") if text.startswith("data: ") else [text]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def slow(milliseconds: int) -> pb.ModelInferRequest:
    """Return a request of the decoupled model `slow_stream`, which has two instances."""
    request = pb.ModelInferRequest(model_name="slow_stream", id=str(milliseconds))
    request.inputs.add(name="MS", datatype="INT32", shape=[1])
    request.raw_input_contents.append(struct.pack("<i", milliseconds))
    return request


def ids_of_stream(address: str, *requests: pb.ModelInferRequest) -> list[str]:
    """Send *requests* on one stream; return the ids of the replies with outputs, in order."""
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(
            STREAM,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        replies = [reply.infer_response for reply in call(iter(requests), timeout=30)]
    return [reply.id for reply in replies if reply.outputs]


def test_a_slow_request_does_not_delay_others_if_decoupled(
    triton_server: RunningServer, gateway: Running
) -> None:
    """Triton keeps the order of replies for other models only."""
    for address in (triton_server.grpc_address, gateway.addresses["main.grpc"]):
        assert ["0", "600"] == ids_of_stream(address, slow(600), slow(0))


def values_of(text: str) -> str:
    """Return the list of numbers of a reply, as text, since NaN is not equal to itself."""
    document = json.loads(text.removeprefix("data: "))
    found = document.get("OUTPUT0") or document["outputs"][0]["data"]
    return str(found)


def outputs_of(text: str) -> dict[str, Any]:
    """Return the outputs of a reply by name."""
    return {output.pop("name"): output for output in json.loads(text)["outputs"]}
