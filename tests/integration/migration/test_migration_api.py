"""`/api/v1/migrations` and `/api/v1/stock` of a running gateway, and the requests that they reject."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from gateway.admin.router import AdminRouter
from gateway.app import Gateway
from tests import admin_kit
from tests.admin_kit import router_of
from tests.integration import test_admin_api
from tests.integration.test_admin_api import fetch
from tests.unit.migration.admin.kit import Cutover, Evidence, pages

CONFIG = f"""{test_admin_api.CONFIG}
migrations:
  fraud: {{cutover: {{guards: {{mismatch: {{below: 0.1%}}}}}}}}
"""


def started() -> AbstractAsyncContextManager[Gateway]:
    """Run a gateway with the pages of its migration."""
    return test_admin_api.started(CONFIG, pages())


async def test_serves_stock_and_migrations() -> None:
    """Without `stock` there is no stock, and each migration has a document."""
    async with started() as gateway:
        assert 404 == (await fetch(gateway, "stock"))[0]
        _, migrations, _ = await fetch(gateway, "migrations")
        assert ["fraud"] == [each["name"] for each in migrations["migrations"]]
        code, migration, _ = await fetch(gateway, "migrations/fraud")
        assert (200, "fraud", None) == (code, migration["name"], migration["evidence"])
        code, error, _ = await fetch(gateway, "migrations/other")
        assert (404, "unknown migration 'other'; expected one of fraud") == (code, error["error"])


@pytest.mark.parametrize("path", ["migrations", "migrations/fraud"])
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
