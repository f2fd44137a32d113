"""The status of a whole gateway: as JSON, as a page, for probes and on a terminal."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.cli.status import status_lines
from gateway.config.load import load_text
from tests.integration.asking_kit import running
from tests.integration.cli_kit import gateway as command
from tests.integration.cli_kit import get, serving
from tests.integration.workers_kit import PATIENCE_S, ask, connect, eventually, metrics

# A gateway and four commands start in one test: 3 s, and ten times that on a machine with other work.
pytestmark = pytest.mark.timeout(90)

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:{port}", metrics: null}}
lifecycle: {{ready: {ready}, pre_stop: 0s, drain: 1s}}
upstreams:
  dead: {{url: "oip+http://127.0.0.1:1", headers: {{authorization: "hidden-token"}}}}
models:
  sum: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
routes:
  - {{name: own, match: {{model: sum}}, targets: [{{model: sum}}]}}
  - {{name: away, match: {{model: far}}, targets: [{{upstream: dead}}]}}
"""

FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams: {{up: {{url: "oip+http://{address}"}}}}
"""


async def fetch(gateway: Gateway, path: str, accept: str = "*/*") -> tuple[int, str]:
    url = f"http://{gateway.addresses['admin']}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Accept": accept}) as response,
    ):
        return response.status, await response.text()


@pytest.mark.usefixtures("json_logs")
async def test_status_names_unready_routes_and_endpoints() -> None:
    """Routes and endpoints have their reason, and the document has no secrets."""
    async with running(CONFIG.format(port=0, ready="any")) as gateway:
        code, text = await fetch(gateway, "/status")
        document: dict[str, Any] = json.loads(text)
        own, away = document["routes"]
        assert (200, True, True) == (code, document["ready"], own["ready"])
        assert (False, ["dead"]) == (away["ready"], away["targets"])
        assert away["reason"].startswith("upstream dead: endpoint 127.0.0.1:1: cannot connect")
        (upstream,) = document["upstreams"]
        (endpoint,) = upstream["endpoints"]
        assert ("127.0.0.1:1", False) == (endpoint["address"], endpoint["ready"])
        assert 0 == document["limits"]["route_in_flight"]["own"]
        assert "endpoint not ready" in [each["event"] for each in document["warnings"]]
        assert gateway.addresses == document["listeners"]
        assert "hidden-token" not in text


async def test_drained_endpoint_is_reported_as_drained() -> None:
    """The reason of the endpoint and of its route is "drained", not "ejected"."""
    async with running(CONFIG.format(port=0, ready="any")) as server:
        address = server.addresses["main.http"]
        gateway = Gateway(load_text(FRONT.format(address=address)), drained={f"up/{address}"})
        await gateway.start()
        try:
            document = json.loads((await fetch(gateway, "/status"))[1])
        finally:
            await gateway.stop()
    ((route,), (upstream,)) = document["routes"], document["upstreams"]
    assert f"upstream up: endpoint {address}: drained" == route["reason"]
    assert [(False, "drained")] == [
        (endpoint["available"], endpoint["reason"]) for endpoint in upstream["endpoints"]
    ]


async def test_the_status_sends_browsers_to_the_pages() -> None:
    """A browser accepts text/html; programs get the document."""
    async with (
        running(CONFIG.format(port=0, ready="any")) as gateway,
        aiohttp.ClientSession() as it,
    ):
        url, browser = f"http://{gateway.addresses['admin']}/status", {"Accept": "text/html,*/*"}
        async with it.get(url, headers=browser, allow_redirects=False) as response:
            assert (307, "/ui/") == (response.status, response.headers["location"])


@pytest.mark.parametrize(("ready", "status"), [("any", 200), ("all", 503)])
async def test_verbose_readiness_names_the_routes(ready: str, status: int) -> None:
    """The status is that of the probe, and the missing route names its endpoint."""
    async with running(CONFIG.format(port=0, ready=ready)) as gateway:
        code, text = await fetch(gateway, "/readyz?verbose")
        document = json.loads(text)
        assert (status, status == 200) == (code, document["ready"])
        (missing,) = document["missing"]
        assert "away" == missing["name"]
        assert "127.0.0.1:1" in missing["reason"]
        assert status == (await fetch(gateway, "/readyz"))[0]


async def test_terminal_shows_the_status() -> None:
    """The text has the routes and endpoints that are not ready."""
    async with running(CONFIG.format(port=0, ready="all")) as gateway:
        text = "\n".join(status_lines(json.loads((await fetch(gateway, "/status"))[1])))
        assert "not ready: not every one of the required routes is ready" in text
        assert "away" in text
        assert "dead" in text


def test_top_shows_current_traffic(tmp_path: Path) -> None:
    """A view counts the calls of its window, and names the unready endpoint."""
    path = tmp_path / "g.yaml"
    path.write_text(CONFIG.format(port=0, ready="any"))
    with serving(str(path), patience_s=PATIENCE_S) as gateway, ThreadPoolExecutor(1) as caller:
        with closing(connect(gateway)) as connection:
            assert ask(connection, model="sum") == 200
        eventually(lambda: "gateway_upstream_ready{" in metrics(gateway))
        found = caller.submit(
            command, "top", gateway.addresses["admin"], "--count=1", "--interval=2", "--output=json"
        )
        calls = 0
        while not found.done():
            with closing(connect(gateway)) as connection:
                calls += ask(connection, model="sum") == 200
        result = found.result()
        assert result.returncode == 0, result.stderr
        (view,) = map(json.loads, result.stdout.splitlines())
        (route,), (target,) = view["routes"], view["targets"]
        (endpoint,) = view["endpoints"]
        text = command("top", gateway.addresses["admin"], "--count=1", "--interval=0.1").stdout
    assert (["own"], ["own", "local/sum"]) == (route["names"], target["names"])
    seconds = view["seconds"] - 0.05  # at least, since it is rounded
    assert 0 < route["per_s"] * seconds <= calls + 1.5  # with the call before
    assert (route["failed"], route["per_s"]) == (0, target["per_s"])
    assert route["p99_ms"] >= route["p50_ms"] > 0
    assert (["dead", "127.0.0.1:1"], False) == (endpoint["names"], endpoint["is_ready"])
    assert "local/sum" in text
    assert 1 == command("top", "127.0.0.1:1").returncode


def test_supervisor_serves_the_status_of_all_workers(tmp_path: Any) -> None:
    """The supervisor shows the status of a worker, and a row for each of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "g.yaml"
    path.write_text(CONFIG.format(port=port, ready="any") + "workers: 2\n")
    with serving(str(path), patience_s=45.0) as gateway:
        code, document = get(gateway.url("/status", "admin"))
        assert (200, True) == (code, document["ready"])
        assert [1, 2] == [each["worker"] for each in document["workers"]]
        assert ["own", "away"] == [route["name"] for route in document["routes"]]
        found = command("status", f"127.0.0.1:{port}")
        assert (0, True) == (found.returncode, "away" in found.stdout)
    after_stop = command("status", f"127.0.0.1:{port}")
    assert (1, True) == (after_stop.returncode, "no admin port" in after_stop.stderr)
