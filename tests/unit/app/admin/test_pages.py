"""The buttons of the admin pages."""

from __future__ import annotations

import pytest

from gateway.app.admin.pages import _commands
from gateway.migration.cutover.steps import COMMANDS, Phase


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_buttons_offer_only_accepted_commands(phase: Phase) -> None:
    """Each phase of a cut-over shows buttons only for commands that the phase accepts."""
    offered = {name for name, _, _ in _commands(phase.value)}
    assert offered <= {name for name, (phases, _) in COMMANDS.items() if phase in phases}
