"""The load of the gateway in headers and trailers, as foreign clients read them."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest

from tests.integration.cli_kit import Running, serving
from tests.integration.http2_kit import h2_client
from tests.integration.workers_kit import BODY

pytestmark = pytest.mark.timeout(60)

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0", transport: {transport}}}]
admin: {{address: null, metrics: null}}
models: {{simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}}}
telemetry: {{metrics: {{orca: true}}}}
"""
FORMAT = "endpoint-load-metrics-format"


@pytest.fixture(scope="module", params=["native", "reference"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("load") / "gateway.yaml"
    path.write_text(CONFIG.format(transport=request.param))
    with serving(str(path)) as found:
        yield found


def headers_of(running: Running, form: str | None) -> dict[str, str]:
    fields = {} if form is None else {FORMAT: form}
    with closing(HTTPConnection(running.addresses["main.http"], timeout=60)) as connection:
        connection.request("POST", "/v2/models/simple/infer", BODY, fields)
        response = connection.getresponse()
        assert 200 == response.status, response.read()
        return {name.lower(): value for name, value in response.getheaders()}


def test_http_clients_get_the_load_on_request(running: Running) -> None:
    """A client that does not ask gets no header."""
    document = json.loads(
        headers_of(running, "JSON")["endpoint-load-metrics"].removeprefix("JSON ")
    )
    assert {"queue": 0} == document["named_metrics"]
    assert 0 < document["mem_utilization"] < 1
    assert headers_of(running, "TEXT")["endpoint-load-metrics"].startswith("TEXT cpu_utilization=")
    assert headers_of(running, "BIN")["endpoint-load-metrics-bin"]
    assert not any(name.startswith("endpoint-load") for name in headers_of(running, None))


async def test_grpc_clients_get_the_load_in_trailers(running: Running) -> None:
    """The library of gRPC keeps the binary form for its balancers, so that the frames are read."""
    path, body = "/inference.GRPCInferenceService/ModelReady", b"\0\0\0\0\x08\x0a\x06simple"
    fields = [("content-type", "application/grpc"), ("te", "trailers")]
    async with h2_client(running.addresses["main.grpc"]) as client:
        call = await client.ask("POST", path, body, [*fields, (FORMAT, "BIN")])
        assert "0" == call.headers["grpc-status"]
        message = b64decode(call.headers["endpoint-load-metrics-bin"] + "==")
        assert (b"\x09", b"\x11") == (message[:1], message[9:10])
        call = await client.ask("POST", path, body, [*fields, (FORMAT, "TEXT")])
        assert call.headers["endpoint-load-metrics"].startswith("TEXT cpu_utilization=")
        call = await client.ask("POST", path, body, fields)
        assert not any(name.startswith("endpoint-load") for name in call.headers)
