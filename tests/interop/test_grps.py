"""Clients of grps that know nothing of the gateway: requests, curl, and stubs made by protoc.

The same steps before models in the gateway's own process, before the real Triton, and before a
second gateway that is asked as a grps server.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.cli_kit import Running
from tests.interop.client import ROOT, SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import serving
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

OK = {"code": 200, "msg": "OK", "status": "SUCCESS"}
ROW = list(range(16))


def _tensor(name: str, dtype: str, shape: list[int], **data: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, **data}


SUMS = [
    _tensor("OUTPUT0", "DT_INT32", [1, 16], flat_int32=[2 * n for n in ROW]),
    _tensor("OUTPUT1", "DT_INT32", [1, 16], flat_int32=[0] * 16),
]
MAP = {
    "s_s": {"word": "hällo"},
    "s_b": {"raw": base64.b64encode(b"\x00\xff").decode()},
    "s_i32": {"i": 1},
    "s_i64": {"l": "9007199254740993"},
    "s_f": {"f": 0.5},
    "s_d": {"d": 2.25},
}
WORDS = [{"status": OK, "str_data": word} for word in ("hello", " out", " there")]
UP = [200, {"status": OK}]
EXPECTED: Mapping[str, Any] = {
    "http live": UP,
    "http online": UP,
    "http ready": UP,
    "http text": [200, {"status": OK, "str_data": "hello grps."}],
    "http stream": [200, WORDS],
    "http integers in floats": [
        200,
        {
            "status": OK,
            "gtensors": {
                "tensors": [_tensor("OUTPUT0", "DT_FLOAT32", [2], flat_float32=[1.0, 2.0])]
            },
        },
    ],
    "http tensors": [200, {"status": OK, "gtensors": {"tensors": SUMS}}],
    "http map": [200, {"status": OK, "gmap": MAP}],
    "http ndarray": [200, {"status": OK, "ndarray": [[1.0, 2.5]]}],
    "http bytes": [
        200,
        "application/octet-stream",
        base64.b64encode(b"\x00\xff hello grps.").decode(),
    ],
    "grpc live": {"status": OK},
    "grpc online": {"status": OK},
    "grpc ready": {"status": OK},
    "grpc text": {"status": OK, "str_data": "hello grps."},
    "grpc stream": WORDS,
    "grpc tensors": {"status": OK, "gtensors": {"tensors": SUMS}},
    "grpc floats": {
        "status": OK,
        "gtensors": {
            "tensors": [
                _tensor("OUTPUT0", "DT_FLOAT32", [4], flat_float32=[1.5, -2.0, 3.0e38, 0.1])
            ]
        },
    },
    "grpc small integers": {
        "status": OK,
        "gtensors": {"tensors": [_tensor("OUTPUT0", "DT_INT8", [2], flat_int8=[-128, 127])]},
    },
    "grpc bytes": {"status": OK, "bin_data": base64.b64encode(b"\x00\xff").decode()},
    "grpc map": {"status": OK, "gmap": MAP},
}
FAILURES: Mapping[str, tuple[int, str]] = {
    "http unknown": (404, "nobody"),
    "grpc unknown": (404, "nobody"),
    "grpc nothing": (400, "no data"),
}
MODEL = {
    "inputs": [_tensor(name, "DT_INT32", [-1, 16]) for name in ("INPUT0", "INPUT1")],
    "outputs": [_tensor(name, "DT_INT32", [-1, 16]) for name in ("OUTPUT0", "OUTPUT1")],
}
METADATA = ("http server", "http model", "grpc server", "grpc model")

MODELS = {
    "simple": "gateway.backends.examples:simple",
    "text": "gateway.backends.examples:identity_bytes",
    "floats": "gateway.backends.examples:identity_fp32",
    "small": "gateway.backends.examples:identity_int8",
    "speak": "gateway.backends.examples:speak",
    "mapped": "tests.integration.streaming_models:mapped",
}
LISTENING = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
"""


@pytest.fixture(scope="session")
def grps_client() -> Client:
    """Give the environment that holds requests and grpcio-tools."""
    return Client(environment("grps"))


