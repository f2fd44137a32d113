"""Standard tools: curl, nghttp and h2load, against either implementation, plain and over TLS."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running
from tests.interop.gateways import make, serving
from tests.interop.programs import program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

FREE = "127.0.0.1:0"
SERVICE = "/inference.GRPCInferenceService"
INFER = "/v2/models/identity_fp32/infer"
GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with certificates and messages."""
    folder = tmp_path_factory.mktemp("tools")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    (folder / "small.grpc").write_bytes(_framed(_call(4)))
    (folder / "large.grpc").write_bytes(_framed(_call(150_528)))
    (folder / "small.json").write_text(json.dumps(_document(4)))
    (folder / "large.json").write_text(json.dumps(_document(30_000)))
    return folder


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Running]:
    """Serve a model in-process: one listener in the clear, one over TLS."""
    tls = {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
    callable_ = {"callable": "gateway.backends.examples:identity_fp32"}
    config = {
        "version": 1,
        "listeners": [
            {"http": FREE, "grpc": FREE},
            {"name": "tls", "http": FREE, "grpc": FREE, "tls": tls},
        ],
        "admin": {"address": FREE, "metrics": None},
        "models": {"identity_fp32": {"backend": "python", "options": callable_}},
        "lifecycle": {"pre_stop": "0s"},
    }
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    with serving(str(file)) as running:
        yield running


def _call(elements: int) -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="INPUT0", datatype="FP32", shape=[1, elements]
    )
    raw = [bytes(4 * elements)]
    request = pb.ModelInferRequest(
        model_name="identity_fp32", inputs=[tensor], raw_input_contents=raw
    )
    return bytes(request.SerializeToString())


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def _document(elements: int) -> dict[str, Any]:
    data = [float(number) for number in range(elements)]
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, elements], "data": data}
    return {"id": "curl", "inputs": [tensor]}


