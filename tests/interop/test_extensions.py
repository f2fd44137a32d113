"""Triton's extensions with the real tritonclients: before the real Triton, and without one.

Before Triton each client gets Triton's own replies through the gateway, member for member,
but for a table. In front of models of its own the gateway replies itself.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import __version__
from tests.integration.cli_kit import Running
from tests.interop.client import SCRIPTS, Client
from tests.interop.gateways import CARRIERS, ONCE, gateway_before, serving
from tests.interop.servers.kserve import start as kserve
from tests.interop.servers.mlserver import start as mlserver
from tests.interop.servers.process import RunningServer, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SCRIPT = SCRIPTS / "extensions_client.py"
KINDS = ("http", "grpc", "aio_http", "aio_grpc")

# Triton's own attempt ends in an error 500 about something else; newer ones may fare worse.
DIFFERENT = {
    "load_bad_file": "'file:../../x' is not a path of a file in the model's folder",
    # The gateway measures a segment before it registers it with a server.
    "shared_memory_unknown_key": "cannot be opened",
}

Seen = dict[str, dict[str, Any]]


def seen_by(client: Client, kind: str, address: str, *steps: str) -> Seen:
    """Return the results of a client of *kind*, by step."""
    words = ["--steps", ",".join(steps)] if steps else []
    seen: Seen = client.run(SCRIPT, "--url", address, "--kind", kind, *words)
    return seen


def port(kind: str) -> str:
    """Return the name of the listener a client of *kind* connects to."""
    return "main.http" if kind.endswith("http") else "main.grpc"


@pytest.fixture(scope="module")
def direct(bare_triton: RunningServer, client: Client) -> dict[str, Seen]:
    """Run every client against Triton itself."""
    addresses = {"main.http": bare_triton.http_address, "main.grpc": bare_triton.grpc_address}
    return {kind: seen_by(client, kind, addresses[port(kind)]) for kind in KINDS}


BEFORE_TRITON = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    identity: upstream
    shared_memory: {{mode: forward, keys: "*"}}
    options:
      oip:
        model_configuration: true
        statistics: target
        repository_index: true
        model_control: true
        model_files: true
        model_config: true
        trace: true
        logging: target
admin: {{address: "127.0.0.1:0", metrics: null}}
upstreams:
  triton: {{url: "oip+{carrier}://{address}"}}
lifecycle: {{pre_stop: 0s}}
"""


@pytest.mark.parametrize("carrier", CARRIERS)
def test_triton_through_the_gateway(
    triton_server: RunningServer,
    client: Client,
    direct: dict[str, Seen],
    carrier: str,
    tmp_path: Path,
) -> None:
    """Every client sees the results of Triton itself, over either carrier behind the gateway."""
    address = triton_server.address(carrier)
    file = tmp_path / "gateway.yaml"
    file.write_text(BEFORE_TRITON.format(carrier=carrier, address=address))
    with serving(str(file)) as gateway:
        for kind in KINDS:
            seen = seen_by(client, kind, gateway.addresses[port(kind)])
            for step, text in DIFFERENT.items():
                assert text in seen.pop(step)["error"]
            expected = {
                step: found for step, found in direct[kind].items() if step not in DIFFERENT
            }
            assert expected == seen, kind


PLAIN = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
admin: {{address: "127.0.0.1:0", metrics: null}}
upstreams:
  triton: {{url: "oip+http://{address}"}}
