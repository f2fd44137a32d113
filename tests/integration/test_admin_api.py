"""`/api/v1/` of a running gateway: its documents, and the requests that it rejects."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.admin.event_hub import MAX_LISTENERS
from gateway.app import Gateway
from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import admin_routers
from gateway.app.build.parts import LeadingParts
from gateway.app.run.reload import Reloader
from gateway.config.admin import AdminConfig
from gateway.config.load import load_text
from gateway.transports.choice import TransportImplementation, http_server_class
from gateway.transports.contract import HttpMount, ServerLimits
from gateway.transports.memory_budget import MemoryBudget
from tests.admin_kit import Process
from tests.integration.cli_kit import gateway as command
from tests.integration.cli_kit import get, serving

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", metrics: null, token: "0123456789abcdef", hosts: [known.example]}
lifecycle: {ready: any, pre_stop: 0s, drain: 1s}
upstreams:
  dead: {url: "oip+http://127.0.0.1:1", headers: {authorization: "hidden-token"}}
models:
  sum: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
routes:
  - {name: own, match: {model: sum}, targets: [{model: sum}]}
  - {name: away, match: {model: far}, targets: [{upstream: dead, weight: 3}, {upstream: dead, model: other}]}
"""


@asynccontextmanager
async def started(
    text: str = CONFIG, leading: LeadingParts | None = None
) -> AsyncIterator[Gateway]:
    """Run a gateway with its admin port and all pages."""
    loaded = load_text(text)
    gateway = Gateway(loaded)
    reloader = Reloader(lambda: loaded, loaded, gateway.reload)
    await gateway.start(reloader, leading or LeadingParts({}))
    try:
        yield gateway
    finally:
        await gateway.stop()


async def fetch(
    gateway: Gateway, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    url = f"http://{gateway.addresses['admin']}/api/v1/{path}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=named) as response,
    ):
        return response.status, json.loads(await response.read() or b"{}"), response.headers


async def test_serves_status_and_config() -> None:
    """Status with traffic and weights, and the configuration without secrets."""
    async with started() as gateway:
        code, status, headers = await fetch(gateway, "status")
        assert (200, "no-store", "nosniff") == (
            code,
            headers["cache-control"],
            headers["x-content-type-options"],
        )
        assert {"own": {"local/sum": 1}, "away": {"dead": 3, "dead/other": 1}} == status["weights"]
        assert {
            *("window_s", "per_s", "rejected_per_s", "connections"),
            *("routes", "targets", "models", "endpoints"),
        } == status["traffic"].keys()
        code, document, _ = await fetch(gateway, "config")
        text = json.dumps(document)
        assert (200, False, False) == (code, "hidden-token" in text, "0123456789abcdef" in text)
        assert 404 == (await fetch(gateway, "nothing", x_gateway_admin="1"))[0]
        assert 405 == (await fetch(gateway, "status", "DELETE"))[0]


@pytest.mark.parametrize("path", ["status", "config", "events"])
async def test_dns_rebinding_is_rejected(path: str) -> None:
    """A request with a foreign Host is rejected, as a page of evil.example would send it."""
    async with started() as gateway:
        code, error, _ = await fetch(gateway, path, Host="evil.example:9901")
        assert 403 == code
        assert error["error"].startswith("host is 'evil.example:9901': not a name of this gateway")


async def test_events_reach_a_limited_number_of_listeners() -> None:
    """Each listener gets the latest of each event; the seventeenth listener is rejected."""
    async with started() as gateway, AsyncExitStack() as stack:
        url = f"http://{gateway.addresses['admin']}/api/v1/events"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(MAX_LISTENERS):
            response = await stack.enter_async_context(session.get(url))
            assert (200, "text/event-stream") == (response.status, response.content_type)
            async with asyncio.timeout(45):
                while not (await response.content.readline()).startswith(b"event: status"):
                    pass
                data = await response.content.readline()
            assert {"ready", "reason", "traffic", "weights"} == json.loads(data[6:]).keys()
        async with session.get(url) as refused:
            assert (503, "5") == (refused.status, refused.headers["retry-after"])


