"""One address for HTTP/1, HTTP/2 and gRPC, with foreign clients: aiohttp, h2, grpcio."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import grpc
import pytest
import trustme

from tests.integration.cli_kit import Running, gateway, serving
from tests.integration.http2_kit import h2_client
from tests.integration.workers_kit import BODY

pytestmark = pytest.mark.timeout(60)

NAME = "main.http+grpc"
BRPC = "main.grps.brpc"
CONFIG = """
version: 1
{workers}
listeners:
  - address: 127.0.0.1:0
    streams: [{{protocol: grps, address: 127.0.0.1:0}}]
    {more}
admin: {{address: null, metrics: null}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
"""


@pytest.fixture(scope="module", params=["", "workers: 2"], ids=["one_process", "two_workers"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A gateway that listens on one port for all, and on one for brpc."""
    path = tmp_path_factory.mktemp("one-port") / "gateway.yaml"
    path.write_text(CONFIG.format(workers=request.param, more=""))
    with serving(str(path), patience_s=45) as found:
        yield found


async def test_http_1_with_aiohttp(running: Running) -> None:
    """HTTP/1 needs no preface."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(running.url("/v2/models/simple/infer", NAME), data=BODY) as response,
    ):
        assert 200 == response.status
        assert "simple" == (await response.json())["model_name"]


async def test_http_2_with_prior_knowledge(running: Running) -> None:
    """Requests over HTTP/2 get the responses of HTTP/1."""
    async with h2_client(running.addresses[NAME]) as client:
        for _ in range(3):
            response = await client.ask("POST", "/v2/models/simple/infer", BODY.encode())
            assert 200 == response.status
            assert "simple" == json.loads(response.body)["model_name"]
        assert 404 == (await client.ask("GET", "/nothing")).status


def test_grpc_with_grpcio(running: Running) -> None:
    """Calls and health work as on a port of gRPC alone."""
    with grpc.insecure_channel(running.addresses[NAME]) as channel:
        ready = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
        assert b"\x08\x01" == ready(b"\x0a\x06simple", timeout=60)
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert b"\x08\x01" == check(b"", timeout=60)


async def test_grpc_and_http_share_an_http_2_connection(running: Running) -> None:
    """The content type decides whether a stream is a gRPC call."""
    async with h2_client(running.addresses[NAME]) as client:
        fields = [("content-type", "application/grpc"), ("te", "trailers")]
        path = "/inference.GRPCInferenceService/ServerLive"
        call = await client.ask("POST", path, bytes(5), fields)
        assert ("0", b"\0\0\0\0\2\x08\1") == (call.headers["grpc-status"], bytes(call.body))
        assert 200 == (await client.ask("GET", "/v2/health/live")).status
        assert 404 == (await client.ask("POST", path, b"{}")).status


@pytest.mark.parametrize("name", [NAME, BRPC])
async def test_status_page_of_grps_in_both_versions(running: Running, name: str) -> None:
    """It is at `/` of each listener that serves grps, over either version."""
    async with aiohttp.ClientSession() as session, session.get(running.url("/", name)) as response:
        assert (200, True) == (response.status, "<h1>grps</h1>" in await response.text())
    async with h2_client(running.addresses[name]) as client:
        answer_2 = await client.ask("GET", "/")
        assert (200, True) == (answer_2.status, b"<h1>grps</h1>" in answer_2.body)


async def test_http_2_on_the_brpc_port(running: Running) -> None:
    """Responses over HTTP/2 are those of HTTP/1."""
    body = json.dumps({"inputs": []}).encode()
    responses = []
    async with aiohttp.ClientSession() as session, h2_client(running.addresses[BRPC]) as client:
        for path in ("/GrpsBrpcService/CheckLiveness", "/nothing"):
            async with session.get(running.url(path, BRPC)) as response:
                responses.append((response.status, await response.read()))
            found = await client.ask("GET", path)
            assert responses[-1] == (found.status, bytes(found.body))
        other = await client.ask("POST", "/v2/models/simple/infer", body)
    assert [200, 404, 404] == [status for status, _ in responses] + [other.status]


async def test_alpn_selects_the_version(tmp_path: Path) -> None:
    """One port serves all three over TLS; clients choose by ALPN."""
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1", "localhost")
    pair.private_key_pem.write_to_path(tmp_path / "server.key")
    for blob in pair.cert_chain_pems:
        blob.write_to_path(tmp_path / "server.pem", append=True)
    path = tmp_path / "gateway.yaml"
    tls = "tls: {cert: server.pem, key: server.key}"
    path.write_text(CONFIG.format(workers="", more=tls))
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with serving(str(path)) as found:
        url = found.url("/v2/health/live", NAME).replace("http:", "https:")
        async with aiohttp.ClientSession() as session, session.get(url, ssl=trusted) as response:
            assert 200 == response.status
        trusted.set_alpn_protocols(["h2"])
        async with h2_client(found.addresses[NAME], trusted) as client:
            assert 200 == (await client.ask("GET", "/v2/health/live")).status
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        async with grpc.aio.secure_channel(found.addresses[NAME], credentials) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert b"\x08\x01" == await live(b"", timeout=60)


def test_reference_implementation_is_rejected_by_line(tmp_path: Path) -> None:
    """Aiohttp has no HTTP/2, so it cannot share a port with gRPC."""
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(workers="", more="transport: reference"))
    done = gateway("validate", str(path))
    assert 0 != done.returncode
    text = done.stdout + done.stderr
    assert f"{path}:5:14: listeners[0].address: 'transport: reference' cannot serve" in text
    assert "use 'transport: native', or 'http' and 'grpc'" in text