lifecycle: {{pre_stop: 0s}}
"""


@ONCE
def test_extensions_are_disabled_by_default(
    triton_server: RunningServer, client: Client, tmp_path: Path
) -> None:
    """Without options each extension is rejected by name, and none is advertised."""
    file = tmp_path / "gateway.yaml"
    file.write_text(PLAIN.format(address=triton_server.http_address))
    with serving(str(file)) as gateway:
        for kind in KINDS:
            seen = seen_by(client, kind, gateway.addresses[port(kind)])
            assert ["binary_tensor_data", *ALWAYS] == seen.pop("extensions")["answer"]
            assert "tensor-gateway" == seen.pop("identity")["answer"][0]
            assert [[2, 2], CLASSES] == seen.pop("classes")["answer"]
            for step, found in seen.items():
                assert "not enabled" in found["error"], (kind, step)


# What the steps of the client change, and what a sidecar refuses unless a flag enables it.
CHANGES = {
    "reload", "override", "load_unknown", "load_bad_file", "trace_change", "log_change", "log_back",
    "log_unknown", "shared_memory", "shared_memory_unknown_key", "trace_clear", "cuda_shared_memory",
}  # fmt: skip


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_sidecar_without_flags_allows_read_only_calls(
    triton_server: RunningServer, client: Client, direct: dict[str, Seen], carrier: str
) -> None:
    """Read-only calls are as on Triton; each change is rejected with the flag that allows it."""
    with gateway_before(triton_server, carrier) as gateway:
        for kind in KINDS:
            seen = seen_by(client, kind, gateway.addresses[port(kind)])
            assert {"model_configuration", "statistics"} < set(seen.pop("extensions")["answer"])
            assert "tensor-gateway" == seen.pop("identity")["answer"][0]
            for step in CHANGES & set(seen):
                assert "--enable " in seen.pop(step)["error"], (kind, step)
            assert {step: direct[kind][step] for step in seen} == seen, kind


@ONCE
def test_a_sidecar_can_show_the_identity_of_triton(
    triton_server: RunningServer, client: Client
) -> None:
    """With the flag name and version are Triton's, without it the gateway's."""
    with (
        gateway_before(triton_server, "grpc", "--identity", "upstream") as with_identity,
        gateway_before(triton_server, "grpc") as own,
    ):
        for kind in KINDS:
            names = [
                seen_by(client, kind, gateway.addresses[port(kind)], "identity")["identity"]
                for gateway in (with_identity, own)
            ]
            assert [
                {"answer": ["triton", "2.51.0"]},
                {"answer": ["tensor-gateway", __version__]},
            ] == names


ALWAYS = ["classification", "parameters", "schedule_policy", "sequence"]
CLASSES = ["2.000000:2:plum", "1.000000:3:fig", "9.000000:0:apple", "0.300000:3:fig"]

OF_ITS_OWN = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    shared_memory: map
    options:
      oip:
        model_configuration: true
        statistics: gateway
        repository_index: true
        model_control: true
        model_config: true
        logging: gateway
admin: {address: "127.0.0.1:0", metrics: null}
models:
  add_sub:
    backend: python
    options: {callable: "gateway.backends.examples:simple"}
    signature: {max_batch_size: 8}
  versions:
    backend: python
    options: {callable: "gateway.backends.examples:identity_int32"}
  identity_fp32:
    backend: python
    options: {callable: "gateway.backends.examples:identity_fp32"}
  scores:
    backend: python
    options: {callable: "gateway.backends.examples:identity_fp32"}
    signature: {max_batch_size: 8, labels: {OUTPUT0: [apple, pear, plum, fig]}}
routes:
  - match: {model: classify}
    targets:
      - model: scores
        tensors: {inputs: {SCORES_IN: INPUT0}, outputs: {SCORES: OUTPUT0}}
  - match: {model: add_sub}
    targets: [{model: add_sub}]
  - match: {model: versions}
    targets: [{model: versions}]
  - match: {model: identity_fp32}
    targets: [{model: identity_fp32}]
telemetry: {log: {level: info, format: json}}
lifecycle: {pre_stop: 0s}
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway with models of its own and no upstream."""
    file = tmp_path_factory.mktemp("own") / "gateway.yaml"
    file.write_text(OF_ITS_OWN)
    with serving(str(file)) as gateway:
        yield gateway


INFO = {
    "log_error": True,
    "log_file": "",
    "log_format": "json",
    "log_info": True,
    "log_verbose_level": 0,
    "log_warning": True,
}
READY = "READY"


