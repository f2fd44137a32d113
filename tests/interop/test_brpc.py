"""grps over brpc beside an independent client and an independent server, in processes of their own.

There is no package with a client of brpc, nor with grps's real server (`README.md` says what was
looked for): the client and the server here are written with the standard library alone, and every
frame of the golden files is read and written by the unit tests.

Source: docs/protocols/grps.md, "12. brpc frames".
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cases import brpc_oracle as oracle
from tests.integration.cli_kit import Running, get
from tests.interop.client import ROOT, SCRIPTS, Client
from tests.interop.gateways import serving
from tests.interop.scripts.brpc_client import KINDS, json_value, shape_of
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SUM, DIFFERENCE = [*range(3, 19)], [*range(-3, 13)]
ADD_SUB = [["OUTPUT0", 4, [1, 16], SUM], ["OUTPUT1", 4, [1, 16], DIFFERENCE]]


def _identity(name: str) -> Any:
    kind, values = KINDS[name]
    return [["OUTPUT0", kind, [*shape_of(name)], [json_value(value) for value in values]]]


EXPECTED: Mapping[str, Any] = {
    **{f"{name} {compress}": _identity(name) for name in KINDS for compress in range(4)},
    **{f"attachment {compress}": ADD_SUB for compress in range(4)},
    "unnamed": ADD_SUB,
    "short name": ADD_SUB,
    "text": {"text": "hello grps."},
    "bytes": {"data": "ff00fe"},
    "large": 150_528,
    "at once": [*range(60)],
    "byte by byte": ADD_SUB,
    "live": [],
    "ready": [],
    "http": [200, ["OUTPUT0", SUM], ["OUTPUT1", DIFFERENCE]],
}
# A code or a status, and a part of the text.
REFUSED: Mapping[str, tuple[str, int, str]] = {
    "unknown model": ("status", 404, "nobody"),
    "missing input": ("status", 400, "INPUT1"),
    "failing model": ("status", 500, ""),
    "unknown service": ("code", 1001, "Fail to find service=Other"),
    "unknown method": ("code", 1002, "Fail to find method="),
    "no message": ("code", 1003, "Fail to parse request message"),
}

MODELS = {
    "add_sub": "simple",
    "fail_always": "fail",
    **{f"identity_{name}": f"identity_{name}" for name in KINDS},
}
FLAGS = ("--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off", "--brpc", "127.0.0.1:0")
# The independent server wants a `timeout_ms`, and a sidecar has no time of its own.
TIMED = ("--timeout", "60s")
BRPC = "main.grps.brpc"


@pytest.fixture(scope="session")
def brpc_client() -> Client:
    """Give a Python that has no packages at all."""
    return Client(Path(sys.base_prefix))


@contextmanager
def in_process(folder: Path) -> Iterator[Running]:
    """Run a gateway with every model of the checks in its own process."""
    models = {
        name: {"backend": "python", "options": {"callable": f"gateway.backends.examples:{of}"}}
        for name, of in MODELS.items()
    }
    config = {
        "version": 1,
        "listeners": [{"streams": [{"protocol": "grps", "address": "127.0.0.1:0"}]}],
        "admin": {"address": None, "metrics": None},
        "models": models,
        "lifecycle": {"pre_stop": "0s"},
    }
    file = folder / "models.yaml"
    file.write_text(json.dumps(config))
    with serving(str(file)) as gateway:
        yield gateway


@contextmanager
def independent_server() -> Iterator[int]:
    """Run the server of `scripts/brpc_server.py` and yield its port."""
    words = [str(Path(sys.base_prefix) / "bin" / "python"), "-P", str(SCRIPTS / "brpc_server.py")]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def seen_by(client: Client, gateway: Running, *checks: str) -> Mapping[str, Any]:
    """Return the results of the client in *checks*, or in all."""
    script = SCRIPTS / "brpc_client.py"
    found: Mapping[str, Any] = client.run(script, gateway.addresses[BRPC], *checks)
    return found


def check(seen: Mapping[str, Any]) -> None:
    """Compare the results with the expected ones."""
    for name, (key, number, text) in REFUSED.items():
        if name in seen:
            assert number == seen[name].get(key), (name, seen[name])
            assert text in seen[name]["text"]
    if "model" in seen:
        assert "name: add_sub" in seen["model"]["text"]
    rest = {name: value for name, value in seen.items() if name not in {*REFUSED, "model"}}
    assert {name: EXPECTED[name] for name in rest} == rest


def check_all(seen: Mapping[str, Any]) -> None:
    """Compare the results, and check that none is missing."""
    assert EXPECTED.keys() | REFUSED.keys() | {"model"} == seen.keys()
    check(seen)


def test_models_in_process(brpc_client: Client, tmp_path: Path) -> None:
    """In-process models reply to every check of the client."""
    with in_process(tmp_path) as gateway:
        check_all(seen_by(brpc_client, gateway))


def test_second_gateway(brpc_client: Client, tmp_path: Path) -> None:
    """Through two gateways, with brpc between them, the client sees the same."""
    with (
        in_process(tmp_path) as behind,
        serving("--upstream", f"grps+brpc://{behind.addresses[BRPC]}", *FLAGS) as gateway,
    ):
        check_all(seen_by(brpc_client, gateway))


def test_triton_over_grpc(triton_server: RunningServer, brpc_client: Client) -> None:
    """The real Triton, which has no brpc, replies to every check of the client."""
    upstream = f"oip+grpc://{triton_server.grpc_address}"
    with serving("--upstream", upstream, *FLAGS) as gateway:
        check_all(seen_by(brpc_client, gateway))


def test_independent_server(brpc_client: Client) -> None:
    """An independent client calls an independent server through the gateway."""
    checks = [f"{name} {compress}" for name in ("fp32", "bytes") for compress in range(4)]
    checks += [f"attachment {compress}" for compress in range(4)]
    checks += ["unnamed", "text", "bytes", "large", "byte by byte", "live", "ready", "http"]
    checks += ["missing input", "failing model", "model"]
    with (
        independent_server() as port,
        serving("--upstream", f"grps+brpc://127.0.0.1:{port}", *FLAGS, *TIMED) as gateway,
    ):
        check(seen_by(brpc_client, gateway, *checks))
        unknown = seen_by(brpc_client, gateway, "unknown model")
    # The text of a server of the same protocol is forwarded unchanged.
    failure = {"status": 500, "text": "[ExecutorException] Not found model: nobody"}
    assert {"unknown model": failure} == unknown


def test_independent_server_from_open_inference() -> None:
    """Clients of Open Inference reach the server, also for an unknown model."""
    rows = [
        {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))},
        {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [3] * 16},
    ]
    with (
        independent_server() as port,
        serving("--upstream", f"grps+brpc://127.0.0.1:{port}", *FLAGS, *TIMED) as gateway,
    ):
        answers = [
            get(gateway.url("/v2/models/add_sub/infer"), {"inputs": rows}) for _ in range(20)
        ]
        unknown, body = get(gateway.url("/v2/models/nobody/infer"), {"inputs": rows})
    assert [(200, [SUM, DIFFERENCE])] * 20 == [
        (status, [output["data"] for output in answer["outputs"]]) for status, answer in answers
    ]
    assert 404 == unknown
    assert "nobody" in body["error"]


def test_the_oracle_unpacks_its_own_compressions() -> None:
    """The oracle is consistent, so it can verify our codec."""
    data = b"abcabcabc" * 40_000
    assert [data] * 4 == [oracle.unpack(kind, oracle.pack(kind, data)) for kind in range(4)]
