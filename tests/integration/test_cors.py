"""Web pages of other origins: preflights, and which responses their scripts may read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from gateway.config.load import ConfigError, load_text
from tests.integration.asking_kit import running
from tests.integration.http2_kit import h2_client

CONFIG = """
version: 1
listeners:
  - {{http: "127.0.0.1:0", transport: {transport}, cors: {{origins: [{origins}], max_age: 2m}}}}
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
"""
TRANSPORTS = pytest.mark.parametrize("transport", ["native", "reference"])
PAGE = "https://app.example.com"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type, inference-header-content-length",
}

PROTOCOL_HEADERS = {
    "ce-id",
    "content-type",
    "inference-header-content-length",
    "nv-inferrequest",
    "return-ndarray",
    "seldon-puid",
    "ts_request_sequence_id",
    "x-amzn-sagemaker-custom-attributes",
    "x-api-key",
    "x-stainless-lang",
}
"""Headers of requests, of which each belongs to another protocol or is a credential."""
KEY_FILE = """
version: 1
salt: 9f86d081884c7d659a2feaa0c55ad015
keys: []
"""


def config(transport: str, origins: str = f'"{PAGE}"') -> str:
    return CONFIG.format(transport=transport, origins=origins)


@TRANSPORTS
async def test_a_preflight_of_a_listed_origin_is_allowed(transport: str) -> None:
    """It names methods, headers and the time to remember it, and allows no cookies."""
    async with running(config(transport)) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}/v2/models/simple/infer"
        async with session.options(url, headers=PREFLIGHT) as response:
            found = response.headers
            assert 204 == response.status
        other = {**PREFLIGHT, "Origin": "https://evil.example"}
        async with session.options(url, headers=other) as response:
            assert 403 == response.status
            assert "Access-Control-Allow-Origin" not in response.headers
    assert PAGE == found["Access-Control-Allow-Origin"]
    assert "GET, HEAD, POST, PUT" == found["Access-Control-Allow-Methods"]
    assert PROTOCOL_HEADERS <= set(found["Access-Control-Allow-Headers"].split(", "))
    assert "120" == found["Access-Control-Max-Age"]
    assert "Origin" in found["Vary"]
    assert "Access-Control-Allow-Credentials" not in found


@TRANSPORTS
async def test_a_preflight_has_its_response_for_each_path(transport: str) -> None:
    """Only then does a page read that its path is wrong; other requests for it get 404."""
    async with running(config(transport)) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}/nothing"
        for origin, status in ((PAGE, 204), ("https://evil.example", 403)):
            headers = {**PREFLIGHT, "Origin": origin}
            for _ in range(2):
                async with session.options(url, headers=headers) as response:
                    assert status == response.status
        async with session.options(url, headers={"Origin": PAGE}) as response:
            assert 404 == response.status


@TRANSPORTS
async def test_a_preflight_does_not_wait_for_a_body(transport: str) -> None:
    """Browsers send none; after a part of one, the connection ends with the response."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in PREFLIGHT.items())
    head = f"OPTIONS /v2/health/live HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: 9\r\n\r\n"
    async with running(config(transport)) as gateway:
        host, port = gateway.addresses["main.http"].rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + b"part")
        response = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert response.startswith(b"HTTP/1.1 204 ")
    assert b"connection: close" in response.lower()


@TRANSPORTS
async def test_scripts_of_a_listed_origin_read_responses_and_errors(transport: str) -> None:
    """Those of other origins do not, and programs without an origin are served as before."""
    async with running(config(transport)) as gateway, aiohttp.ClientSession() as session:
        base = f"http://{gateway.addresses['main.http']}"
        for path, status in (("/v2/health/live", 200), ("/v2/models/none", 404), ("/x", 404)):
            for origin, allowed in ((PAGE, PAGE), ("https://evil.example", None), (None, None)):
                headers = {} if origin is None else {"Origin": origin}
                async with session.get(base + path, headers=headers) as response:
                    assert status == response.status
                    assert allowed == response.headers.get("Access-Control-Allow-Origin")
                    exposed = response.headers.get("Access-Control-Expose-Headers", "")
                    for name in ("inference-header-content-length", "ts_stream_next"):
                        assert (allowed is not None) == (name in exposed)


@TRANSPORTS
async def test_all_origins_can_be_allowed(transport: str) -> None:
    """The response is then the same for all."""
    async with running(config(transport, '"*"')) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}/v2/health/live"
        for method in ("OPTIONS", "GET"):
            async with session.request(method, url, headers=PREFLIGHT) as response:
                assert response.status in {200, 204}
                assert "*" == response.headers["Access-Control-Allow-Origin"]


async def test_http2_has_the_same_rules() -> None:
    """Browsers use it over TLS."""
    async with (
        running(config("native")) as gateway,
        h2_client(gateway.addresses["main.http"]) as client,
    ):
        headers = [(name.lower(), value) for name, value in PREFLIGHT.items()]
        assert 204 == (await client.ask("OPTIONS", "/nothing", fields=headers)).status
        found = await client.ask("OPTIONS", "/v2/health/live", fields=headers)
        assert 204 == found.status
        assert PAGE == dict(found.headers)["access-control-allow-origin"]
        found = await client.ask("GET", "/v2/health/live", fields=[("origin", PAGE)])
        assert PAGE == dict(found.headers)["access-control-allow-origin"]


@TRANSPORTS
async def test_a_preflight_needs_no_credential(transport: str, tmp_path: Path) -> None:
    """Pages may send the header that the configuration names for keys, and read refusals."""
    (tmp_path / "keys.yaml").write_text(KEY_FILE)
    text = config(transport) + "security: {keys: {file: keys.yaml, header: x-shop-key}}\n"
    async with running(text, tmp_path) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}/v2/models/simple/infer"
        async with session.options(url, headers=PREFLIGHT) as response:
            assert 204 == response.status
            allowed = response.headers["Access-Control-Allow-Headers"].split(", ")
        async with session.post(url, headers={"Origin": PAGE}) as response:
            assert 401 == response.status
            assert PAGE == response.headers["Access-Control-Allow-Origin"]
            assert "www-authenticate" in response.headers["Access-Control-Expose-Headers"]
    assert (1, 0) == (allowed.count("x-shop-key"), allowed.count("x-api-key"))


@TRANSPORTS
async def test_without_cors_nothing_is_allowed(transport: str) -> None:
    """A preflight is a request for a method that the path does not have."""
    text = config(transport)
    text = text.replace(f', cors: {{origins: ["{PAGE}"], max_age: 2m}}', "")
    async with running(text) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}/v2/health/live"
        async with session.options(url, headers=PREFLIGHT) as response:
            assert response.status not in {200, 204}
            assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("origin", ['"https://a.example/path"', "app.example.com", '""'])
def test_other_origins_are_refused_by_line(origin: str, tmp_path: Path) -> None:
    """The error has the form that browsers send."""
    with pytest.raises(ConfigError, match="an origin without a path, as in https://app"):
        load_text(config("native", origin), directory=tmp_path)
