"""NVIDIA's own TensorRT v1 client through the gateway: what it prints is the proof.

The same checks before models in the gateway's own process, before the real Triton, which has never
known this protocol, and before a second gateway that is asked as the old server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.cli_kit import Running, serving
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "grpc"])
INT32 = 8
SUM = [[value + 3 for value in range(at, at + 16)] for at in (0, 100)]
DIFFERENCE = [[value - 3 for value in range(at, at + 16)] for at in (0, 100)]
INPUTS = [["INPUT0", INT32, [16]], ["INPUT1", INT32, [16]]]
OUTPUTS = [["OUTPUT0", INT32, [16]], ["OUTPUT1", INT32, [16]]]

EXPECTED: Mapping[str, Any] = {
    "health": [True, True],
    "status": {
        "listed": True,
        "one": ["add_sub"],
        "ready": True,
        "batches": True,
        "inputs": INPUTS,
        "outputs": OUTPUTS,
    },
    "sync": {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE},
    "version": ["add_sub", 1],
    "one_output": {"OUTPUT1": DIFFERENCE},
    "strings": {
        "OUTPUT0": [list(map(str, item)) for item in SUM],
        "OUTPUT1": [list(map(str, item)) for item in DIFFERENCE],
    },
    "classes": {
        "OUTPUT0": [
            [[15, 18.0, ""], [14, 17.0, ""]],
            [[15, 118.0, ""], [14, 117.0, ""]],
        ],
        "OUTPUT1": DIFFERENCE,
    },
    "asynchronous": [3, 4, 5, 6],
    "unknown_model": True,
    "large_batch": "refused",
}
STREAMS: Mapping[str, Mapping[str, Any]] = {
    "http": {"stream": None, "stream_errors": None},
    "grpc": {"stream": [3, 4, 5, 6], "stream_errors": ["answered", "refused", "answered"]},
}
MODELS = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
models:
  add_sub: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
  add_sub_string: {backend: python, options: {callable: "gateway.backends.examples:simple_string"}}
"""


@pytest.fixture(scope="session")
def tensorrt_client() -> Client:
    """Give the environment that holds the package tensorrtserver."""
    return Client(environment("tensorrt"))


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway with the models of the checks in its own process."""
    file = tmp_path_factory.mktemp("models") / "models.yaml"
    file.write_text(MODELS)
    with serving(str(file)) as gateway:
        yield gateway


@contextmanager
def sidecar(upstream: str) -> Iterator[Running]:
    """Run the gateway in front of *upstream*, as its users do."""
    free = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off")
    with serving("--upstream", upstream, *free) as gateway:
        yield gateway


def seen_by(client: Client, gateway: Running, protocol: str, *checks: str) -> Mapping[str, Any]:
    """Return what the client sees in *checks*, or in all."""
    address = gateway.addresses[f"main.{protocol}"]
    found: Mapping[str, Any] = client.run(
        SCRIPTS / "tensorrt_client.py", address, protocol, *checks
    )
    return found


@PROTOCOLS
def test_models_in_process(tensorrt_client: Client, in_process: Running, protocol: str) -> None:
    """The real client is answered by models of the gateway's own."""
    expected = {**EXPECTED, **STREAMS[protocol]}
    assert expected == seen_by(tensorrt_client, in_process, protocol)


@PROTOCOLS
def test_triton_over_grpc(
    triton_server: RunningServer, tensorrt_client: Client, protocol: str
) -> None:
    """The real client is answered by the real Triton, sequences included."""
    with sidecar(f"oip+grpc://{triton_server.grpc_address}") as gateway:
        expected = {**EXPECTED, **STREAMS[protocol]}
        assert expected == seen_by(tensorrt_client, gateway, protocol)
        sequence = seen_by(tensorrt_client, gateway, protocol, "sequence")
        assert {"sequence": [[11], [20], [30]]} == sequence


@PROTOCOLS
@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_second_gateway(
    tensorrt_client: Client, in_process: Running, carrier: str, protocol: str
) -> None:
    """Through two gateways, TensorRT v1 between them, the real client sees the same."""
    behind = in_process.addresses[f"main.{carrier}"]
    with sidecar(f"trtis+{carrier}://{behind}") as gateway:
        expected = {**EXPECTED, **STREAMS[protocol]}
        assert expected == seen_by(tensorrt_client, gateway, protocol)
