"""How to start the real KServe Python ModelServer with the models of `serve.py`."""

from pathlib import Path

from tests.interop.environments import environment
from tests.interop.servers.process import Command, Ports

SERVE = Path(__file__).parent / "serve.py"


def prepare(folder: Path, ports: Ports) -> Command:
    """Return the command that serves, with *folder* as its working folder."""
    python = environment("kserve") / "bin" / "python"
    options = (f"--http_port={ports.http}", f"--grpc_port={ports.grpc}")
    variables = {"PYTHONDONTWRITEBYTECODE": "1"}
    # -P: this folder's modules are not for KServe to import.
    return Command((str(python), "-P", str(SERVE), *options), folder, variables)
