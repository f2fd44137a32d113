"""Sequences through a whole gateway with two servers: where they stay, and how they are lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running, serving

SERVER = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
models:
  total: {backend: python, options: {callable: "gateway.backends.examples:SequenceSum"}}
lifecycle: {pre_stop: 0s}
"""
# The servers once as endpoints of one upstream, and once as weighted targets of a route. They do not
# show that their models take any sequence id.
FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
upstreams:
  both: {{urls: ["oip+grpc://{0}", "oip+grpc://{1}"], probe: {{interval: 60s}}}}
  first: {{url: "oip+grpc://{0}", probe: {{interval: 60s}}}}
  second: {{url: "oip+grpc://{1}", probe: {{interval: 60s}}}}
routes:
  - match: {{model: endpoints}}
    sequence_ids: text
    targets: [{{upstream: both, model: total}}]
  - match: {{model: weighted}}
    sequence_ids: text
    targets:
      - {{upstream: first, model: total, weight: 50}}
      - {{upstream: second, model: total, weight: 50}}
lifecycle: {{pre_stop: 0s}}
"""
MODELS = ("endpoints", "weighted")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Running]]:
    """Two independent servers."""
    config = tmp_path / "server.yaml"
    config.write_text(SERVER)
    with ExitStack() as stack:
        yield [stack.enter_context(serving(str(config))) for _ in range(2)]


@pytest.fixture
def gateway(servers: list[Running], tmp_path: Path) -> Iterator[Running]:
    """A gateway in front of both."""
    config = tmp_path / "gateway.yaml"
    config.write_text(FRONT.format(*(server.addresses["main.grpc"] for server in servers)))
    with serving(str(config)) as running:
        yield running


def add(gateway: Running, model: str, sequence: int | str, value: int, **flags: bool) -> Any:
    """Return the sum so far, or status and text of an error."""
    body = {"INPUT": value, "sequence_id": sequence, **flags}
    with closing(HTTPConnection(gateway.addresses["main.http"], timeout=60)) as connection:
        connection.request("POST", f"/v2/models/{model}/generate", json.dumps(body))
        response = connection.getresponse()
        document = json.loads(response.read())
    return document["OUTPUT"] if response.status == 200 else (response.status, document["error"])


def ids(model: str) -> list[int | str]:
    """Return numbers and texts that are not the other model's: it is the same one on the servers."""
    first = 1 + 8 * MODELS.index(model)
    return [*range(first, first + 8), *(f"{model}-{number}" for number in range(8))]


def test_sequences_stay_and_are_lost_with_their_server(
    servers: list[Running], gateway: Running
) -> None:
    """Each keeps its own sum; those of a killed server fail until they restart."""
    for model in MODELS:
        sequences = ids(model)
        for step in range(1, 4):
            sums = [add(gateway, model, each, step, sequence_start=step == 1) for each in sequences]
            assert [step * (step + 1) // 2] * 16 == sums
    servers[0].process.kill()
    servers[0].process.wait()
    for model in MODELS:
        sequences = ids(model)
        found = {each: add(gateway, model, each, 4) for each in sequences}
        survivors = [each for each in sequences if found[each] == 10]
        lost = [each for each in sequences if each not in survivors]
        assert survivors
        assert lost
        for each in lost:
            for _ in range(2):
                status, text = add(gateway, model, each, 4)
                assert 503 == status
                assert "restart the sequence" in text
        if model == "endpoints":  # a started one goes to the server that is left
            assert [1] * len(lost) == [
                add(gateway, model, each, 1, sequence_start=True) for each in lost
            ]
        assert [15] * len(survivors) == [
            add(gateway, model, each, 5, sequence_end=True) for each in survivors
        ]


def generate(address: str, source: str, sequence: int, **flags: bool) -> int:
    """Send a request from the address *source*; return the status."""
    body = {"INPUT": 1, "sequence_id": sequence, **flags}
    with closing(HTTPConnection(address, timeout=10, source_address=(source, 0))) as connection:
        connection.request("POST", "/v2/models/total/generate", json.dumps(body))
        return connection.getresponse().status


@pytest.mark.parametrize("transport", ["native", "reference"])
def test_sequences_per_client_are_limited(transport: str, tmp_path: Path) -> None:
    """A client is an address, over all its connections and carriers."""
    config = tmp_path / "limited.yaml"
    limited = SERVER + "policies: {sequences_per_client: 3}\n"
    config.write_text(limited.replace("listeners: [{", f"listeners: [{{transport: {transport}, "))
    with serving(str(config)) as running:
        address = running.addresses["main.http"]
        request = pb.ModelInferRequest(model_name="total")
        request.inputs.add(
            name="INPUT", datatype="INT32", shape=[1, 1]
        ).contents.int_contents.append(1)
        request.parameters["sequence_id"].int64_param = 1
        request.parameters["sequence_start"].bool_param = True
        with grpc.insecure_channel(running.addresses["main.grpc"]) as channel:
            method = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
            )
            method(request, timeout=60)
            for number in (2, 3):
                assert 200 == generate(address, "127.0.0.1", number, sequence_start=True)
            assert 503 == generate(address, "127.0.0.1", 4, sequence_start=True)
            request.parameters["sequence_id"].int64_param = 5
            with pytest.raises(grpc.RpcError, match="sequences_per_client"):
                method(request, timeout=60)
        assert 200 == generate(address, "127.0.0.1", 1)
        assert 200 == generate(address, "127.0.0.2", 6, sequence_start=True)
        assert 200 == generate(address, "127.0.0.1", 2, sequence_end=True)
        assert 200 == generate(address, "127.0.0.1", 4, sequence_start=True)