def test_supervisor_serves_the_api_of_all_workers(tmp_path: Path) -> None:
    """The supervisor serves the API, and commands of the terminal reach it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "g.yaml"
    path.write_text(
        CONFIG.replace('"127.0.0.1:0", metrics', f'"127.0.0.1:{port}", metrics') + "workers: 2\n"
    )
    with serving(str(path), patience_s=60.0) as gateway:
        code, document = get(gateway.url("/api/v1/status", "admin"))
        assert (200, [1, 2]) == (code, [each["worker"] for each in document["workers"]])
        assert 0 == command("reload", "--admin", f"127.0.0.1:{port}").returncode


@pytest.mark.parametrize("transport", ["native", "reference"])
@pytest.mark.parametrize(
    ("budget", "body", "headers", "expected"),
    [
        (100_000, b"", {}, (200, "")),
        (1_000_000, b"x" * 2_000, {}, (413, "2000 bytes")),
        (1_000_000, b"x", {"content-encoding": "x"}, (415, "coding")),
        (1_000_000, b"x", {"content-encoding": "gzip"}, (400, "gzip")),
    ],
    ids=["in parts", "too large", "unknown coding", "damaged"],
)
async def test_a_page_larger_than_the_memory_budget_is_sent_in_parts(
    transport: TransportImplementation,
    budget: int,
    body: bytes,
    headers: dict[str, str],
    expected: tuple[int, str],
) -> None:
    """Errors of the request are 4xx."""

    class Large(Process):
        async def page(self, _accept: str, /) -> tuple[bytes, str]:
            return b"x" * 300_000, "text/plain"

    server = http_server_class(transport)(
        "127.0.0.1",
        0,
        mounts=[HttpMount(("",), admin_routers(AdminConfig(), RunningGateway(Large()))["admin"])],
        limits=ServerLimits(message_bytes=1_000),
        budget=MemoryBudget(budget),
    )
    await server.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                "GET", f"http://{server.address}/metrics", data=body, headers=headers
            ) as response,
        ):
            found = await response.read()
            assert expected[0] == response.status
            if expected[0] == 200:
                assert found == b"x" * 300_000
            else:
                assert expected[1] in json.loads(found)["error"]
    finally:
        await server.stop()


def test_the_admin_port_is_a_unix_socket(tmp_path: Path) -> None:
    """Commands ask it, its requests are those of this machine, and its file is not for others."""
    path, file = tmp_path / "admin.sock", tmp_path / "gateway.yaml"
    roles = "local: [read, operate], tokens: [{name: ops, roles: [read], token: 0123456789abcdef}]"
    file.write_text(
        f'version: 1\nlisteners: [{{http: "127.0.0.1:0"}}]\n'
        f'admin: {{address: "unix:{path}", metrics: null, {roles}}}\n'
        "models: {m: {backend: python, options: {callable: "
        '"gateway.backends.examples:identity_fp32"}}}\nlifecycle: {pre_stop: 0s}\n'
    )
    with serving(str(file)) as running:
        assert 0o660 == stat.S_IMODE(path.stat().st_mode)
        for words in (
            ("reload", f"unix:{path}"),
            ("reload", "--admin", f"unix:{path}"),
            ("status", f"unix:{path}"),
            ("health", "--live", f"unix:{path}"),
            ("health", f"unix:{path}", "--live"),
        ):
            done = command(*words)
            assert (words, 0) == (words, done.returncode), done.stderr
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))
            client.sendall(b"GET /config HTTP/1.1\r\nHost: localhost\r\n")
            client.sendall(b"X-Forwarded-For: 1.2.3.4\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 401"
        assert 0 == running.stop()
    assert not path.exists()
