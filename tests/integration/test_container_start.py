"""A container of a platform is ready with little memory, from the platform's variables alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli_kit import free_port
from tests.integration.container_kit import (
    CONTRACTS,
    Contract,
    StartedContainer,
    await_ready,
    check_usage,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_it_is_ready_in_256_mebibytes(contract: Contract, tmp_path: Path) -> None:
    """`serve` alone needs 256 MiB and 5 s of a CPU at most until its first probe is 200."""
    file = tmp_path / contract.file
    file.parent.mkdir(parents=True)
    file.write_text(contract.config)
    port = free_port()
    # The folders of a container are at other places here.
    places = {"SAGEMAKER_BASE_DIR": str(tmp_path / "opt/ml")}
    if contract.health != "/ping":
        places = {"GATEWAY_CONFIG": str(file)}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve"],
            env=contract.environment(port) | places,
            cwd="/",
            stdout=log,
            stderr=log,
        )
    try:
        await_ready(StartedContainer(process, port), contract.health, tmp_path / "log")
        check_usage(process.pid)
    finally:
        process.kill()
        process.wait()
