"""The audit log of the admin port: what is in it, and when."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from gateway.admin.access import access_of
from gateway.admin.audit import AuditLog
from gateway.admin.router import AdminRouter
from gateway.admin.tokens import tokens_of
from gateway.api.start_error import StartError
from gateway.app import Gateway
from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import ROUTES, admin_routers
from gateway.app.build.parts import LeadingParts
from gateway.app.run.reload import SIGNAL, WATCH, Reloader
from gateway.config.admin import AdminConfig
from gateway.config.load import LoadedConfig, load_text
from tests.admin_kit import NeedsMigrate, Process, ask

BASE = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
upstreams: {a: {url: 'http://b:1'}}
"""
OPS = "token-of-ops-0123456789"
AWAY = "10.0.0.9"
ADMIN = f"""
admin:
  token: token-of-all-0123456789
  tokens: [{{name: ops, roles: [operate], token: {OPS}}}]
"""
SAMPLE = "/api/v1/migrations/fraud/samples/s"


def served(audit: AuditLog) -> AdminRouter:
    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    loaded = load_text(BASE + ADMIN)
    leading = LeadingParts({"needs": NeedsMigrate()})
    gateway = RunningGateway(Process(), Reloader(lambda: loaded, loaded, apply), leading)
    access = access_of(loaded.config.admin or AdminConfig())
    return AdminRouter(gateway, (*ROUTES, *gateway.routes), access, audit)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_change_view_of_payloads_and_refusal_has_a_line(tmp_path: Path) -> None:
    """The file has it when the reply arrives; other requests have none, and tokens never."""
    path = tmp_path / "audit.log"
    router = served(AuditLog(path))
    found: list[tuple[Any, ...]] = []

    async def entry(path_: str, method: str, token: str | None, address: str = AWAY) -> None:
        headers = {"Host": "10.0.0.2", "x-gateway-admin": "1"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        reply = await ask(
            router, path_, method, query="token=hidden", address=address, headers=headers
        )
        written = lines(path)[len(found) :]
        keys = "name", "address", "role", "method", "path", "status"
        found.extend(tuple(line[key] for key in keys) for line in written)
        assert [reply.status] == [line["status"] for line in written] or not written

    await entry("/livez", "GET", None)
    await entry("/config", "GET", OPS)
    await entry("/nothing", "GET", None)
    assert [] == found
    await entry("/reload", "POST", OPS)
    await entry("/reload", "POST", None, "127.0.0.1")
    await entry("/config", "GET", "wrong")
    await entry("/api/v1/nothing", "GET", None)
    await entry(SAMPLE, "GET", OPS)
    await entry(SAMPLE, "GET", "token-of-all-0123456789")
    assert [
        ("ops", AWAY, "operate", "POST", "/reload", 200),
        ("local", "127.0.0.1", "operate", "POST", "/reload", 200),
        (None, AWAY, "read", "GET", "/config", 401),
        (None, AWAY, "read", "GET", "/api/v1/nothing", 401),
        ("ops", AWAY, "migrate", "GET", SAMPLE, 403),
        ("token", AWAY, "migrate", "GET", SAMPLE, 200),
    ] == found
    keys = {"time", "name", "address", "role", "method", "path", "status"}
    assert all(keys <= line.keys() for line in lines(path))
    assert not [each for each in ("token-of", "wrong", "hidden") if each in path.read_text()]


async def test_a_line_has_the_request_and_the_changes(tmp_path: Path) -> None:
    """Endpoint and weights of a request, and the hashes of a reload, by whatever it was asked for."""
    path = tmp_path / "audit.log"
    text = f"{BASE}{ADMIN}security: {{public_health: false}}\n"
    audit = AuditLog(path)

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    loaded = load_text(BASE + ADMIN)
    reloader = Reloader(lambda: load_text(text), loaded, apply)
    admin = loaded.config.admin or AdminConfig()
    router = admin_routers(admin, RunningGateway(Process(), reloader), tmp_path, audit)["admin"]
    await ask(router, "/upstream/drain", "POST", b'{"name": "a/b:1"}')
    await ask(router, "/upstream/drain", "POST", b"x" * 5000)
    await ask(router, "/reload", "POST")
    text = BASE + ADMIN
    await reloader.reload(SIGNAL)
    text += "x: y"
    await reloader.reload(WATCH)
    await asyncio.to_thread(audit._writer.flush, 5.0)
    drain, large, request, signal, watch = lines(path)
    assert {"name": "a/b:1"} == drain["body"]
    assert ["a/b:1"] == drain["changes"]["drained"]
    assert (400, False) == (large["status"], "body" in large)
    after = load_text(f"{BASE}{ADMIN}security: {{public_health: false}}\n").sha256
    assert (loaded.sha256, after) == (request["sha256_before"], request["sha256"])
    assert ["security.public_health"] == request["changes"]["changed"]
    assert ("SIGHUP", "/reload", 200, after) == tuple(
        signal[key] for key in ("name", "path", "status", "sha256_before")
    )
    assert ("watch", 422, "rejected") == tuple(watch[key] for key in ("name", "status", "outcome"))
    assert watch["sha256"] == watch["sha256_before"] == signal["sha256"]
    assert "unknown key" in watch["error"]
    audit.close()


async def test_a_reload_that_ends_its_own_token_has_the_name_of_the_token(tmp_path: Path) -> None:
    """The line is about the request, which the token was right for."""
    text = BASE + ADMIN
    path = tmp_path / "audit.log"

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    loaded = load_text(text)
    reloader = Reloader(lambda: load_text(text), loaded, apply)
    access = access_of(loaded.config.admin or AdminConfig())

    async def change(found: LoadedConfig) -> None:
        admin = found.config.admin or AdminConfig()
        access.change(admin, tokens_of(admin, tmp_path))

    reloader.on_applied = change
    router = AdminRouter(RunningGateway(Process(), reloader), ROUTES, access, AuditLog(path))
    text = text.replace(OPS, "another-0123456789abcdef")
    headers = {"Authorization": f"Bearer {OPS}"}
    replies = [await ask(router, "/reload", "POST", headers=headers) for _ in range(2)]
    assert [200, 401] == [reply.status for reply in replies]
    assert ["ops", None] == [line["name"] for line in lines(path)]


async def test_a_client_that_leaves_has_a_line(tmp_path: Path) -> None:
    """The change may be made all the same; there is no status."""
    path = tmp_path / "audit.log"
    audit = AuditLog(path)
    begun = asyncio.Event()

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        begun.set()
        await asyncio.Event().wait()
        return {}

    loaded = load_text(BASE)
    gateway = RunningGateway(Process(), Reloader(lambda: loaded, loaded, apply))
    router = AdminRouter(gateway, ROUTES, access_of(AdminConfig()), audit)
    request = asyncio.create_task(ask(router, "/reload", "POST"))
    await begun.wait()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert audit._writer.flush(5)
    assert [("local", "/reload", None)] == [
        (line["name"], line["path"], line["status"]) for line in lines(path)
    ]


async def test_a_file_that_takes_no_lines_is_an_error_in_the_log(tmp_path: Path) -> None:
    """The reply arrives all the same, and only one request waits for the file."""
    path = tmp_path / "audit.log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    audit = AuditLog(path)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"x" * 4096)  # nobody reads it
    except BlockingIOError:
        pass
    router = served(audit)
    assert 200 == (await ask(router, "/reload", "POST")).status  # waits for a second
    begin = monotonic()
    for _ in range(20):
        assert 200 == (await ask(router, "/reload", "POST")).status
    assert monotonic() - begin < 10  # if each waited, they would take 20 s
    os.close(writer)
    with capture_logs() as logs:
        os.close(reader)  # from now on the file refuses lines
        audit.close()
        audit._writer.flush(5)
    assert [("audit log not written", "Broken pipe")] == [
        (each["event"], each["reason"]) for each in logs if each["log_level"] == "error"
    ]


async def test_a_gateway_writes_the_audit_log_of_its_configuration(tmp_path: Path) -> None:
    """The path is relative to the configuration file."""
    admin = 'admin: {address: "127.0.0.1:0", metrics: null, audit: audit.log, local: [read]}'
    gateway = Gateway(load_text(BASE + admin, directory=tmp_path))
    await gateway.start()
    try:
        url = f"http://{gateway.addresses['admin']}"
        async with aiohttp.ClientSession() as session, session.get(f"{url}/status") as reply:
            assert 200 == reply.status
        headers = {"Authorization": "Bearer wrong"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{url}/status", headers=headers) as reply,
        ):
            assert 401 == reply.status
            assert [("GET", "/status", 401)] == [
                (line["method"], line["path"], line["status"])
                for line in lines(tmp_path / "audit.log")
            ]
    finally:
        await gateway.stop(pre_stop_s=0)


async def test_an_audit_log_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    """Nobody finds out later that changes were not noted."""
    admin = 'admin: {address: "127.0.0.1:0", metrics: null, audit: missing/audit.log}'
    gateway = Gateway(load_text(BASE + admin, directory=tmp_path))
    with pytest.raises(StartError, match=r"audit\.log: No such file"):
        await gateway.start()
