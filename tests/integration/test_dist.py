"""Builds of one commit in two places are equal to the byte, and contain what they should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EPOCH = "1700000000"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def build(sources: Path, out: Path, umask: int, zone: str) -> dict[str, bytes]:
    """Build in a copy of the tree; return the archives by name."""
    skipped = shutil.ignore_patterns(
        ".venv", ".git", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, sources, ignore=skipped)
    for path in sources.rglob("*"):  # as a checkout with this umask would have them
        path.chmod((0o777 if path.is_dir() or os.access(path, os.X_OK) else 0o666) & ~umask)
        os.utime(path, None)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(sources)]
    environment = {**os.environ, "TZ": zone, "SOURCE_DATE_EPOCH": EPOCH}
    environment.pop("GATEWAY_PURE", None)
    done = subprocess.run(
        command, env=environment, umask=umask, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_builds_in_two_places_are_equal(tmp_path: Path) -> None:
    """Path, umask and time zone leave no trace; the contents are complete, and nothing else."""
    first = build(tmp_path / "a", tmp_path / "out1", 0o022, "UTC")
    second = build(
        tmp_path / "a much" / "longer path" / "b", tmp_path / "out2", 0o077, "Asia/Tokyo"
    )
    assert first.keys() == second.keys()
    assert [] == [name for name in first if first[name] != second[name]]
    (wheel,) = (tmp_path / "out1").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert {"gateway", f"{wheel.name.split('-cp')[0]}.dist-info"} == {
        name.partition("/")[0] for name in names
    }
    assert not [name for name in names if name.endswith((".pth", ".pyx", ".pxi", ".c"))]
    assert [name for name in names if "_accelerated" in name]
    (archive,) = (tmp_path / "out1").glob("*.tar.gz")
    with tarfile.open(archive) as packed_sources:
        found = {name.partition("/")[2] for name in packed_sources.getnames()}
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    ).stdout.split()
    assert {"tests/conftest.py", "docs/README.md", "CHANGELOG.md", "setup.py"} <= found
    assert set() == set(tracked) - found
