"""How to start the real infinity, a server of OpenAI's form, with its engine without weights.

The engine `debugengine` returns 13 numbers for a text, each of them its length.
"""

from pathlib import Path

from tests.interop.environments import environment
from tests.interop.servers.process import Command, Ports

MODEL = "dummy"
WIDTH = 13


def prepare(folder: Path, ports: Ports) -> Command:
    """Return the command that serves, with *folder* as its working folder."""
    program = environment("infinity") / "bin" / "infinity_emb"
    options = {
        "model-id": "local/dummy",
        "served-model-name": MODEL,
        "engine": "debugengine",
        "host": "127.0.0.1",
        "port": str(ports.http),
        "url-prefix": "/v1",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    variables = {
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = (str(program), "v2", *words, "--no-model-warmup")
    return Command(command, folder, variables, ready_path="/health")
