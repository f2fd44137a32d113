"""Tools of Triton's users, before Triton and before a sidecar without flags.

Performance Analyzer, pytriton's five clients and tritony ask for the model's configuration first, and
send requests that other clients do not.
"""

import dataclasses
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.cli_kit import Running, get
from tests.interop import perf_analyzer
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import CARRIERS, ONCE, gateway_before, gateways_before, make, serving
from tests.interop.servers.process import Command, Ports, RunningServer, running
from tests.interop.servers.triton import start as triton

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


Sidecars = dict[str, Running]


@pytest.fixture(scope="module")
def sidecars(triton_server: RunningServer) -> Iterator[Sidecars]:
    """Run a sidecar without flags in front of Triton, for each carrier behind it."""
    with gateways_before(triton_server) as found:
        yield found


def addresses(gateway: Running) -> tuple[str, ...]:
    """Return the flags with the addresses of a gateway."""
    found = gateway.addresses
    return "--http", found["main.http"], "--grpc", found["main.grpc"]


@pytest.mark.parametrize("name", ["pytriton", "tritony"])
def test_a_client_library_sees_no_difference(
    triton_server: RunningServer, sidecars: Sidecars, name: str
) -> None:
    """Every step has the outputs that it has with Triton itself."""
    client = Client(environment({"pytriton": "triton", "tritony": "tritony"}[name]))
    script = SCRIPTS / f"{name}_client.py"
    server = ("--http", triton_server.http_address, "--grpc", triton_server.grpc_address)
    direct = client.run(script, *server)
    failed = [step for step, found in direct.items() if "Error: " in str(found)]
    assert [] == failed
    for carrier, sidecar in sidecars.items():
        assert direct == client.run(script, *addresses(sidecar)), carrier


CASES: dict[str, tuple[str, ...]] = {
    "one row": ("-m", "add_sub"),
    "four rows": ("-m", "add_sub", "-b", "4"),
    "concurrent": ("-m", "add_sub", "--async", "--concurrency-range", "4"),
    "request rate": ("-m", "add_sub", "--request-rate-range", "20"),
    "zeros": ("-m", "add_sub", "--input-data", "zero"),
    "a version": ("-m", "versions", "-x", "3"),
    "shapes": ("-m", "identity_fp32", "--shape", "INPUT0:3,4"),
    "halves": ("-m", "identity_bf16", "--shape", "INPUT0:8"),
    "bools of any byte": ("-m", "identity_bool", "--shape", "INPUT0:8"),
    "texts": ("-m", "simple_identity", "--shape", "INPUT0:2", "--string-length", "10"),
    "sequences": ("-m", "sequence_sum", "--num-of-sequences", "2", "--sequence-length", "4"),
    "ensemble": ("-m", "ensemble_fp64", "--shape", "INPUT0:4"),
}
ONLY: dict[tuple[str, str], tuple[str, ...]] = {
    ("http", "JSON"): (
        *("-m", "add_sub"),
        *("--input-tensor-format", "json", "--output-tensor-format", "json"),
    ),
    ("grpc", "stream"): ("-m", "add_sub", "--streaming"),
    ("grpc", "sequences on a stream"): ("-m", "sequence_sum", "--streaming"),
    ("grpc", "compressed"): ("-m", "add_sub", "--grpc-compression-algorithm", "gzip"),
    ("grpc", "a parameter"): ("-m", "add_sub", "--request-parameter", "abc:123:int"),
}
ALL = {(carrier, name): words for carrier in CARRIERS for name, words in CASES.items()} | ONLY
# The reference transports have the same codecs: what differs in how many requests come, and how, suffices.
OF_TRANSPORTS = ("one row", "concurrent", "request rate", "stream", "compressed")
RUN = {key: words for key, words in ALL.items() if make() == "native" or key[1] in OF_TRANSPORTS}
# One window of few requests: how fast they are does not matter here.
# A server counts a request after its response, so that the report may miss the last ones.
COUNTED = 18
BRIEF = ("--request-count", "20", "--stability-percentage", "999", "-p", "500")


