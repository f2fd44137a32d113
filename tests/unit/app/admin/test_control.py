"""Changes of the gateway over the admin port: who may make them, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.admin.access import AdminAccess
from gateway.app.admin.control import Control, control_of
from gateway.app.reload import Reloader
from gateway.config.load import LoadedConfig, load_text
from gateway.ir.context import Client
from gateway.wire.http import Headers, HttpRequest

LOADED = load_text("version: 1\nlisteners: [{http: 8000}]\nupstreams: {a: {url: 'http://b:1'}}\n")
HERE = "127.0.0.1"


def control(*, token: str | None = None, remote_changes: bool = False) -> Control:
    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    reloader = Reloader(lambda: LOADED, LOADED, apply, clock=lambda: 5.0)
    return Control(reloader, AdminAccess(token, remote_changes=remote_changes))


def post(path: str, body: str = "", address: str = HERE, origin: str = "") -> HttpRequest:
    headers = Headers([("Origin", origin)] if origin else [])
    return HttpRequest("POST", path, "", headers, (body.encode(),), client=Client(address))


@pytest.mark.parametrize(
    ("address", "remote_changes", "expected"),
    [
        ("127.0.0.1", False, 200),
        ("::1", False, 200),
        ("::ffff:127.0.0.1", False, 200),
        ("10.0.0.1", False, 403),
        ("::ffff:10.0.0.1", False, 403),
        ("", False, 403),
        ("10.0.0.1", True, 200),
    ],
)
async def test_remote_changes_are_forbidden_by_default(
    address: str, remote_changes: bool, expected: int
) -> None:
    """`remote_changes` permits them."""
    page = control(remote_changes=remote_changes)
    assert (await page(post("/reload", address=address)))[0] == expected


async def test_cross_origin_requests_are_forbidden() -> None:
    """A browser sends the origin of the page with a request."""
    assert (await control()(post("/reload", origin="http://example.com")))[0] == 403


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
        ("/capture/start", "", 404, "nothing can be captured"),
        ("/capture/stop", "", 404, "nothing can be captured"),
        ("/capture/start", '{"payload": "some"}', 400, "Invalid enum value 'some'"),
    ],
)
async def test_change_requests_return_the_result_or_an_error(
    path: str, body: str, expected: int, text: str | None
) -> None:
    """The response has the changes in force, or an error with its cause."""
    status, document = await control()(post(path, body))
    assert status == expected
    if text is None:
        assert document["changes"]["drained"] == ["a/b:1"]
    else:
        assert text in document["error"]


@pytest.mark.parametrize("path", ["/config", "/stock", "/capture"])
async def test_gateway_pages_check_host_and_token(path: str) -> None:
    """They show the data of `/api/v1/`, and need the same host and token."""
    service = control(token="t")

    async def status(host: str, address: str, **headers: str) -> int:
        fields = Headers([("Host", host), *headers.items()])
        wire = HttpRequest("GET", path, "", fields, (), client=Client(address))
        return (await service(wire))[0]

    assert await status("localhost", HERE) in {200, 404}
    assert await status("10.0.0.2:9901", "10.0.0.1", authorization="Bearer t") in {200, 404}
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

    page = control_of(load().config, Reloader(load, load(), apply))

    async def status(token: str) -> int:
        headers = Headers([("authorization", f"Bearer {token}")])
        wire = HttpRequest("POST", "/reload", "", headers, (b"",), client=Client("10.0.0.1"))
        return (await page(wire))[0]

    secret.write_text("new-token-0123456789")
    assert 403 == await status("new-token-0123456789")
    assert 200 == await status("old-token-0123456789")
    assert 200 == await status("new-token-0123456789")
    assert 403 == await status("old-token-0123456789")
