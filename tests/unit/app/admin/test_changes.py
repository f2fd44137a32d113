"""Changes of the gateway over the admin port: who may make them, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.admin.router import AdminRouter
from gateway.app.run.reload import Reloader
from gateway.config.load import LoadedConfig, load_text
from tests.admin_kit import Reply, ask, router_of

HERE = "127.0.0.1"


def served(admin: str = "{}") -> AdminRouter:
    text = "version: 1\nlisteners: [{http: 8000}]\nupstreams: {a: {url: 'http://b:1'}}\n"
    return router_of(f"{text}admin: {admin}\n")


async def post(
    router: AdminRouter, path: str, body: str = "", address: str = HERE, **headers: str
) -> Reply:
    return await ask(router, path, "POST", body.encode(), address=address, headers=headers)


@pytest.mark.parametrize(
    ("address", "remote_changes", "expected"),
    [
        ("127.0.0.1", "false", 200),
        ("::1", "false", 200),
        ("::ffff:127.0.0.1", "false", 200),
        ("10.0.0.1", "false", 403),
        ("::ffff:10.0.0.1", "false", 403),
        ("", "false", 403),
        ("10.0.0.1", "true", 200),
    ],
)
async def test_remote_changes_are_forbidden_by_default(
    address: str, remote_changes: str, expected: int
) -> None:
    """`remote_changes` permits them."""
    router = served(f"{{remote_changes: {remote_changes}}}")
    assert expected == (await post(router, "/reload", address=address)).status


async def test_cross_origin_requests_are_forbidden() -> None:
    """A browser sends the origin of the page with a request."""
    assert 403 == (await post(served(), "/reload", origin="http://example.com")).status


@pytest.mark.parametrize(
    ("path", "body", "expected", "text"),
    [
        ("/upstream/drain", '{"name": "a"}', 200, None),
        ("/upstream/drain", '{"name": "a/b:1"}', 200, None),
        ("/upstream/drain", '{"name": "b"}', 404, "unknown upstream 'b'"),
        ("/upstream/drain", '{"other": 1}', 400, "unknown field `other`"),
        ("/upstream/drain", "no json", 400, "JSON is malformed"),
        ("/route/weights", '{"route": "a", "weights": {"a": 1}}', 404, "unknown route"),
        ("/route/weights", '{"route": "a", "weights": {"a": -1}}', 400, "a weight is negative"),
    ],
)
async def test_change_requests_return_the_result_or_an_error(
    path: str, body: str, expected: int, text: str | None
) -> None:
    """The response has the changes in force, or an error with its cause."""
    reply = await post(served(), path, body)
    assert expected == reply.status
    if text is None:
        assert ["a/b:1"] == reply.document["changes"]["drained"]
    else:
        assert text in reply.document["error"]


async def test_gateway_pages_check_host_and_token() -> None:
    """They show the data of `/api/v1/`, and need the same host and token."""
    router = served("{token: 0123456789abcdef}")

    async def status(host: str, address: str, **headers: str) -> int:
        fields = {"Host": host, **headers}
        return (await ask(router, "/config", address=address, headers=fields)).status

    right = {"authorization": "Bearer 0123456789abcdef"}
    assert await status("localhost", HERE) == 200
    assert await status("10.0.0.2:9901", "10.0.0.1", **right) == 200
    assert await status("10.0.0.2:9901", "10.0.0.1") == 401
    assert await status("evil.example", HERE) == 403


async def test_a_reload_reads_the_file_of_the_token_again(tmp_path: Path) -> None:
    """The new token is right from then on, and the old one is wrong."""
    secret, loaded = tmp_path / "admin.token", "admin: {token: '${file:admin.token}'}"
    secret.write_text("old-token-0123456789")
    text = f"version: 1\nlisteners: [{{http: 8000}}]\n{loaded}\nupstreams: {{a: {{url: 'http://b:1'}}}}"

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    def load() -> LoadedConfig:
        return load_text(text, directory=tmp_path)

    router = router_of(load(), reloader=Reloader(load, load(), apply))

    async def status(token: str) -> int:
        headers = {"authorization": f"Bearer {token}"}
        return (await post(router, "/reload", address="10.0.0.1", **headers)).status

    secret.write_text("new-token-0123456789")
    assert 401 == await status("new-token-0123456789")
    assert 200 == await status("old-token-0123456789")
    assert 200 == await status("new-token-0123456789")
    assert 401 == await status("old-token-0123456789")
