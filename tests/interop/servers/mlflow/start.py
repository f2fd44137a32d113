"""How to start `mlflow models serve` with a model of this folder."""

import subprocess
from functools import partial
from pathlib import Path

from tests.interop.environments import environment
from tests.interop.servers.process import Command, Ports, Prepare

SAVE_S = 120.0


def serving(name: str) -> Prepare:
    """Return what prepares a server of the model *name*."""
    return partial(_prepare, name)


def _prepare(name: str, folder: Path, ports: Ports) -> Command:
    """Write the model into *folder* and return the command that serves it."""
    binaries = environment("mlflow") / "bin"
    script = Path(__file__).with_name("models.py")
    words = [str(binaries / "python"), str(script), name, str(folder / name)]
    subprocess.run(words, check=True, capture_output=True, timeout=SAVE_S, cwd=folder)
    command = (
        str(binaries / "mlflow"),
        *("models", "serve", "-m", str(folder / name), "-h", "127.0.0.1"),
        *("-p", str(ports.http), "--env-manager", "local", "--workers", "1"),
    )
    # The server runs `uvicorn`, which it looks for.
    variables = {"PATH": f"{binaries}:/usr/bin:/bin", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return Command(command, folder, variables, ready_path="/ping")
