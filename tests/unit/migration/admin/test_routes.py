"""The routes of the migration kit on the admin port: their answers, and who may ask."""

from __future__ import annotations

import pytest

from gateway.admin.router import AdminRouter
from tests.admin_kit import ask, router_of
from tests.unit.migration.admin.kit import pages

HERE = "127.0.0.1"


def served(admin: str = "{}") -> AdminRouter:
    return router_of(f"version: 1\nlisteners: [{{http: 8000}}]\nadmin: {admin}\n", pages())


@pytest.mark.parametrize(
    ("path", "body", "expected", "text"),
    [
        ("/capture/start", "", 404, "nothing can be captured"),
        ("/capture/stop", "", 404, "nothing can be captured"),
        ("/capture/start", '{"payload": "some"}', 400, "Invalid enum value 'some'"),
    ],
)
async def test_changes_of_a_capture_that_cannot_be_made_are_errors(
    path: str, body: str, expected: int, text: str
) -> None:
    """The response has the cause."""
    reply = await ask(served(), path, "POST", body.encode())
    assert (expected, True) == (reply.status, text in reply.document["error"])


@pytest.mark.parametrize("path", ["/stock", "/capture"])
async def test_pages_of_callers_and_captures_check_host_and_token(path: str) -> None:
    """They show the data of `/api/v1/`, and need the same host and token."""
    router = served("{token: 0123456789abcdef}")

    async def status(host: str, address: str, **headers: str) -> int:
        return (await ask(router, path, address=address, headers={"Host": host, **headers})).status

    right = {"authorization": "Bearer 0123456789abcdef"}
    assert await status("localhost", HERE) in {200, 404}
    assert await status("10.0.0.2:9901", "10.0.0.1", **right) in {200, 404}
    assert await status("10.0.0.2:9901", "10.0.0.1") == 401
    assert await status("evil.example", HERE) == 403
