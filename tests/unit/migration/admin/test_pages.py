"""The routes, buttons and guards of the pages of migrations."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.api.admin import AdminNeed, AdminRoute
from gateway.migration.admin import MigrationPages
from gateway.migration.admin.migrations import documents
from gateway.migration.admin.migrations.documents import guards_of
from gateway.migration.admin.migrations.pages import offered_commands
from gateway.migration.cutover.states import Phase
from gateway.migration.cutover.steps import COMMANDS


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_buttons_offer_only_accepted_commands(phase: Phase) -> None:
    """Each phase of a cut-over shows buttons only for commands that the phase accepts."""
    offered = {name for name, _, _ in offered_commands(phase.value)}
    assert offered <= {name for name, (phases, _) in COMMANDS.items() if phase in phases}


def test_guards_of_a_cutover_include_the_errors_of_clients() -> None:
    """Comparisons do not know them; without a cut-over their guards are all there is."""
    compared, clients = {"guard": "mismatch.below"}, {"guard": "errors.clients"}
    evidence = {"guards": [compared]}
    cutover = {"guards": [compared, clients]}
    assert [compared, clients] == guards_of({"evidence": evidence, "cutover": cutover})
    assert [compared] == guards_of({"evidence": evidence, "cutover": None})
    assert [] == guards_of({"evidence": None, "cutover": None})


@pytest.mark.parametrize("each", MigrationPages().routes, ids=lambda it: it.path)
def test_each_route_needs_the_role_of_what_it_does(each: AdminRoute) -> None:
    """Changes of captures need `operate`; cut-overs and payloads `migrate`; all else is `read`."""
    expected = AdminNeed.READ
    if each.path.startswith("/capture/"):
        expected = AdminNeed.OPERATE
    elif each.path.startswith("/api/v1/migrations/{name}/") and not each.path.endswith("verdict"):
        expected = AdminNeed.MIGRATE
    assert expected is each.need
    assert each.need is AdminNeed.READ or not each.open
    assert each.method == "GET" or each.need is not AdminNeed.READ or each.open == "verdict"


def test_events_do_not_precede_the_guards() -> None:
    """A cut-over may have hundreds of events; who opens the page looks for the guards."""
    page = Path(documents.__file__).with_name("migration.html").read_text()
    places = [page.index(f', "{each}")') for each in ("guards", "outputs", "samples", "events")]
    assert places == sorted(places)
