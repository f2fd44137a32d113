"""NVIDIA's own TensorRT v1 client through the gateway, judged by its output.

The same checks before models in the gateway's own process, before the real Triton, which has never
known this protocol, and before a second gateway that is asked as the old server.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.schema import tensorrt_v1_pb2 as pb
from tests.integration.cli_kit import Running
from tests.integration.workers_kit import PATIENCE_S
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import FREE_PORTS, serving
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
    "full_batch": [8, True],
    "request_ids": True,
    "asynchronous": [3, 4, 5, 6],
    "unknown_model": True,
    "large_batch": "refused",
}
STREAMS: Mapping[str, Mapping[str, Any]] = {
    "http": {"stream": None, "stream_errors": None},
    "grpc": {"stream": [3, 4, 5, 6], "stream_errors": ["answered", "refused", "answered"]},
}
LISTENER = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    shared_memory: map
    options: {trtis: {max_batch_size: 8, model_control: true, repository_index: true}}
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
"""
LABELS = ", ".join(f"class{number}" for number in range(16))
MODELS = f"""{LISTENER}
models:
  add_sub: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
  add_sub_string: {{backend: python, options: {{callable: "gateway.backends.examples:simple_string"}}}}
  simple_sequence: {{backend: python, options: {{callable: "gateway.backends.examples:simple_sequence"}}}}
  labelled:
    backend: python
    options: {{callable: "gateway.backends.examples:simple"}}
    signature: {{labels: {{OUTPUT0: [{LABELS}]}}}}
"""
# Before Triton or an old server: all is allowed, and one model has its labels from here.
BEFORE = f"""{LISTENER}
upstreams: {{server: {{url: URL}}}}
models: {{simple: {{signature: {{labels: {{OUTPUT0: [{LABELS}]}}}}}}}}
routes:
  - match: {{model: labelled}}
    targets: [{{upstream: server, model: simple}}]
  - targets: [{{upstream: server}}]
"""
LABELLED = [
    [[15, 18.0, "class15"], [14, 17.0, "class14"]],
    [[15, 118.0, "class15"], [14, 117.0, "class14"]],
]
SHARED = {
    "listed": ["in", "out"],
    "again": "refused",
    "OUTPUT0": SUM,
    "OUTPUT1": DIFFERENCE,
    "gone": "refused",
    "left": 0,
}
CLOSED = {"shared_is_off": "refused", "control_is_off": ["refused"] * 3}
OPEN = {"labels": LABELLED, "shared": SHARED, "index": [True, False, True]}
# Told to have a state, unlike another one; and the answers.
SEQUENCE = [True, False, [11], [20], [30]]
CONTROLLED = {"control": [False, True, "refused"], "counters": [2, True]}


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


FORWARD = '{mode: forward, keys: "*"}'


@contextmanager
def allowing(upstream: str, folder: Path, memory: str = "map") -> Iterator[Running]:
    """Run a gateway in front of *upstream* that allows everything."""
    file = folder / f"{uuid4().hex}.yaml"
    text = BEFORE.replace("URL", upstream)
    file.write_text(text.replace("shared_memory: map", f"shared_memory: {memory}"))
    with serving(str(file)) as gateway:
        yield gateway


@contextmanager
def sidecar(upstream: str) -> Iterator[Running]:
    """Run the gateway in front of *upstream*, as its users do."""
    with serving("--upstream", upstream, *FREE_PORTS) as gateway:
        yield gateway


def seen_by(client: Client, gateway: Running, protocol: str, *checks: str) -> Mapping[str, Any]:
    """Return the results of the client in *checks*, or in all."""
    address = gateway.addresses[f"main.{protocol}"]
    found: Mapping[str, Any] = client.run(
        SCRIPTS / "tensorrt_client.py", address, protocol, *checks
    )
    return found


@PROTOCOLS
def test_models_in_process(tensorrt_client: Client, in_process: Running, protocol: str) -> None:
    """In-process models reply to every check of the real client, labels and sequences included."""
    expected = {**EXPECTED, **STREAMS[protocol]}
    assert expected == seen_by(tensorrt_client, in_process, protocol)
    more = {
        **OPEN,
        "long_sequence": [[11, True, False], [20, True, False], [30, True, True]],
    }
    assert more == seen_by(tensorrt_client, in_process, protocol, *more)


@PROTOCOLS
def test_triton_over_grpc(
    triton_server: RunningServer, tensorrt_client: Client, protocol: str
) -> None:
    """The real Triton replies to every check, sequences included; disabled calls are rejected."""
    with sidecar(f"oip+grpc://{triton_server.grpc_address}") as gateway:
        expected = {**EXPECTED, **STREAMS[protocol]}
        assert expected == seen_by(tensorrt_client, gateway, protocol)
        more = {"sequence": SEQUENCE, "refused_sequence": "refused", **CLOSED}
        assert more == seen_by(tensorrt_client, gateway, protocol, *more)


