"""The buttons of the admin pages."""

from __future__ import annotations

import pytest

from gateway.app.admin.api import guards_of
from gateway.app.admin.pages import _commands
from gateway.migration.cutover.states import Phase
from gateway.migration.cutover.steps import COMMANDS


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_buttons_offer_only_accepted_commands(phase: Phase) -> None:
    """Each phase of a cut-over shows buttons only for commands that the phase accepts."""
    offered = {name for name, _, _ in _commands(phase.value)}
    assert offered <= {name for name, (phases, _) in COMMANDS.items() if phase in phases}


def test_guards_of_a_cutover_include_the_errors_of_clients() -> None:
    """Comparisons do not know them; without a cut-over their guards are all there is."""
    compared, clients = {"guard": "mismatch.below"}, {"guard": "errors.clients"}
    evidence = {"guards": [compared]}
    cutover = {"guards": [compared, clients]}
    assert [compared, clients] == guards_of({"evidence": evidence, "cutover": cutover})
    assert [compared] == guards_of({"evidence": evidence, "cutover": None})
    assert [] == guards_of({"evidence": None, "cutover": None})
