"""What a gateway without a key does not import."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = "import sys, gateway.app, gateway.registry; print(*sys.modules)"
LAZY = {
    "gateway.app.run.server_counts",
    "gateway.residency.controller",
    "gateway.residency.layer",
    "gateway.residency.local",
    "gateway.residency.plan",
    "gateway.residency.steps",
    "gateway.routing.rolling.layer",
    "prometheus_client.parser",
}


def test_residency_and_the_figures_of_servers_cost_no_start() -> None:
    """They are imported where the file has `residency`, `rolling_load` or `compat`."""
    command = [sys.executable, "-c", _PROGRAM]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "gateway.residency.settings" in found.split()
    assert set() == LAZY & set(found.split())
