"""The machine and the software of a run: cores, kernel, versions, other load."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import gateway
from benchmarks.load import tools
from benchmarks.processes import cores

_PACKAGES = ("aiohttp", "grpcio", "protobuf", "uvloop", "orjson", "pysimdjson", "numpy")


def describe() -> dict[str, object]:
    """Return the facts that a reader needs to judge figures."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "pinned": cores(),
        "kernel": platform.release(),
        "python": f"{platform.python_version()} of {sys.base_prefix}",
        "gateway": gateway.__version__,
        "commit": _commit(),
        "packages": {name: version(name) for name in _PACKAGES},
        "load": tools(),
        "load_average": os.getloadavg()[0],
    }


def text(about: Mapping[str, object]) -> str:
    """Return *about* as text, with a warning if the figures will be inaccurate."""
    packages = about["packages"]
    assert isinstance(packages, dict)
    lines = [
        f"{about['date']}; {about['cpu']}, {about['cores']} cores, Linux {about['kernel']}",
        f"gateway {about['gateway']} ({about['commit']}), Python {about['python']}, "
        + ", ".join(f"{name} {number}" for name, number in packages.items()),
        f"load by {about['load']}; load average before the run {about['load_average']:.2f}",
    ]
    if "pyload" in str(about["load"]):
        lines.append("install wrk and nghttp2-client (h2load): pyload's own cost limits req/s")
    return "\n".join(lines)


def caption(about: Mapping[str, object]) -> str:
    """Return the processor, the date and the version of a run, as one line."""
    return f"{about['cpu']}, {about['cores']} cores, {about['date']}, gateway {about['gateway']}"


def cpu_ticks(stat: Path = Path("/proc/stat")) -> tuple[int, int]:
    """Return the ticks that the host has taken away since it started, and all ticks."""
    # user, nice, system, idle, iowait, irq, softirq, steal
    ticks = [int(each) for each in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)


def _commit() -> str:
    """Return the current commit, with a plus sign if files have changed."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=10)
        return done.stdout.strip()
    return "no commit"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