@contextmanager
def in_process(folder: Path) -> Iterator[Running]:
    """Run a gateway with every model of the checks in its own process."""
    lines = [
        f'  {name}: {{backend: python, options: {{callable: "{source}"}}}}\n'
        for name, source in MODELS.items()
    ]
    file = folder / "models.yaml"
    file.write_text(f"{LISTENING}models:\n{''.join(lines)}")
    with serving(str(file)) as gateway:
        yield gateway


def seen_by(client: Client, gateway: Running, *checks: str) -> Mapping[str, Any]:
    """Return what the client sees in *checks*, or in all."""
    addresses = gateway.addresses["main.http"], gateway.addresses["main.grpc"]
    found: Mapping[str, Any] = client.run(
        SCRIPTS / "grps_client.py", *addresses, str(ROOT / "schemas" / "grps"), *checks
    )
    return found


def check(seen: Mapping[str, Any]) -> None:
    """Compare what was seen with what there is to see."""
    for name, value in seen.items():
        document = value[1] if name.startswith("http") else value
        if name in FAILURES:
            code, word = FAILURES[name]
            assert (code, "FAILURE") == (document["status"]["code"], document["status"]["status"])
            assert word in document["status"]["msg"], name
            assert {"status"} == document.keys(), name
        elif name in METADATA:
            metadata = yaml.safe_load(document["str_data"])
            if "server" in name:
                (metadata,) = (model for model in metadata["models"] if model["name"] == "simple")
            assert MODEL == {key: metadata[key] for key in MODEL}, name
        else:
            assert EXPECTED[name] == value, name


def test_models_in_process(grps_client: Client, tmp_path: Path) -> None:
    """In-process models reply to every step of the samples."""
    with in_process(tmp_path) as gateway:
        seen = seen_by(grps_client, gateway)
    assert EXPECTED.keys() | FAILURES.keys() | set(METADATA) == seen.keys()
    check(seen)


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_a_second_gateway_as_a_grps_server(
    grps_client: Client, tmp_path: Path, carrier: str
) -> None:
    """Through two gateways, with grps between them, the clients see the same."""
    with in_process(tmp_path) as behind:
        upstream = f"grps+{carrier}://{behind.addresses[f'main.{carrier}']}"
        with serving(
            "--upstream",
            upstream,
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--admin",
            "off",
        ) as gateway:
            seen = seen_by(grps_client, gateway)
    check(seen)


def test_triton_over_grpc(triton_server: RunningServer, grps_client: Client) -> None:
    """The real Triton, which has no grps, replies to its clients over HTTP and gRPC."""
    upstream = f"oip+grpc://{triton_server.grpc_address}"
    steps = ("http live", "http ready", "http unknown", "grpc live", "grpc ready", "grpc unknown")
    with serving(
        "--upstream", upstream, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off"
    ) as gateway:
        check(seen_by(grps_client, gateway, *steps))
        pair = [_tensor(name, "DT_INT32", [1, 16], flat_int32=ROW) for name in ("INPUT0", "INPUT1")]
        body = {"gtensors": {"tensors": pair}, "model": "add_sub"}
        seen = json.loads(curl(gateway.url("/grps/v1/infer/predict"), body))
    assert {"status": OK, "gtensors": {"tensors": SUMS}} == seen


def test_curl_receives_each_stream_message_as_a_chunk(tmp_path: Path) -> None:
    """The chunks are the replies in order."""
    with in_process(tmp_path) as gateway:
        url = gateway.url("/grps/v1/infer/predict?streaming=true&model=speak")
        text = curl(url, {"str_data": "hello out there"}, "--raw", "-N")
    chunks = text.split("\r\n")
    assert "0" == chunks[-3]
    assert WORDS == [json.loads(chunk) for chunk in chunks[1:-3:2]]


def curl(url: str, body: object, *options: str) -> str:
    """Return the response that curl prints."""
    words = ["curl", "-sS", "-m", "20", "-H", "Content-Type: application/json", *options]
    done = subprocess.run(
        [*words, "-d", json.dumps(body), url], capture_output=True, check=True, timeout=30
    )
    return done.stdout.decode()
