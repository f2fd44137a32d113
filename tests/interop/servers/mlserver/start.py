"""How to start the real MLServer with the runtimes of this folder."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.interop.environments import environment
from tests.interop.servers.mlserver.models import MODELS, SACRIFICIAL, Model, write_repository
from tests.interop.servers.process import Command, Ports


def prepare_sacrificial(folder: Path, ports: Ports) -> Command:
    """Return the command of a server with few models, which tests hurt."""
    return prepare(folder, ports, SACRIFICIAL)


def prepare(folder: Path, ports: Ports, served: Sequence[Model] = MODELS) -> Command:
    """Write settings and models into *folder* and return the command that serves them."""
    models = folder / "models"
    write_repository(models, served)
    settings = {
        "host": "127.0.0.1",
        "http_port": ports.http,
        "grpc_port": ports.grpc,
        "metrics_port": ports.metrics,
        "parallel_workers": 0,
        # MLServer's gzip middleware does not work with streaming.
        "gzip_enabled": False,
        "kafka_enabled": False,
    }
    (models / "settings.json").write_text(json.dumps(settings))
    mlserver = environment("mlserver") / "bin" / "mlserver"
    variables = {"PYTHONPATH": str(models), "PYTHONDONTWRITEBYTECODE": "1"}
    return Command((str(mlserver), "start", str(models)), models, variables)
