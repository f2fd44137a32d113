"""The build backend: setuptools, whose archives get the same bytes wherever they are built.

Two builds of a commit differ only in the archives around equal files: modes follow the umask, times
the clock and the time zone, and what an earlier build left behind may be in them. Stale files are
removed first. The archives are written again, with fixed modes, times, owners and order.

Source: PEP 517; https://reproducible-builds.org/specs/source-date-epoch/.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tarfile
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "git",
    "normalize_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
    "source_epoch",
]

_ZIP_EPOCH = 315_532_800  # 1980: archives of wheels have no earlier time
_EXECUTABLE = 0o100


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel into *wheel_directory* and return its name."""
    epoch = _prepare()
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    normalize_wheel(Path(wheel_directory, name), epoch)
    return name


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Build the source archive into *sdist_directory* and return its name."""
    epoch = _prepare()
    name: str = build_meta.build_sdist(sdist_directory, config_settings)
    _normalize_sdist(Path(sdist_directory, name), epoch)
    return name


def source_epoch() -> int:
    """Return the time of the sources in seconds: of the commit, or of the archive they came in."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    if Path("PKG-INFO").exists():  # an unpacked source archive, with the times of its entries
        return int(Path("PKG-INFO").stat().st_mtime)
    if Path(".git").exists():  # a folder, or a file in a worktree
        return int(git("log", "-1", "--format=%ct") or _ZIP_EPOCH)
    return _ZIP_EPOCH


def git(*arguments: str) -> str:
    """Return the output of git; "" outside a checkout, and where git is not installed."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def normalize_wheel(path: Path, epoch: int) -> None:
    """Write a wheel again, with fixed modes, times and order; its files keep their contents."""
    when = time.gmtime(max(epoch, _ZIP_EPOCH))[:6]
    with zipfile.ZipFile(path) as wheel:
        files = {entry.filename: wheel.read(entry) for entry in wheel.infolist()}
    # RECORD comes last, as the specification of wheels recommends.
    order = sorted(files, key=lambda name: (".dist-info/" in name, name.endswith("/RECORD"), name))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in order:
            if name.endswith("/"):  # a folder; auditwheel writes some
                continue
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix
            mode = 0o755 if name.endswith(".so") or ".so." in name else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, files[name])


def _normalize_sdist(path: Path, epoch: int) -> None:
    """Write a source archive again, with fixed modes, times, owners and order."""
    with tarfile.open(path) as archive:
        found = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = [
            (member, None if member.isdir() else archive.extractfile(member)) for member in found
        ]
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as written:
            for member, content in contents:
                entry = tarfile.TarInfo(member.name)
                entry.type, entry.size, entry.mtime = member.type, member.size, epoch
                is_executable = member.isdir() or member.mode & _EXECUTABLE
                entry.mode = 0o755 if is_executable else 0o644
                written.addfile(entry, content)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=epoch) as packed:
        packed.write(buffer.getvalue())


def _prepare() -> int:
    """Remove what an earlier build left behind; return the time of the sources, also for tools."""
    epoch = source_epoch()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    for stale in (*Path("build").glob("lib*"), *Path("build").glob("bdist*")):
        shutil.rmtree(stale)
    # setuptools would take the list of files of an earlier build.
    Path("tensor_gateway.egg-info/SOURCES.txt").unlink(missing_ok=True)
    return epoch
