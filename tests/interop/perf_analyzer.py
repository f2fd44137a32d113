"""NVIDIA's Performance Analyzer as a command: its wheel, and the C library that it needs.

The wheel needs glibc 2.38.  On an older Debian the libraries of the next release are unpacked into the
cache, and its own loader runs the program with them.  Nothing of the machine changes: apt-get keeps its
lists and packages in the cache, too.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.interop.environments import cache_folder, environment, exclusive
from tests.interop.requirements import PERF_ANALYZER

GLIBC = (2, 38)
NEXT_RELEASE = "trixie"
PACKAGES = ("libc6", "libstdc++6", "libgcc-s1", "zlib1g", "libssl3t64", "libzstd1")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_INSTALL_S = 300.0


@lru_cache
def command() -> tuple[str, ...]:
    """Return the words that start Performance Analyzer; skips the test where it cannot run."""
    if platform.machine() != "x86_64":
        pytest.skip(f"Performance Analyzer has no wheel for {platform.machine()}")
    folder = cache_folder() / "perf-analyzer"
    with exclusive(cache_folder() / "perf-analyzer.lock"):
        binary = _binary(folder / PERF_ANALYZER.replace("==", "-"))
        if _own_glibc() >= GLIBC:
            return (str(binary),)
        root = _libraries(folder / NEXT_RELEASE)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    loader = libraries / "ld-linux-x86-64.so.2"
    return (str(loader), "--library-path", str(libraries), str(binary))


def _own_glibc() -> tuple[int, ...]:
    _, version = platform.libc_ver()
    return tuple(int(part) for part in version.split(".")) if version else (0,)


def _binary(folder: Path) -> Path:
    """Return the program of the wheel, which is downloaded once."""
    found = folder / "perf_analyzer/bin/perf_analyzer"
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = str(environment("client") / "bin/pip")
        # pip would refuse the wheel for this machine's glibc.
        options = ["--only-binary=:all:", "--platform", "manylinux_2_38_x86_64", PERF_ANALYZER]
        _run(pip, "download", "--quiet", "--no-deps", "--dest", str(folder), *options)
        (wheel,) = folder.glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()
        found.chmod(0o755)
    return found


def _libraries(folder: Path) -> Path:
    """Return the folder that holds the libraries of the next release, unpacked once."""
    root = folder / "root"
    if (folder / ".ready").exists():
        return root
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        pytest.skip("Performance Analyzer needs glibc 2.38, or a Debian to take it from")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("lists/partial", "archives/partial", "root", "empty"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    listed = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    mirrors = [line for line in listed.split() if line.rstrip("/").endswith("/debian")]
    if not mirrors:
        pytest.skip("Performance Analyzer needs glibc 2.38; no Debian mirror is configured")
    signed = f"[arch=amd64 signed-by={_KEYRING}]"
    (folder / "sources.list").write_text(f"deb {signed} {mirrors[0]} {NEXT_RELEASE} main\n")
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": folder / "empty",
        "Dir::Etc::Preferences": folder / "none",
        "Dir::Etc::PreferencesParts": folder / "empty",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder,
        "APT::Sandbox::User": "",
        "APT::Architecture": "amd64",
    }
    apt = ["apt-get", *(f"--option={key}={value}" for key, value in options.items())]
    _run(*apt, "--quiet", "update")
    _run(*apt, "--quiet", "download", *PACKAGES, folder=folder / "archives")
    for package in sorted((folder / "archives").glob("*.deb")):
        _run("dpkg-deb", "--extract", str(package), str(root))
    shutil.rmtree(folder / "lists")
    shutil.rmtree(folder / "archives")
    (folder / ".ready").touch()
    return root


def _run(*words: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=_INSTALL_S, check=False, cwd=folder
    )
    if done.returncode:
        pytest.skip(f"{words[0]} cannot install Performance Analyzer: {done.stderr[-500:]}")
    return done.stdout


def run(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run Performance Analyzer to its end.

    Raises:
        subprocess.TimeoutExpired: It took longer than *timeout_s*.
    """
    environ = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    return subprocess.run(
        [*command(), *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False, env=environ,
    )  # fmt: skip
