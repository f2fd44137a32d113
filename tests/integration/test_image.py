"""The container image: built without a daemon, run as user 10001 on a read-only file system."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from gateway import __version__

ROOT = Path(__file__).parents[2]
IMAGE = f"tensor-gateway:{__version__}"
BUILDAH = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
MB = 1_000_000
MISSING = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
NEEDED = (
    f"the image cannot be built here: {', '.join(MISSING)} missing (apt-get install {' '.join(MISSING)})"
    if MISSING
    else "the image cannot be built here: mmdebstrap and chroot need root"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING) or os.geteuid() != 0, reason=NEEDED),
]


def buildah(*arguments: str) -> str:
    command = ["buildah", *arguments]
    done = subprocess.run(command, env=BUILDAH, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    command = ["make", "--silent", "image-offline", "VARIANTS=slim"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    name = buildah("from", "--pull-never", IMAGE)
    yield name
    buildah("rm", name)


@pytest.fixture(scope="module")
def root(container: str) -> Path:
    return Path(buildah("mount", container))


def test_settings_of_the_image(container: str) -> None:
    """It runs without root, ends by SIGTERM, and asks for liveness."""
    config = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    assert "10001" == config["User"]
    assert "SIGTERM" == config["StopSignal"]
    assert ["CMD", "gateway", "health", "--live"] == config["Healthcheck"]["Test"]
    assert __version__ == config["Labels"]["org.opencontainers.image.version"]


def test_the_bill_of_materials_is_what_is_installed(root: Path) -> None:
    """No package is missing, and none is too much; the lock has all but the gateway."""
    (site,) = (root / "opt" / "gateway" / "lib").glob("python3*/site-packages")
    document = json.loads((root / "opt" / "gateway" / "sbom.cdx.json").read_text())
    listed = {(each["name"], each["version"]) for each in document["components"]}
    own = document["metadata"]["component"]
    installed = {
        (re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower(), each.version)
        for each in distributions(path=[str(site)])
    }
    assert installed == {*listed, (own["name"], own["version"])}
    statement = json.loads((root / "opt" / "gateway" / "provenance.json").read_text())
    assert statement["subject"]


def test_the_image_is_small(root: Path) -> None:
    """What is above the base has at most 130 MB."""
    found = (path for path in (root / "opt" / "gateway").rglob("*") if not path.is_symlink())
    assert sum(path.stat().st_size for path in found if path.is_file()) <= 130 * MB


def test_it_serves_as_another_user_without_writing(container: str, root: Path) -> None:
    """User 10001 can write nothing there; the gateway lives before its server does."""
    command = ["buildah", "run", "--user", "10001", container, "--", "gateway"]
    serve = ["serve", "--upstream", "oip+grpc://127.0.0.1:9", "--grpc", "off"]
    serve += ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, *serve], env=BUILDAH, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    try:
        address = ""
        for line in process.stderr:
            if '"started"' in line:
                address = json.loads(line)["admin"]
                break
        assert address
        live = subprocess.run(
            [*command, "health", "--live", address],
            env=BUILDAH,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (0, "live\n") == (live.returncode, live.stdout)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.stderr.read()
        process.wait(60)
        process.stderr.close()
    recent = [path for path in (root / "opt").rglob("*") if os.lstat(path).st_uid == 10001]
    assert [] == recent
