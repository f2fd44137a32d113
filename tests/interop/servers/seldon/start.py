"""How to start Seldon's microservice with the model of this folder."""

from pathlib import Path

from tests.interop.environments import environment
from tests.interop.servers.process import Command, Ports

MODEL = "SeldonDemo"


def prepare(folder: Path, ports: Ports) -> Command:
    """Return the command that serves the model."""
    binaries = environment("seldon") / "bin"
    here = Path(__file__).parent
    (folder / f"{MODEL}.py").write_text((here / f"{MODEL}.py").read_text())
    command = (
        *(str(binaries / "python"), str(here / "run.py")),
        *(str(binaries / "seldon-core-microservice"), MODEL, "--service-type", "MODEL"),
        *("--http-port", str(ports.http), "--grpc-port", str(ports.grpc)),
        *("--metrics-port", str(ports.metrics)),
    )
    variables = {"PATH": f"{binaries}:/usr/bin:/bin"}
    return Command(command, folder, variables, ready_path="/health/ping")
