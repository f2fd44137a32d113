"""The pages of the migration kit under `/ui/` as a program sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli import report
from tests.admin_kit import ask
from tests.integration.migration.test_migration_api import api, started
from tests.integration.test_admin_pages import check_page
from tests.unit.migration.admin.kit import Cutover, Evidence


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("migrations", 200, '<a href="/ui/migrations/fraud">fraud</a>'),
        ("migrations/fraud", 200, "Nothing was compared yet."),
        ("migrations/fraud/samples/1-1", 200, "<h1>Call 1-1</h1>"),
        ("stock", 200, "stock-taking is off"),
        ("migrations/other", 404, "There is no such page."),
        ("migrations/<script>", 404, "There is no such page."),
    ],
)
async def test_pages_have_a_strict_policy_and_no_secrets(path: str, status: int, text: str) -> None:
    """Each page is served with a strict content security policy and without secrets."""
    async with started() as gateway:
        await check_page(gateway, path, status, text)


async def test_cutover_page_offers_commands_of_its_state() -> None:
    """The buttons stay hidden until the script that sends the command shows them."""

    class Stepping(Cutover):
        def document(self, migration: str) -> dict[str, object]:
            return {
                "state": "waiting_for_approval",
                "weight": 50,
                "step": 4,
                "steps": [50, 100],
                "events": [],
                "bake": None,
                "calls": None,
                "next": "100%",
                "reason": "",
            }

    class Nothing(Evidence):
        def __init__(self) -> None:
            super().__init__()
            self.evidence = {}

    reply = await ask(api(Nothing(), Stepping()), "/ui/migrations/fraud")
    text = reply.body.decode()
    assert 200 == reply.status
    commands = [part.partition('"')[0] for part in text.split('data-command="')[1:]]
    assert ["approve", "pause", "rollback"] == commands
    assert 3 == text.count('<button type="button" hidden')


async def test_the_list_of_migrations_has_the_reason_of_failures() -> None:
    """The number of failed calls has the most frequent reason beside it."""
    reply = await ask(api(Evidence("holds"), Cutover()), "/ui/migrations")
    assert "<td>internal: no GPU</td>" in reply.body.decode()


def test_tables_of_reports_break_no_names() -> None:
    """Names stay whole, and a wide table scrolls instead; only commands break anywhere."""
    page = (Path(report.__file__).parent / "page.html").read_text("utf-8")
    assert "anywhere" not in page.replace("pre{white-space:pre-wrap;overflow-wrap:anywhere}", "")
    assert "div{overflow-x:auto}" in page
