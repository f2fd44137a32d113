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

from gateway.app import Gateway
from gateway.app.admin.event_hub import MAX_LISTENERS
from gateway.app.admin.router import AdminRouter
from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import admin_routers
from gateway.app.reload import Reloader
from gateway.app.transports import TransportImplementation, http_server_class
from gateway.config.admin import AdminConfig
from gateway.config.load import load_text
from gateway.transports.contract import HttpMount, ServerLimits
from gateway.transports.memory_budget import MemoryBudget
from tests import admin_kit
from tests.admin_kit import Process, router_of
from tests.integration.cli_kit import gateway as command
from tests.integration.cli_kit import get, serving
from tests.unit.migration.admin.kit import Cutover, Evidence, pages

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
migrations:
  fraud: {cutover: {guards: {mismatch: {below: 0.1%}}}}
"""


@asynccontextmanager
async def started() -> AsyncIterator[Gateway]:
    """Run a gateway with its admin port and all pages."""
    loaded = load_text(CONFIG)
    gateway = Gateway(loaded)
    reloader = Reloader(lambda: loaded, loaded, gateway.reload)
    await gateway.start(reloader, pages())
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


async def test_serves_status_config_stock_and_migrations() -> None:
    """Status with traffic and weights, the configuration without secrets, stock and migrations."""
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
        assert 404 == (await fetch(gateway, "stock"))[0]
        _, migrations, _ = await fetch(gateway, "migrations")
        assert ["fraud"] == [each["name"] for each in migrations["migrations"]]
        code, migration, _ = await fetch(gateway, "migrations/fraud")
        assert (200, "fraud", None) == (code, migration["name"], migration["evidence"])
        code, error, _ = await fetch(gateway, "migrations/other")
        assert (404, "unknown migration 'other'; expected one of fraud") == (code, error["error"])
        assert 404 == (await fetch(gateway, "nothing", x_gateway_admin="1"))[0]
        assert 405 == (await fetch(gateway, "status", "DELETE"))[0]


@pytest.mark.parametrize("path", ["status", "config", "migrations", "events", "migrations/fraud"])
async def test_dns_rebinding_is_rejected(path: str) -> None:
    """A request with a foreign Host is rejected, as a page of evil.example would send it."""
    async with started() as gateway:
        code, error, _ = await fetch(gateway, path, Host="evil.example:9901")
        assert 403 == code
        assert error["error"].startswith("host is 'evil.example:9901': not a name of this gateway")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"x_gateway_admin": "1", "Origin": "https://evil.example"}, 403),
        ({"x_gateway_admin": "1", "Sec_Fetch_Site": "cross-site"}, 403),
        ({"x_gateway_admin": "1", "Host": "evil.example"}, 403),
        ({"x_gateway_admin": "1", "Authorization": "Bearer wrong"}, 401),
        ({"x_gateway_admin": "1", "X_Forwarded_For": "10.0.0.9"}, 401),
        # Allowed: this migration has no controller.
        ({"x_gateway_admin": "1"}, 404),
        ({"x_gateway_admin": "1", "Host": "known.example"}, 404),
        (
            {
                "x_gateway_admin": "1",
                "X_Forwarded_For": "10.0.0.9",
                "Authorization": "Bearer 0123456789abcdef",
            },
            404,
        ),
    ],
)
async def test_cross_site_requests_and_wrong_tokens_are_rejected(
    headers: dict[str, str], status: int
) -> None:
    """This holds for commands and for samples, which contain payloads."""
    async with started() as gateway:
        code, error, found = await fetch(gateway, "migrations/fraud/rollback", "POST", **headers)
        assert status == code
        assert (401 == code) == ("www-authenticate" in found)
        assert (404 == code) == ("has no cut-over" in error["error"])
        assert status == (await fetch(gateway, "migrations/fraud/samples/1", **headers))[0]


async def test_a_preflight_gets_no_permission() -> None:
    """A browser sends a preflight request before it sends the header from another site."""
    async with started() as gateway:
        code, _, headers = await fetch(
            gateway, "migrations/fraud/rollback", "OPTIONS", Origin="https://evil.example"
        )
        assert 403 == code
        assert not [name for name in headers if name.lower().startswith("access-control")]


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


def api(evidence: Evidence | None = None, cutover: Cutover | None = None) -> AdminRouter:
    return router_of(CONFIG, pages(evidence, cutover))


async def ask(
    served: AdminRouter, path: str, method: str = "GET", body: bytes = b"", query: str = ""
) -> tuple[int, Any]:
    reply = await admin_kit.ask(served, f"/api/v1/{path}", method, body, query)
    return reply.status, reply.document


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("holds", "holds"), "holds"),
        (("holds", "undecided"), "undecided"),
        (("undecided", "trips"), "trips"),
        ((), "undecided"),
    ],
)
@pytest.mark.parametrize(
    ("method", "query", "statuses"),
    [
        ("GET", "", {}),
        ("POST", "", {"undecided": 409, "trips": 409}),
        ("POST", "as=gate", {"undecided": 403, "trips": 403}),
        ("GET", "as=gate", {"undecided": 403, "trips": 403}),
        ("POST", "as=rollback", {"holds": 403, "undecided": 403}),
        ("POST", "as=check", {"trips": 403}),
    ],
)
async def test_verdict_status_serves_other_controllers(
    verdicts: tuple[str, ...], expected: str, method: str, query: str, statuses: dict[str, int]
) -> None:
    """Argo Rollouts reads the verdict and takes other statuses for errors; Flagger reads statuses."""
    served = api(Evidence(*verdicts))
    code, document = await ask(served, "migrations/fraud/verdict", method, query=query)
    assert (statuses.get(expected, 200), expected) == (code, document["verdict"])


@pytest.mark.parametrize("form", ["Gate", "GET", ""])
async def test_unknown_forms_of_the_verdict_are_refused(form: str) -> None:
    """A misspelt form must not open a gate."""
    served = api(Evidence("holds"))
    code, document = await ask(served, "migrations/fraud/verdict", query=f"as={form}")
    assert (400, True) == (code, "gate, rollback, check" in document["error"])


async def test_serves_samples_and_migration_summaries() -> None:
    """A sample that is no longer kept is 404 with that reason."""
    served = api(Evidence("holds"), Cutover())
    assert (200, {"id": "s"}) == await ask(served, "migrations/fraud/samples/s")
    code, error = await ask(served, "migrations/fraud/samples/%2e%2e")
    assert (404, "sample '..' is not kept (any more)") == (code, error["error"])
    _, found = await ask(served, "migrations")
    assert [
        {
            "name": "fraud",
            "state": "baking",
            "weight": 5,
            "verdict": "holds",
            "sampled": 16,
            "compared": 10,
            "failed": 5,
            "reason": "internal: no GPU",
            "agreement": 0.9,
        }
    ] == found["migrations"]


async def test_cutover_commands_reach_the_controller() -> None:
    """The controller decides on each command; a body may name the step."""
    cutover = Cutover()
    served = api(Evidence(), cutover)
    code, document = await ask(served, "migrations/fraud/pause", "POST", b'{"at_step": 2}')
    assert (200, "baking") == (code, document["cutover"]["state"])
    assert [("fraud", "pause", 2)] == cutover.commands
    code, error = await ask(served, "migrations/fraud/approve", "POST")
    assert (409, True) == (code, "approve is not possible" in error["error"])
    assert 400 == (await ask(served, "migrations/fraud/pause", "POST", b'{"step": 2}'))[0]
    assert 413 == (await ask(served, "migrations/fraud/pause", "POST", b" " * 70_000))[0]
    assert 405 == (await ask(served, "migrations/fraud/pause"))[0]


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
        (100_000, b"", {}, (503, "no memory for a response of 300000 bytes (in_flight_bytes)")),
        (1_000_000, b"", {}, (200, "")),
        (1_000_000, b"x" * 2_000, {}, (413, "2000 bytes")),
        (1_000_000, b"x", {"content-encoding": "x"}, (415, "coding")),
        (1_000_000, b"x", {"content-encoding": "gzip"}, (400, "gzip")),
    ],
    ids=["no room", "room", "too large", "unknown coding", "damaged"],
)
async def test_response_over_the_memory_budget_is_503(
    transport: TransportImplementation,
    budget: int,
    body: bytes,
    headers: dict[str, str],
    expected: tuple[int, str],
) -> None:
    """503 has the reason and Retry-After; errors of the request are 4xx."""

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
            assert (expected[0] == 503) == ("Retry-After" in response.headers)
            if expected[0] != 200:
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
