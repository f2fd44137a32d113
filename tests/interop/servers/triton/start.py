"""How to start the real Triton, which nvidia-pytriton carries, on CPU.

Facts of that wheel: the stub process of the python backend embeds an isolated Python, ignores
PYTHONPATH, and finds its packages through the first `python3` on PATH; it needs a shared
libpython; and its program must lie beside the backend's library.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.interop.environments import cache_folder, environment, exclusive
from tests.interop.servers.process import Command, Ports
from tests.interop.servers.triton.models import (
    MODELS,
    SACRIFICIAL,
    TEXTS,
    Model,
    write_repository,
)

STUB = "triton_python_backend_stub"
FORWARDED_HEADERS = "(?i)x-fwd-.*"


SEGMENT_BYTES = 8 << 20
"""No shared memory segment of a sacrificial server grows beyond this."""

# A file size limit also holds for segments. Ignored signals stay ignored after `exec`.
_LIMITED = (
    "import os, resource, signal, sys\n"
    f"resource.setrlimit(resource.RLIMIT_FSIZE, ({SEGMENT_BYTES}, {SEGMENT_BYTES}))\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def prepare_sacrificial(folder: Path, ports: Ports) -> Command:
    """Return the command of a server with few models, whose segments have a maximum size."""
    command = prepare(folder, ports, SACRIFICIAL)
    words = (sys.executable, "-c", _LIMITED, *command.words)
    return dataclasses.replace(command, words=words)


def prepare_texts(folder: Path, ports: Ports) -> Command:
    """Return the command of a server with the models of texts."""
    return prepare(folder, ports, TEXTS)


def prepare(folder: Path, ports: Ports, models: Sequence[Model] = MODELS) -> Command:
    """Write the model repository into *folder* and return the command that serves it."""
    venv = environment("triton")
    site, libraries, version = _facts(venv)
    root = Path(site) / "pytriton" / "tritonserver"
    _place_stub(root, version)
    write_repository(folder / "models", models)
    return Command(
        (
            str(root / "bin" / "tritonserver"),
            f"--model-repository={folder / 'models'}",
            f"--backend-directory={root / 'backends'}",
            f"--cache-directory={root / 'caches'}",
            *(f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")),
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            "--allow-gpu-metrics=false",
            f"--http-header-forward-pattern={FORWARDED_HEADERS}",
            f"--grpc-header-forward-pattern={FORWARDED_HEADERS}",
            # One region prefix a server: several then share /dev/shm without a clash.
            f"--backend-config=python,shm-region-prefix-name=interop{ports.http}",
            "--backend-config=python,shm-default-byte-size=1048576",
            "--model-control-mode=explicit",
            "--load-model=*",
            "--exit-timeout-secs=5",
        ),
        folder,
        {
            "PATH": os.pathsep.join((str(venv / "bin"), os.environ.get("PATH", ""))),
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (libraries, os.environ.get("LD_LIBRARY_PATH")))
            ),
        },
    )


def _facts(venv: Path) -> tuple[str, str, str]:
    """Return the site-packages folder, libpython's folder and the `3.11` of *venv*."""
    code = (
        "import sysconfig as s; print(s.get_path('purelib'), s.get_config_var('LIBDIR'), "
        "s.get_python_version(), sep='\\n')"
    )
    python = str(venv / "bin" / "python")
    done = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    site, libraries, version = done.stdout.splitlines()
    return site, libraries, version


def _place_stub(root: Path, version: str) -> None:
    source = root / "python_backend_stubs" / version / STUB
    target = root / "backends" / "python" / STUB
    with exclusive(cache_folder() / "triton-stub.lock"):
        if not target.exists() or source.read_bytes() != target.read_bytes():
            fresh = target.with_suffix(".new")
            shutil.copy(source, fresh)
            fresh.replace(target)