def run(name: str, *arguments: str) -> str:
    """Run a tool and return its output; it must succeed."""
    command = [program(name), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.decode(errors="backslashreplace")


def curl(*arguments: str) -> str:
    """Run curl, quietly."""
    return run("curl", "--silent", "--show-error", "--max-time", "20", *arguments)


# -- curl, HTTP/1

UPLOADS = {
    "length": (),
    "chunked": ("-H", "Transfer-Encoding: chunked"),
    "expect": ("-H", "Expect: 100-continue"),
    "expect_and_chunked": ("-H", "Expect: 100-continue", "-H", "Transfer-Encoding: chunked"),
    "compressed": ("--compressed",),
    "http_1_0": ("--http1.0",),
    "closing": ("-H", "Connection: close"),
    "upgrade_declined": ("--http2",),
}


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("how", UPLOADS)
def test_curl_uploads(gateway: Running, folder: Path, how: str, size: str) -> None:
    """The response is correct for every way to send a body, and curl prints no error."""
    words = (*UPLOADS[how], "--data-binary", f"@{folder}/{size}.json", gateway.url(INFER))
    answer = json.loads(curl(*words))
    sent = json.loads((folder / f"{size}.json").read_text())
    assert ("curl", sent["inputs"][0]["data"]) == (answer["id"], answer["outputs"][0]["data"])


def test_curl_waits_for_continue(gateway: Running, folder: Path) -> None:
    """100 Continue precedes the response and the upload of the body."""
    expect = ("-H", "Expect: 100-continue", "--expect100-timeout", "20", "--include")
    output = curl(*expect, "--data-binary", f"@{folder}/small.json", gateway.url(INFER))
    assert [b"100", b"200"] == re.findall(rb"^HTTP/1.1 ([0-9]+)", output.encode(), re.MULTILINE)


def test_curl_keeps_its_connection(gateway: Running, folder: Path) -> None:
    """Requests of all kinds share one connection, rejected ones included."""
    words = ["--write-out", "%{http_code} %{num_connects} ", "--output", "/dev/null"]
    each = [
        [*words, "--data-binary", f"@{folder}/small.json", gateway.url(INFER)],
        [*words, "--get", gateway.url("/v2/health/ready")],
        [*words, "--data-binary", "{", gateway.url(INFER)],
        [*words, "--get", gateway.url("/v2/models/nobody")],
        [*words, "--head", gateway.url("/v2/health/live")],
        [*words, "--get", gateway.url("/v2")],
    ]
    output = curl(*[word for one in each for word in ("--next", *one)][1:]).split()
    assert ["200", "1", "200", "0", "400", "0", "404", "0"] == output[:8]
    assert ["0", "200", "0"] == output[9:]


def test_curl_sends_head_requests(gateway: Running) -> None:
    """A response to HEAD has no body, and the next response is read correctly."""
    output = curl("--head", gateway.url("/v2/health/live"), "--next", "--get", gateway.url("/v2"))
    head, _, rest = output.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 ")
    assert "name" in json.loads(rest)


# -- curl, TLS and HTTP/2


@pytest.mark.parametrize("offer", [(), ("--http1.1",), ("--no-alpn",)], ids="".join)
def test_curl_over_tls(gateway: Running, folder: Path, offer: tuple[str, ...]) -> None:
    """The HTTP port uses HTTP/2 if curl offers it and the implementation has it."""
    expected = "2" if not offer and make() == "native" else "1.1"
    url = f"https://{gateway.addresses['tls.http']}{INFER}"
    words = (*offer, "--cacert", f"{folder}/ca.pem", "--write-out", "\n%{http_version}")
    answer, version = curl(*words, "--data-binary", f"@{folder}/large.json", url).split("\n")
    assert (expected, "curl") == (version, json.loads(answer)["id"])


@pytest.mark.parametrize("listener", ["main", "tls"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_curl_calls_grpc(gateway: Running, folder: Path, listener: str, size: str) -> None:
    """With prior knowledge or ALPN, the response has one message and its status in the trailers."""
    address = gateway.addresses[f"{listener}.grpc"]
    how = ["--http2-prior-knowledge", f"http://{address}{SERVICE}/ModelInfer"]
    if listener == "tls":
        how = ["--http2", "--cacert", f"{folder}/ca.pem", f"https://{address}{SERVICE}/ModelInfer"]
    files = ["--dump-header", f"{folder}/head", "--output", f"{folder}/answer"]
    data = ["--data-binary", f"@{folder}/{size}.grpc"]
    assert "2" == curl(*how, *GRPC, *files, *data, "--write-out", "%{http_version}")
    head = (folder / "head").read_text()
    assert head.startswith("HTTP/2 200")
    assert "grpc-status: 0" in head.splitlines()
    raw = (folder / "answer").read_bytes()
    answer = pb.ModelInferResponse.FromString(raw[5:])
    sent = pb.ModelInferRequest.FromString((folder / f"{size}.grpc").read_bytes()[5:])
    assert list(sent.raw_input_contents) == list(answer.raw_output_contents)


# -- nghttp

FRAMES = {
    "plain": (),
    "no_header_table": ("--header-table-size=0",),
    "small_windows": ("--window-bits=10", "--connection-window-bits=16"),
    "padding": ("--padding=100",),
    "no_dependencies": ("--no-dep",),
    "several": ("--multiply=20",),
    "large_table": ("--header-table-size=65536", "--encoder-header-table-size=0"),
    "expect": ("--expect-continue",),
}
OWN_FRAMES = pytest.mark.needs("http2_frames")


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize(
    "how", [pytest.param(each, marks=OWN_FRAMES if each == "padding" else ()) for each in FRAMES]
)
def test_nghttp_calls_grpc(gateway: Running, folder: Path, how: str, size: str) -> None:
    """With unusual settings and frames, each call has its status, and nothing is reset."""
    url = f"http://{gateway.addresses['main.grpc']}{SERVICE}/ModelInfer"
    words = ("-nv", "-H", ":method: POST", *GRPC, "-d", f"{folder}/{size}.grpc", *FRAMES[how])
    output = run("nghttp", *words, url)
    assert (20 if how == "several" else 1) == output.count("grpc-status: 0")
    assert "RST_STREAM" not in output
    assert [] == re.findall(r"recv GOAWAY", output)


# -- h2load


LOADS = {
    "one_by_one": ("-n", "300", "-c", "1", "-m", "1"),
    "streams": ("-n", "2000", "-c", "1", "-m", "50"),
    "connections": ("-n", "2000", "-c", "8", "-m", "10"),
    "small_windows": ("-n", "300", "-c", "2", "-m", "10", "-w", "14", "-W", "16"),
    "more_streams_than_allowed": ("-n", "600", "-c", "1", "-m", "150"),
}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(each, marks=OWN_FRAMES if each == "more_streams_than_allowed" else ())
        for each in LOADS
    ],
)
def test_h2load_over_grpc(gateway: Running, folder: Path, how: str) -> None:
    """Every request succeeds, over any number of streams and connections."""
    url = f"http://{gateway.addresses['main.grpc']}{SERVICE}/ModelInfer"
    _loaded(LOADS[how], *GRPC, "-d", f"{folder}/small.grpc", url)


def test_h2load_with_large_messages(gateway: Running, folder: Path) -> None:
    """Messages larger than every window succeed on several concurrent streams."""
    url = f"http://{gateway.addresses['main.grpc']}{SERVICE}/ModelInfer"
    _loaded(("-n", "60", "-c", "2", "-m", "5"), *GRPC, "-d", f"{folder}/large.grpc", url)


@pytest.mark.parametrize("how", ["one_by_one", "connections"])
def test_h2load_over_http1(gateway: Running, folder: Path, how: str) -> None:
    """Pipelined requests of HTTP/1.1 succeed, too."""
    words = ("--h1", "-H", "content-type: application/json", "-d", f"{folder}/small.json")
    _loaded(LOADS[how], *words, gateway.url(INFER))


def _loaded(load: tuple[str, ...], *words: str) -> None:
    total = load[load.index("-n") + 1]
    output = run("h2load", *load, *words)
    expected = (
        f"{total} total, {total} started, {total} done, {total} succeeded, 0 failed, 0 errored"
    )
    assert expected in output, output
    assert f"status codes: {total} 2xx, 0 3xx, 0 4xx, 0 5xx" in output, output
