"""`gateway serve` in a process of its own: starting, serving, stopping, and failing to start."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.cli.demo.samples import load_scans
from tests.cases import brpc_oracle as brpc
from tests.integration.cli_kit import Running, gateway, get, serving

pytestmark = pytest.mark.timeout(90)

CONFIG = Path(__file__).parents[2] / "config"
FREE = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")


@pytest.fixture(scope="module")
def demo() -> Iterator[Running]:
    """Run the demo models on free ports."""
    with serving("--demo", *FREE, "--brpc", "127.0.0.1:0") as running:
        yield running


@pytest.fixture
def occupied_address() -> Iterator[str]:
    """Hold an address that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_is_live_and_ready(demo: Running) -> None:
    """A gateway that listens with its models loaded is live and ready."""
    paths = ["/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"]
    assert [(200, None)] * 3 == [(get(demo.url(path))[0], None) for path in paths]


def test_infers_over_http(demo: Running) -> None:
    """A scan sent as JSON over a real socket is recognised."""
    scan = load_scans()[3]
    body = {
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 64], "data": list(scan.pixels)}]
    }
    status, response = get(demo.url("/v2/models/digits/infer"), body)
    assert status == 200
    outputs = {output["name"]: output for output in response["outputs"]}
    assert outputs["label"]["data"] == [scan.digit]
    assert outputs["probabilities"]["shape"] == [1, 10]


def test_infers_over_brpc(demo: Running) -> None:
    """A scan in a brpc frame is recognised on a port opened by a flag."""
    scan = load_scans()[3]
    tensor = brpc.Tensor("X", brpc.FLOAT32, (1, 64), scan.pixels)
    with brpc.Client(demo.addresses["main.grps.brpc"]) as client:
        response = client.ask(brpc.Question("Predict", brpc.message("digits", [tensor])))
    outputs = {output.name: output.values for output in response.message.tensors or ()}
    assert (scan.digit,) == outputs["label"]


def test_probes_are_on_the_admin_address_only(demo: Running) -> None:
    """Probes are served on the admin address and not on the data address."""
    assert get(demo.url("/livez", "admin"))[0] == 200
    assert get(demo.url("/livez"))[0] == 404


def test_sidecar_enables_read_only_extensions(demo: Running) -> None:
    """Configuration, statistics and index are on; errors and the log name the flag of the rest."""
    upstream = f"grpc://{demo.addresses['main.grpc']}"
    with serving("--upstream", upstream, *FREE) as sidecar:
        status, config = get(sidecar.url("/v2/models/digits/config"))
        assert (200, "digits") == (status, config["name"])
        assert get(sidecar.url("/v2/models/digits/stats"))[0] == 200
        assert get(sidecar.url("/v2/repository/index"), {})[0] == 200
        status, refused = get(sidecar.url("/v2/repository/models/digits/unload"), {})
        assert status == 501
        assert (
            "--enable model_control, or options: {oip: {model_control: true}} of the listener"
            in refused["error"]
        )
        status, refused = get(sidecar.url("/v2/trace/setting"), {"trace_rate": "1"})
        assert (status, "--enable trace," in refused["error"]) == (501, True)
        (line,) = [json.loads(text) for text in sidecar.log if '"extensions"' in text]
    on = "model_configuration, statistics=target, repository_index, trace=read, logging=read"
    assert on == line["on"]
    assert "model_control, model_config, model_files, opaque, shared_memory" == line["off"]
    assert line["enable"].startswith("--enable NAME")


def test_health_over_grpc_knows_models(demo: Running) -> None:
    """A model is a health service: SERVING, or NOT_FOUND where no server has it."""
    for upstream in (None, f"grpc://{demo.addresses['main.grpc']}"):
        with ExitStack() as stack:
            server = demo
            if upstream is not None:
                server = stack.enter_context(serving("--upstream", upstream, *FREE))
            channel = stack.enter_context(grpc.insecure_channel(server.addresses["main.grpc"]))
            check = health_pb2_grpc.HealthStub(channel).Check
            reply = check(health_pb2.HealthCheckRequest(service="digits"))
            assert health_pb2.HealthCheckResponse.SERVING == reply.status
            with pytest.raises(grpc.RpcError) as unknown:
                check(health_pb2.HealthCheckRequest(service="nobody"))
            assert grpc.StatusCode.NOT_FOUND is unknown.value.code()


