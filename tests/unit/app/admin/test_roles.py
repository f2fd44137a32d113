"""Roles of the admin port: tokens with names, and what is open without one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.admin.router import AdminRouter
from gateway.admin.tokens import AdminToken, AdminTokens
from gateway.api.admin import AdminNeed
from gateway.api.start_error import StartError
from gateway.app.build.parts import LeadingParts
from gateway.app.check.here import require_files
from gateway.app.run.reload import Reloader
from gateway.config.load import ConfigError, LoadedConfig, load_text
from tests.admin_kit import NeedsMigrate, ask, router_of

BASE = """
version: 1
listeners: [{http: 8000}]
upstreams: {a: {url: 'http://b:1'}}
"""
READ, OPERATE, MIGRATE = (f"token-of-{role}-0123456789" for role in ("read", "operate", "migrate"))
ROLES = f"""
admin:
  address: "10.0.0.2:9901"
  token: token-of-all-0123456789
  tokens:
    - {{name: grafana, roles: [read], token: {READ}}}
    - {{name: ops, roles: [operate], token: {OPERATE}}}
    - {{name: mover, roles: [migrate], token: {MIGRATE}}}
"""
HERE, AWAY = "127.0.0.1", "10.0.0.9"
SAMPLE = "/api/v1/migrations/fraud/samples/s"
PATHS = (
    ("GET", "/livez", b""),
    ("GET", "/metrics", b""),
    ("GET", "/status", b""),
    ("GET", "/api/v1/migrations/fraud/verdict", b""),
    ("GET", "/config", b""),
    ("POST", "/upstream/drain", b'{"name": "a"}'),
    ("GET", SAMPLE, b""),
    ("POST", "/api/v1/migrations/fraud/pause", b""),
)


def served(admin: str) -> AdminRouter:
    return router_of(BASE + admin, LeadingParts({"needs": NeedsMigrate()}))


async def statuses(router: AdminRouter, address: str, token: str | None) -> list[int]:
    headers = {"Host": "10.0.0.2", "x-gateway-admin": "1"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    replies = [
        await ask(router, path, method, body, address=address, headers=headers)
        for method, path, body in PATHS
    ]
    return [reply.status for reply in replies]


@pytest.mark.parametrize(
    ("address", "token", "expected"),
    [
        (AWAY, READ, [200, 200, 200, 200, 200, 403, 403, 403]),
        (AWAY, OPERATE, [200, 200, 200, 200, 200, 200, 403, 403]),
        (AWAY, MIGRATE, [200, 200, 200, 200, 200, 403, 200, 200]),
        (AWAY, "token-of-all-0123456789", [200] * 8),
        (AWAY, "wrong", [200, 200] + [401] * 6),
        (AWAY, None, [200, 200] + [401] * 6),
        (HERE, None, [200] * 8),
        (HERE, READ, [200, 200, 200, 200, 200, 403, 403, 403]),
        (HERE, "wrong", [200, 200] + [401] * 6),
    ],
)
async def test_each_role_allows_its_own_paths(
    address: str, token: str | None, expected: list[int]
) -> None:
    """A wrong token is 401 everywhere, and a missing role 403; probes and metrics need nothing."""
    assert expected == await statuses(served(ROLES), address, token)


@pytest.mark.parametrize(
    ("admin", "address", "expected"),
    [
        ("admin: {local: [read]}", HERE, [200, 200, 200, 200, 200, 403, 403, 403]),
        ("admin: {local: [operate]}", HERE, [200, 200, 200, 200, 200, 200, 403, 403]),
        ("admin: {local: []}", HERE, [200, 200] + [403] * 6),
        ("admin: {local: [read]}", AWAY, [200, 200] + [403] * 6),
        (f"admin: {{local: [], token: {READ}}}", HERE, [200, 200] + [401] * 6),
        (f"admin: {{open: [], token: {READ}}}", AWAY, [401] * 8),
        (f"admin: {{open: [status], token: {READ}}}", AWAY, [401, 401, 200] + [401] * 5),
        (f"admin: {{open: [verdict], token: {READ}}}", AWAY, [401] * 3 + [200] + [401] * 4),
        ("admin: {open: []}", HERE, [200] * 8),
        (f"admin: {{token: {READ}}}", AWAY, [200, 200, 200, 200, 401, 403, 401, 401]),
    ],
)
async def test_roles_without_a_token_are_those_of_the_file(
    admin: str, address: str, expected: list[int]
) -> None:
    """`local` is for this machine, `open` for everybody; a file without these keys is as ever."""
    assert expected == await statuses(served(admin), address, None)


async def test_roles_keep_the_checks_of_host_and_origin() -> None:
    """A right token does not help a page of another site."""
    right = {"Authorization": f"Bearer {OPERATE}"}
    other = {**right, "Host": "evil.example"}
    assert 403 == (await ask(served(ROLES), "/config", headers=other)).status
    page = {**right, "Host": "10.0.0.2", "Origin": "http://10.0.0.2"}
    assert 403 == (await ask(served(ROLES), "/reload", "POST", headers=page)).status
    bare = {"Authorization": f"Bearer {MIGRATE}", "Host": "10.0.0.2"}
    assert 403 == (await ask(served(ROLES), SAMPLE, headers=bare)).status


async def test_the_file_of_a_token_is_read_again(tmp_path: Path) -> None:
    """A file that is broken leaves the token before it, and its content is in no line."""
    now = 0.0
    file = tmp_path / "ops.token"
    file.write_text("first-0123456789abcdef\n")
    tokens = AdminTokens([AdminToken("ops", {AdminNeed.OPERATE}, path=file)], lambda: now)

    async def right() -> list[bool]:
        nonlocal now
        now += 1
        await tokens.renew()
        sent = ("first-0123456789abcdef", "second-0123456789abcdef", "short")
        return [tokens.find(each) is not None for each in sent]

    file.write_text("second-0123456789abcdef")
    await tokens.renew()
    assert tokens.find("second-0123456789abcdef") is None  # not before a second has passed
    assert [False, True, False] == await right()
    with capture_logs() as logs:
        file.write_text("short")
        assert [False, True, False] == await right()
        assert [False, True, False] == await right()
        file.unlink()
        assert [False, True, False] == await right()
    assert [
        "expected at least 16 ASCII characters without spaces",
        "No such file or directory",
    ] == [each["reason"] for each in logs]
    file.write_text("first-0123456789abcdef")
    assert [True, False, False] == await right()


def reloaded(tmp_path: Path, text: Callable[[], str]) -> tuple[AdminRouter, Reloader]:
    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    def load() -> LoadedConfig:
        return load_text(BASE + text(), directory=tmp_path)

    reloader = Reloader(load, load(), apply)
    return router_of(load(), reloader=reloader), reloader


async def test_a_reload_changes_tokens_and_roles(tmp_path: Path) -> None:
    """No restart is needed, and a file that is missing keeps the tokens there are."""
    text = f"admin: {{tokens: [{{name: ops, roles: [operate], token: {OPERATE}}}]}}"
    router, reloader = reloaded(tmp_path, lambda: text)

    def status(token: str) -> Awaitable[list[int]]:
        return statuses(router, AWAY, token)

    assert 200 == (await status(OPERATE))[5]
    text = "admin: {tokens: [{name: ops, roles: [operate], file: ops.token}], local: []}"
    assert "ops" in (await reloader.reload()).error
    assert 200 == (await status(OPERATE))[5]
    (tmp_path / "ops.token").write_text(READ)
    assert "applied" == (await reloader.reload()).outcome
    assert [401, 200] == [(await status(OPERATE))[5], (await status(READ))[5]]
    assert 401 == (await statuses(router, HERE, None))[5]


def test_a_gateway_without_the_file_of_a_token_does_not_start(tmp_path: Path) -> None:
    """The error names the token and no content of a file."""
    (tmp_path / "ops.token").write_text("swordfish")
    admin = "admin: {tokens: [{name: ops, roles: [operate], file: ops.token}], address: '127.0.0.1:0', metrics: null}"
    loaded = load_text(BASE + admin, directory=tmp_path)
    with pytest.raises(StartError, match=r"admin\.tokens\[0\]\.file: ops\.token: exp") as raised:
        require_files(loaded)
    assert "swordfish" not in str(raised.value)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("swordfish-0123456789", "expected a mapping"),
        ("{name: a, roles: [read]}", "exactly one of 'file' and 'token'"),
        ("{name: a, roles: [], file: x}", "roles"),
        ("{name: a, roles: [read], token: swordfish}", "expected at least 16 characters"),
        ("{name: a, roles: [read], file: x}, {name: a, roles: [read], file: y}", "the name 'a'"),
    ],
)
def test_wrong_tokens_are_errors_of_the_file(tokens: str, expected: str) -> None:
    """The text has no token."""
    with pytest.raises(ConfigError, match=expected) as raised:
        load_text(f"{BASE}admin: {{tokens: [{tokens}]}}")
    assert "swordfish" not in str(raised.value)


async def test_no_token_is_shown() -> None:
    """`/config` has the names and roles alone."""
    reply = await ask(served(ROLES), "/config")
    assert (200, True) == (reply.status, b"grafana" in reply.body)
    assert [] == [
        each for each in (READ, OPERATE, MIGRATE, "token-of-all") if each.encode() in reply.body
    ]
