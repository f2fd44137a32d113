"""Streams and sequences with every tritonclient: before Triton, and before models in-process.

The flows are those of NVIDIA's examples: sequences on a stream and in turns, the decoupled repeat
model, text generation.  They must see the same on Triton itself and on the gateway.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cli_kit import Running
from tests.interop.client import SCRIPTS, Client
from tests.interop.gateways import serving
from tests.interop.servers.process import RunningServer
from tests.interop.test_gateway import sidecar

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

FLOWS = SCRIPTS / "tritonclient_flows.py"
SUMS = [11, 18, 23, 26, 28, 28, 29]
IN_PROCESS = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
models:
  sequence_sum: {backend: python, options: {callable: "gateway.backends.examples:SequenceSum"}}
  repeat_stream: {backend: python, options: {callable: "gateway.backends.examples:repeat_stream"}}
  generate_text:
    backend: python
    options: {callable: "tests.interop.servers.generating:generate_text"}
lifecycle: {pre_stop: 0s}
"""


@pytest.fixture(scope="module")
def direct(triton_server: RunningServer, client: Client) -> Any:
    """Return the results of the flows on Triton itself."""
    seen = client.run(FLOWS, triton_server.grpc_address, triton_server.http_address)
    for name, found in seen.items():
        if name.startswith("sequence_") and name != "sequence_without_start":
            assert [SUMS, [-each for each in SUMS]] == list(found.values()), name
    return seen


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway with models of its own."""
    config = tmp_path_factory.mktemp("models") / "gateway.yaml"
    config.write_text(IN_PROCESS)
    with serving(str(config)) as running:
        yield running


def run_flows(client: Client, gateway: Running, *flows: str) -> Any:
    """Return the results of the flows on a gateway."""
    addresses = gateway.addresses
    return client.run(FLOWS, addresses["main.grpc"], addresses["main.http"], *flows)


def test_flows_before_triton_over_grpc(
    triton_server: RunningServer, client: Client, direct: Any
) -> None:
    """Every flow has the results of Triton itself, whatever protocol its client uses."""
    with sidecar(triton_server, "grpc") as gateway:
        assert direct == run_flows(client, gateway)


def test_flows_before_triton_over_http(
    triton_server: RunningServer, client: Client, direct: Any
) -> None:
    """Decoupled models are called by Triton's `generate_stream`, with the same results."""
    with sidecar(triton_server, "http") as gateway:
        assert direct == run_flows(client, gateway)


def test_flows_before_models_in_process(in_process: Running, client: Client, direct: Any) -> None:
    """The gateway's own models behave as Triton's do."""
    # A generator that raises has ended: the model cannot go on after an error, as Triton's can.
    flows = [name for name in direct if name != "generate_stream_error"]
    assert {name: direct[name] for name in flows} == run_flows(client, in_process, *flows)