@PROTOCOLS
@pytest.mark.parametrize("memory", ["map", FORWARD], ids=["map", "forward"])
@pytest.mark.parametrize("carrier", ["grpc", "http"])
def test_triton_with_everything_allowed(
    triton_server: RunningServer,
    tensorrt_client: Client,
    carrier: str,
    memory: str,
    protocol: str,
    tmp_path: Path,
) -> None:
    """Labels from YAML, shared memory, model control and the index work before the real Triton."""
    grpc = carrier == "grpc"
    address = triton_server.grpc_address if grpc else triton_server.http_address
    with allowing(f"oip+{carrier}://{address}", tmp_path, memory) as gateway:
        allowed = {**OPEN, **CONTROLLED}
        assert allowed == seen_by(tensorrt_client, gateway, protocol, *allowed)


@PROTOCOLS
@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_second_gateway(
    tensorrt_client: Client, in_process: Running, carrier: str, protocol: str
) -> None:
    """Through two gateways, with TensorRT v1 between them, the real client sees the same."""
    behind = in_process.addresses[f"main.{carrier}"]
    with sidecar(f"trtis+{carrier}://{behind}") as gateway:
        expected = {**EXPECTED, **STREAMS[protocol]}
        assert expected == seen_by(tensorrt_client, gateway, protocol)
        more = {
            "long_sequence": [[11, True, False], [20, True, False], [30, True, True]],
            "labels": LABELLED,
            **CLOSED,
        }
        assert more == seen_by(tensorrt_client, gateway, protocol, *more)


@PROTOCOLS
@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_second_gateway_with_everything_allowed(
    triton_server: RunningServer,
    tensorrt_client: Client,
    carrier: str,
    protocol: str,
    tmp_path: Path,
) -> None:
    """Allowed calls reach the real Triton; regions are registered with the second gateway."""
    with allowing(f"oip+grpc://{triton_server.grpc_address}", tmp_path) as second:
        behind = second.addresses[f"main.{carrier}"]
        with allowing(f"trtis+{carrier}://{behind}", tmp_path, FORWARD) as first:
            allowed = {**OPEN, **CONTROLLED}
            assert allowed == seen_by(tensorrt_client, first, protocol, *allowed)
            found = seen_by(tensorrt_client, first, protocol, "sequence")
            assert {"sequence": SEQUENCE} == found


WORKERS_BEFORE = """
version: 1
workers: WORKERS
listeners: [{http: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", metrics: null}
upstreams: {server: {url: URL}}
lifecycle: {pre_stop: 0s}
"""
COUNTERS = ("success", "failed", "compute", "queue")


def infer_batch(base: str, size: int, inputs: int = 2) -> int:
    """Send one inference of *size* rows, as perf_client does; return the status."""
    names = "".join(f' input {{ name: "INPUT{number}" }}' for number in range(inputs))
    head = f'batch_size: {size}{names} output {{ name: "OUTPUT0" }}'
    body = bytes(4 * 16 * size * inputs)
    request = urllib.request.Request(  # noqa: S310  # loopback
        f"{base}/api/infer/simple", body, {"NV-InferRequest": head}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def infer_stats(base: str) -> dict[tuple[int, str], tuple[int, int]]:
    """Return count and time of each counter of the model, by batch size."""
    with urllib.request.urlopen(f"{base}/api/status/simple?format=binary", timeout=30) as response:  # noqa: S310
        status = pb.ServerStatus.FromString(response.read())
    version = status.model_status["simple"].version_status[1]
    return {
        (size, name): (getattr(stats, name).count, getattr(stats, name).total_time_ns)
        for size, stats in version.infer_stats.items()
        for name in COUNTERS
    }


@pytest.mark.parametrize("carrier", ["grpc", "http"])
@pytest.mark.parametrize("workers", [1, 4])
def test_counters_never_decrease(
    triton_server: RunningServer, tmp_path: Path, carrier: str, workers: int
) -> None:
    """The old perf_client subtracts two readings as unsigned numbers, of any worker."""
    address = triton_server.address(carrier)
    file = tmp_path / "workers.yaml"
    text = WORKERS_BEFORE.replace("WORKERS", str(workers))
    file.write_text(text.replace("URL", f"oip+{carrier}://{address}"))
    with serving(str(file), patience_s=PATIENCE_S) as gateway:
        base = gateway.url("")
        before = first = now = infer_stats(base)
        sent = failed = 0
        for size in (1, 1, 4, 2, 1, 8, 4, 1, 1, 2, 8, 1):
            is_whole = size != 2
            status = infer_batch(base, size, 2 if is_whole else 1)
            sent += status == 200
            failed += status != 200
            now = infer_stats(base)
            for key, counter in before.items():
                assert counter[0] <= now[key][0], key
                assert counter[1] <= now[key][1], key
            before = now
    assert (10, 2) == (sent, failed)
    for name in ("success", "queue"):
        total = sum(now[key][0] - first.get(key, (0, 0))[0] for key in now if key[1] == name)
        assert sent == total, name