@pytest.mark.parametrize("kind", KINDS)
def test_the_gateway_serves_extensions_of_its_own_models(
    own: Running, client: Client, kind: str
) -> None:
    """Configuration, statistics, index, loading, logging and shared memory behave as on Triton."""
    seen = seen_by(client, kind, own.addresses[port(kind)])
    switched = ["logging", "model_configuration", "model_repository"]
    switched += ["model_repository(unload_dependents)", "statistics", "system_shared_memory"]
    assert sorted(["binary_tensor_data", *ALWAYS, *switched]) == seen["extensions"]["answer"]
    config = seen["config"]["answer"]
    assert ("add_sub", 8) == (config["name"], int(config["max_batch_size"]))
    assert ["16"] == [str(size) for size in config["input"][0]["dims"]]
    assert {"answer": True} == seen["config_version"]
    assert "is not served here" in seen["config_unknown"]["error"]
    assert {"answer": [[2, 2], CLASSES]} == seen["classes"]
    assert {"answer": [["classify", "1", True]]} == seen["statistics"]
    assert {"answer": True} == seen["statistics_of_all"]
    names = [["add_sub", "1", READY], ["classify", "", READY]]
    names += [["identity_fp32", "1", READY], ["versions", "1", READY]]
    assert {"answer": names} == seen["index"]
    assert {"answer": [True, False, True]} == seen["reload"]
    assert "the call has 'config'" in seen["override"]["error"]
    assert "is not served here" in seen["load_unknown"]["error"]
    assert "is not a path of a file" in seen["load_bad_file"]["error"]
    assert "trace settings: not enabled" in seen["trace"]["error"]
    assert {"answer": INFO} == seen["log"] == seen["log_back"]
    assert {"answer": {**INFO, "log_verbose_level": 1}} == seen["log_change"]
    assert "unknown log setting 'no_such_setting'" in seen["log_unknown"]["error"]
    name = f"interop_{kind}"
    regions = [[f"{name}_in", f"/{name}_in", 0, 24], [f"{name}_out", f"/{name}_out", 0, 32]]
    values = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    expected = [regions, ["FP32", [2, 3]], values, regions[1:], []]
    assert {"answer": expected} == seen["shared_memory"]
    assert "cannot be opened" in seen["shared_memory_unknown_key"]["error"]
    assert {"answer": []} == seen["cuda_shared_memory"]


RELOAD = """
import json, sys, time
import tritonclient.{module} as module
client, model = module.InferenceServerClient(sys.argv[1]), sys.argv[2]
seen = []
def done(action):
    try:
        action(model)
    except Exception as error:
        seen.append(str(error))
done(client.load_model)
seen.append(client.is_model_ready(model))
done(client.unload_model)
end = time.monotonic() + 20
while client.is_model_ready(model) and time.monotonic() < end:
    time.sleep(0.05)
seen.append(client.is_model_ready(model))
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def others(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, RunningServer]]:
    """Run servers of these tests' own: KServe's models do not come back once they are unloaded."""
    folder = tmp_path_factory.mktemp("others")
    with (
        running("mlserver", mlserver.prepare, folder / "mlserver") as one,
        running("kserve", kserve.prepare, folder / "kserve") as other,
    ):
        yield {"mlserver": one, "kserve": other}


@ONCE
@pytest.mark.parametrize(
    ("carrier", "module", "model"),
    [
        ("http", "http", "identity_int8"),
        ("http", "grpc", "identity_int16"),
        ("grpc", "http", "identity_int32"),
        ("grpc", "grpc", "identity_int64"),
    ],
)
@pytest.mark.parametrize("name", ["mlserver", "kserve"])
def test_other_servers_load_and_unload(  # what is tried with what
    others: dict[str, RunningServer],
    client: Client,
    name: str,
    carrier: str,
    module: str,
    model: str,
) -> None:
    """A tritonclient loads and unloads models of MLServer and KServe.

    KServe 0.21 does both over gRPC and then reports an INTERNAL error of its own.
    """
    server = others[name]
    with gateway_before(server, carrier, "--enable", "model_control") as gateway:
        seen = client.run(RELOAD.format(module=module), gateway.addresses[f"main.{module}"], model)
    failed = [one for one in seen if isinstance(one, str)]
    assert [True, False] == [one for one in seen if not isinstance(one, str)]
    assert (2 if (name, carrier) == ("kserve", "grpc") else 0) == len(failed)
    assert all("Internal server error" in one for one in failed)