def measure(address: str, carrier: str, *words: str) -> dict[str, int]:
    """Run Performance Analyzer, and return the counts of its report."""
    done = perf_analyzer.run("-u", address, "-i", carrier, *BRIEF, *words)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert "Failed request count" not in done.stdout
    found = re.findall(r"(\w+) (?:request )?count: (\d+)", done.stdout)
    return {name: int(count) for name, count in found}


@pytest.mark.parametrize(("carrier", "name"), RUN, ids=[" ".join(key) for key in RUN])
def test_performance_analyzer_succeeds(sidecars: Sidecars, carrier: str, name: str) -> None:
    """Every case ends with the counts of the server, over each carrier behind the sidecar."""

    def counts_of(sidecar: Running, sequences: str) -> dict[str, int]:
        words = (*RUN[carrier, name], "--sequence-id-range", sequences)
        return measure(sidecar.addresses[f"main.{carrier}"], carrier, *words)

    with ThreadPoolExecutor() as threads:  # it mostly waits
        found = threads.map(counts_of, sidecars.values(), ("1:1000", "1001:2000"))
        for behind, counts in zip(sidecars, found, strict=True):
            assert counts["Successful"] >= COUNTED, behind
            assert counts["Inference"] >= counts["Execution"] >= 1, behind


def test_performance_analyzer_with_shared_memory(triton_server: RunningServer) -> None:
    """The error of a sidecar names the flag that enables it."""
    words = ("-m", "add_sub", "--shared-memory", "system")
    with (
        gateway_before(triton_server, "grpc") as plain,
        gateway_before(triton_server, "grpc", "--enable", "shared_memory=map") as shared,
    ):
        for carrier in CARRIERS:
            address = plain.addresses[f"main.{carrier}"]
            done = perf_analyzer.run("-u", address, "-i", carrier, *BRIEF, *words)
            assert done.returncode != 0
            assert "--enable shared_memory=map" in done.stdout + done.stderr
            assert (
                measure(shared.addresses[f"main.{carrier}"], carrier, *words)["Successful"]
                >= COUNTED
            )


@pytest.mark.parametrize("carrier", CARRIERS)
def test_statistics_are_those_of_the_server(
    triton_server: RunningServer, sidecars: Sidecars, carrier: str
) -> None:
    """Queue, input, infer and output times of the report are Triton's own."""
    measure(sidecars[carrier].addresses["main.grpc"], "grpc", "-m", "add_sub")
    path = "/v2/models/add_sub/stats"
    _, own = get(f"http://{triton_server.http_address}{path}")
    assert (200, own) == get(sidecars[carrier].url(path))
    spent = own["model_stats"][0]["inference_stats"]
    for phase in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert spent[phase]["count"] >= COUNTED
        assert spent[phase]["ns"] > 0


BEHIND_A_KEY = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
upstreams:
  triton:
    url: "oip+{carrier}://{address}"
    probe: {{headers: {{{header}: "{key}"}}}}
