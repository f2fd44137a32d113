"""What the pages offer."""

from __future__ import annotations

import pytest

from gateway.app.admin_api.pages import _commands
from gateway.migration.cutover import COMMANDS, Phase


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_no_button_is_for_a_command_that_is_always_refused(phase: Phase) -> None:
    """A cut-over has buttons for commands that its state allows."""
    offered = {name for name, _, _ in _commands(phase.value)}
    assert offered <= {name for name, (phases, _) in COMMANDS.items() if phase in phases}