def test_sidecar_serves_the_models_of_its_upstream(demo: Running) -> None:
    """One flag suffices: the upstream's models are served under their own names."""
    upstream = f"grpc://{demo.addresses['main.grpc']}"
    with serving("--upstream", upstream, *FREE) as sidecar:
        assert get(sidecar.url("/v2/health/ready"))[0] == 200
        status, response = get(sidecar.url("/v2/models/language"))
        assert (status, response["name"]) == (200, "language")
        text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["Wo ist die Milch?"]}
        _, response = get(sidecar.url("/v2/models/language/infer"), {"inputs": [text]})
        labels = [output["data"] for output in response["outputs"] if output["name"] == "label"]
        assert labels == [["de"]]


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_sidecar_lists_the_models_of_its_upstream(carrier: str, tmp_path: Path) -> None:
    """`gateway models` needs no option at the sidecar, only an upstream with an index."""
    text = (CONFIG / "testing.yaml").read_text().replace(":8000", ":0").replace(":8001", ":0")
    path = tmp_path / "server.yaml"
    path.write_text(text)  # it has the index
    with serving(str(path)) as server:
        upstream = f"grpc://{server.addresses['main.grpc']}"
        with serving("--upstream", upstream, *FREE) as sidecar:
            listed = gateway("models", f"oip+{carrier}://{sidecar.addresses[f'main.{carrier}']}")
    assert 0 == listed.returncode, listed.stderr
    assert "simple" in [line.split()[0] for line in listed.stdout.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_and_sigint_stop_with_status_0(number: signal.Signals) -> None:
    """Both signals end the gateway with status 0 and no traceback."""
    with serving("--demo", *FREE) as running:
        assert running.stop(number) == 0
    assert "Traceback" not in "".join(running.log)


def test_serves_a_configuration_file(tmp_path: Path) -> None:
    """Models written in Python are served from a file."""
    text = (CONFIG / "testing.yaml").read_text()
    path = tmp_path / "testing.yaml"
    path.write_text(text.replace(":8000", ":0").replace(":8001", ":0"))
    with serving(str(path)) as running:
        row = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
        body = {"inputs": [{"name": f"INPUT{number}", **row} for number in range(2)]}
        status, response = get(running.url("/v2/models/simple/infer"), body)
        assert status == 200
        assert [2 * n for n in range(16)] == response["outputs"][0]["data"]
        assert [0] * 16 == response["outputs"][1]["data"]
        assert running.stop() == 0


@pytest.mark.parametrize("flag", ["--http", "--grpc", "--admin"])
def test_port_in_use_is_one_error_line(occupied_address: str, flag: str) -> None:
    """The line names the address and the flag that chooses another; status 1."""
    flags = dict(zip(FREE[::2], FREE[1::2], strict=True)) | {flag: occupied_address}
    done = gateway("serve", "--demo", *(word for pair in flags.items() for word in pair))
    assert (1, "") == (done.returncode, done.stdout)
    errors = [line for line in done.stderr.splitlines() if line.startswith("gateway: cannot start")]
    assert len(errors) == 1
    assert occupied_address.partition(":")[2] in errors[0]
    assert f"{flag} HOST:PORT" in errors[0]
    assert "Traceback" not in done.stderr


def test_missing_model_file_is_named(tmp_path: Path) -> None:
    """The error names the missing file; status 1, no traceback."""
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "version: 1\nlisteners: [{http: 0}]\nmodels: {m: {backend: onnx, path: none.onnx}}\n"
    )
    done = gateway("serve", str(path))
    assert (1, "") == (done.returncode, done.stdout)
    assert "none.onnx" in done.stderr
    assert "Traceback" not in done.stderr
