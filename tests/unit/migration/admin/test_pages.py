"""The buttons and guards on the pages of migrations."""

from __future__ import annotations

import pytest

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
