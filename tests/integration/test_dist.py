"""Builds of one commit in two places are equal to the byte, and contain what they should."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.project_copy import ROOT, copy_project

EPOCH = "1700000000"
# From a source archive: those that read files of the whole project.
ARCHIVED_TESTS = (
    "tests/unit/ir",
    "tests/unit/release",
    "tests/unit/test_deploy.py",
    "tests/unit/test_docs.py",
    "tests/unit/test_workflows.py",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(command: list[str], sources: Path, umask: int, zone: str) -> None:
    """Run a command in *sources* as on another machine."""
    environment = {**os.environ, "TZ": zone, "SOURCE_DATE_EPOCH": EPOCH}
    environment.pop("GATEWAY_PURE", None)
    done = subprocess.run(
        command,
        cwd=sources,
        env=environment,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def copy(sources: Path, umask: int) -> None:
    """Copy the tree as a checkout with this umask would have it."""
    copy_project(sources)
    for path in sources.rglob("*"):
        path.chmod((0o777 if path.is_dir() or os.access(path, os.X_OK) else 0o666) & ~umask)
        os.utime(path, None)


def made_in(sources: Path, umask: int, zone: str) -> dict[str, bytes]:
    """Make a release; return all files by name."""
    copy(sources, umask)
    run([sys.executable, "release/dist.py"], sources, umask, zone)
    return {path.name: path.read_bytes() for path in (sources / "dist").iterdir()}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a release, in which two releases were compared."""
    folder = tmp_path_factory.mktemp("release")
    first = made_in(folder / "a", 0o022, "UTC")
    sources, zone = folder / "a much" / "longer path" / "b", "Asia/Tokyo"
    second = made_in(sources, 0o077, zone)
    assert first.keys() == second.keys()
    assert [] == [name for name in first if first[name] != second[name]]
    # The wheels of a release are built from its source archive, which others build so.
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", "built"]
    run(command, sources, 0o077, zone)
    (archive,) = (sources / "built").iterdir()
    assert first[archive.name] == archive.read_bytes()
    return folder / "a" / "dist"


def test_a_release_has_its_parts(release: Path) -> None:
    """Path, umask and time zone left no trace; sums, materials and provenance are of these files."""
    names = {path.name for path in release.iterdir()}
    kinds = ("manylinux_2_17_x86_64", "py3-none-any", ".tar.gz")
    assert [1, 1, 1] == [sum(kind in name for name in names) for kind in kinds]
    others = {"sbom.cdx.json", "provenance.json", "SHA256SUMS"}
    assert len(names) == 3 + len(others & names)
    sums = {
        name: digest
        for digest, name in (
            line.split("  ") for line in (release / "SHA256SUMS").read_text().splitlines()
        )
    }
    assert sums == {
        name: hashlib.sha256((release / name).read_bytes()).hexdigest()
        for name in names - {"SHA256SUMS"}
    }
    statement = json.loads((release / "provenance.json").read_text())
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert subjects == {name: sums[name] for name in sums if name != "provenance.json"}


@pytest.mark.parametrize(("kind", "is_compiled"), [("manylinux", True), ("none-any", False)])
def test_wheels_have_the_package_alone(release: Path, kind: str, is_compiled: bool) -> None:
    """Neither path files nor sources of compiled functions; a project names its addresses."""
    (wheel,) = release.glob(f"*{kind}*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (packed.read(name) for name in names if name.endswith("/METADATA"))
    version = wheel.name.split("-")[1]
    assert {"gateway", f"tensor_gateway-{version}.dist-info"} == {
        name.partition("/")[0] for name in names
    }
    assert not [name for name in names if name.endswith((".pth", ".pyx", ".pxi", ".c"))]
    assert is_compiled == any("_accelerated" in name and name.endswith(".so") for name in names)
    assert metadata.count(b"\nProject-URL: ") >= 3


def test_the_source_archive_is_the_project(release: Path) -> None:
    """Each file of the repository is there."""
    (archive,) = release.glob("*.tar.gz")
    with tarfile.open(archive) as packed_sources:
        found = {name.partition("/")[2] for name in packed_sources.getnames()}
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    ).stdout.split()
    assert {"tests/conftest.py", "docs/README.md", "CHANGELOG.md", "setup.py"} <= found
    assert set() == set(tracked) - found


def test_tests_run_from_the_source_archive(release: Path, tmp_path: Path) -> None:
    """They test the archive, not the repository, and need no file that it lacks."""
    (archive,) = release.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (sources,) = tmp_path.iterdir()
    (sources / "tests" / "test_place.py").write_text(
        "import gateway\nfrom pathlib import Path\n\n"
        "def test_place():\n"
        "    assert Path(gateway.__file__).parents[1] == Path(__file__).parents[1]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    run([*command, "tests/test_place.py", *ARCHIVED_TESTS], sources, 0o022, "UTC")
