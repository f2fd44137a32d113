"""The README's lines in Debian, with its base packages and those that the README names.

The system is a folder made by mmdebstrap, in which nothing else is installed. A real Triton runs beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway import __version__
from tests.integration.cli_kit import get
from tests.integration.runc_kit import listening
from tests.interop.programs import program
from tests.interop.servers.process import RunningServer, running
from tests.interop.servers.triton import start as triton
from tests.interop.servers.triton.models import SACRIFICIAL
from tests.project_copy import ROOT, copy_project

README = (ROOT / "README.md").read_text("utf-8")
# How this machine reaches package indexes is no matter of the README.
NETWORK_FILES = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
)
NETWORK_VARIABLE = re.compile(r"(PIP|SSL|REQUESTS|CURL)_\w+|\w+_proxy", re.IGNORECASE)
MOUNTS = "mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && cd /tensor-gateway && "
ROW = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Debian:
    """A system in a folder, with the sources of the gateway in `/tensor-gateway`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def started(self, script: str) -> Iterator[subprocess.Popen[str]]:
        """Run a script of a shell in the folder of the sources, and end all of its processes."""
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        command += ["chroot", str(self.root), "sh", "-ec", MOUNTS + script]
        variables = {
            name: os.environ[name] for name in os.environ if NETWORK_VARIABLE.fullmatch(name)
        }
        variables |= {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def run(self, script: str) -> str:
        """Return what a script prints; it must succeed."""
        with self.started(script) as process:
            out, err = process.communicate()
        assert process.returncode == 0, out[-2000:] + err[-4000:]
        return out


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    """Return a Debian with the packages that the README names, and no other."""
    if os.geteuid() != 0:
        pytest.skip("mmdebstrap and chroot need root")
    root = tmp_path_factory.mktemp("debian") / "root"
    named = re.search(r"\(on Debian ([^)]*)\)", README)
    assert named is not None
    packages = ",".join(re.findall(r"`([\w-]+)`", named[1]))
    command = [program("mmdebstrap"), "--quiet", "--variant=minbase", f"--include={packages}"]
    done = subprocess.run(
        [*command, "bookworm", str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    copy_project(root / "tensor-gateway", "*.so")
    for name in NETWORK_FILES:
        target = root / name.lstrip("/")
        if Path(name).exists() and not target.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, target)
    yield Debian(root)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def triton_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    prepare = partial(triton.prepare, models=SACRIFICIAL)
    with running("triton", prepare, tmp_path_factory.mktemp("triton")) as server:
        yield server


@pytest.mark.parametrize("tool", ["pip", "pipx", "uv"])
def test_each_line_of_the_installation_leads_to_the_command(debian: Debian, tool: str) -> None:
    """A wheel that `make dist` would write is installed, and the command is where the README says."""
    if not (debian.root / "tensor-gateway" / "dist").exists():
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(ROOT)]
        command += ["--outdir", str(debian.root / "tensor-gateway" / "dist")]
        environment = {**os.environ, "GATEWAY_PURE": "1"}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        debian.run("python3 -m venv /tools && /tools/bin/pip install --quiet pipx uv")
    row = re.search(rf"^\| {tool} \| `([^`]+)` \| `([^`]+)` \|$", README, re.MULTILINE)
    assert row is not None
    tools = "PATH=/tools/bin:$PATH; rm -f ~/.local/bin/gateway; "
    shown = debian.run(f"{tools}{row[1]} >&2; {row[2]}/gateway --version")
    assert shown.startswith(f"gateway {__version__} ")


def line_of_the_readme(start: str) -> str:
    """Return the one command of the README that begins so."""
    (line,) = re.findall(rf"^\$ ({re.escape(start)}.*)$", README, re.MULTILINE)
    return str(line)


def test_the_lines_of_the_readme_lead_to_a_sidecar_of_triton(
    debian: Debian, triton_server: RunningServer
) -> None:
    """`make run` shows the demo, and then the sidecar's lines serve a model of Triton."""
    shown = debian.run(
        f'{line_of_the_readme("make run")} ARGS="--once --http 127.0.0.1:0 --grpc 127.0.0.1:0"'
    )
    assert "results agree, to the last bit" in shown
    export = line_of_the_readme("export PATH")
    serve = line_of_the_readme("gateway serve --upstream").replace(
        "127.0.0.1:9001", triton_server.grpc_address
    )
    addresses = "--http 127.0.0.1:0 --grpc 127.0.0.1:0 --admin 127.0.0.1:0"
    with debian.started(f"{export}; exec {serve} {addresses}") as process:
        found = listening(process)
        health = line_of_the_readme("gateway health").replace("127.0.0.1:8001", found["main.grpc"])
        debian.run(f"{export}; until {health}; do sleep 1; done")
        body = {"inputs": [{"name": f"INPUT{number}", **ROW} for number in range(2)]}
        status, document = get(f"http://{found['main.http']}/v2/models/simple/infer", body)
    outputs = {each["name"]: each["data"] for each in document["outputs"]}
    assert (200, [2 * each for each in range(16)]) == (status, outputs["OUTPUT0"])