lifecycle: {{pre_stop: 0s}}
"""
HEADERS = {"http": "admin-key", "grpc": "triton-grpc-protocol-admin-key"}


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a Triton whose metadata and configurations need a key, over both carriers."""

    def prepare(folder: Path, ports: Ports) -> Command:
        command = triton.prepare_sacrificial(folder, ports)
        guard = "metadata,model-config:admin-key=secret"
        words = (f"--http-restricted-api={guard}", f"--grpc-restricted-protocol=health,{guard}")
        return dataclasses.replace(command, words=(*command.words, *words))

    with running("triton", prepare, tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_triton_that_requires_a_key(
    guarded_server: RunningServer, carrier: str, tmp_path: Path
) -> None:
    """With the key in `probe.headers` clients need none; with a wrong one metadata is refused.

    Over HTTP the fixture leaves health open, because it waits for the server.
    """
    server = guarded_server
    address = server.address(carrier)
    file = tmp_path / "gateway.yaml"
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
    for key, status in (("secret", 200), ("wrong", 503)):
        text = BEHIND_A_KEY.format(
            carrier=carrier, address=address, header=HEADERS[carrier], key=key
        )
        file.write_text(text)
        with serving(str(file)) as gateway:
            if carrier == "grpc" or key == "secret":
                assert status == get(gateway.url("/v2/health/ready"))[0]
            found = get(gateway.url("/v2/models/identity_fp32"))[0]
            assert (found == 200) == (key == "secret")
            if key == "secret":
                path = "/v2/models/identity_fp32/infer"
                _, reply = get(gateway.url(path), {"inputs": [tensor]})
                assert [1.0, 2.0] == reply["outputs"][0]["data"]


@pytest.mark.parametrize("server", ["triton", "mlserver"])
def test_performance_analyzer_with_gateway_statistics(
    request: pytest.FixtureRequest, server: str
) -> None:
    """The gateway counts if `statistics` enables it, or if the server has no statistics."""
    behind: RunningServer = request.getfixturevalue(f"{server}_server")
    flags = ("--enable", "statistics=gateway") if server == "triton" else ()
    with gateway_before(behind, "http", *flags) as sidecar:
        for carrier in CARRIERS:
            words = ("-m", "identity_fp32", "--shape", "INPUT0:3,4")
            counts = measure(sidecar.addresses[f"main.{carrier}"], carrier, *words)
            assert counts["Execution"] == counts["Inference"] >= COUNTED


MODEL_ANALYZER = """
model_repository: {folder}
triton_launch_mode: remote
triton_http_endpoint: {http}
triton_grpc_endpoint: {grpc}
triton_metrics_url: "{metrics}"
client_protocol: {client}
perf_analyzer_path: {folder}/perf_analyzer
checkpoint_directory: {folder}/checkpoints
export_path: {folder}/out
gpus: []
run_config_search_disable: true
profile_models:
  simple:
    cpu_only: true
    parameters: {{batch_sizes: [1], concurrency: [1]}}
    perf_analyzer_flags: {{measurement-interval: 500, stability-percentage: 999}}
"""


MODEL_ANALYZER_FLAGS = ("--enable", "model_control", "--enable", "model_config")


@pytest.fixture(scope="module")
def analyzed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a Triton whose models Model Analyzer may load in variants of its own."""
    folder = tmp_path_factory.mktemp("analyzed")
    with running("triton", triton.prepare_sacrificial, folder) as server:
        yield server


@ONCE
@pytest.mark.parametrize(("carrier", "client"), [("http", "http"), ("grpc", "grpc")])
def test_model_analyzer_writes_its_report(
    analyzed_server: RunningServer, carrier: str, client: str, tmp_path: Path
) -> None:
    """It loads its model with a configuration, which takes two flags, and reports the results."""
    analyzer = environment("model_analyzer") / "bin" / "model-analyzer"
    command = " ".join(perf_analyzer.command())
    program = tmp_path / "perf_analyzer"
    program.write_text(f'#!/bin/sh\nunset LD_LIBRARY_PATH\nexec {command} "$@"\n')
    program.chmod(0o755)
    with gateway_before(analyzed_server, carrier, *MODEL_ANALYZER_FLAGS) as sidecar:
        file = tmp_path / "analyzer.yaml"
        file.write_text(
            MODEL_ANALYZER.format(
                folder=tmp_path,
                http=sidecar.addresses["main.http"],
                grpc=sidecar.addresses["main.grpc"],
                metrics=analyzed_server.metrics_url,
                client=client,
            )
        )
        words = [str(analyzer), "profile", "-f", str(file)]
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
        )
    assert 0 == done.returncode, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    table = (tmp_path / "out" / "results" / "metrics-model-inference.csv").read_text()
    (row,) = [line for line in table.splitlines() if line.startswith("simple,")]
    assert float(row.split(",")[7]) > 0
    assert list((tmp_path / "out" / "reports").rglob("detailed_report.html"))
