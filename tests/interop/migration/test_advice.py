"""Every suggested call of tritonclient runs against the gateway, with the real library."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gateway.migration.callers.advice import CURL
from tests.integration.migration.advice_kit import called_gateway, code_of
from tests.interop.client import Client

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


def test_every_advised_call_runs(client: Client, tmp_path: Path) -> None:
    """Each program ends with status 0 and prints every output of the model."""
    printed = {}
    with called_gateway(tmp_path / "state") as running:
        for (model, library), code in code_of(running).items():
            if library == CURL:
                continue
            done = subprocess.run(
                [str(client.venv / "bin" / "python"), "-c", code],
                check=False,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, f"{model}, {library}:\n{code}\n{done.stderr}"
            printed[model, library] = done.stdout
    assert len(printed) == 4
    for model in ("digits", "language"):
        http, grpc = (printed[model, f"tritonclient.{each}"] for each in ("http", "grpc"))
        assert http == grpc
        assert http.count("[") >= 2
