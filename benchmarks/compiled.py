"""The gain of compiling the hot modules with mypyc: both builds in turn, in copies.

    python -m benchmarks.compiled            # all of MODULES; compiling takes minutes
    python -m benchmarks.compiled gateway/wire/heads/metadata.py --only json-grpc --rounds 1

NOTES.md has the results, and why the gateway is not compiled. It needs a C compiler. Each round
runs `stages` once for each build, in a process of its own. It compares the whole of a small request
on connections in memory, the minimum of the rounds.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import stages
from gateway.telemetry.log import logs

_ROOT = Path(__file__).parent.parent

# The modules of the hot path, by folder.
_HOT_MODULES = {
    "ir/bodies": ("streams",),
    "policies": (
        "classify",
        "forward_headers",
        "model_config",
        "observe",
    ),
    "policies/complete": (
        "policy",
        "tensors",
    ),
    "policies/limits": (
        "concurrency",
        "policy",
        "retry",
    ),
    "protocols/oip/grpc": (
        "decode",
        "dialects",
        "encode",
        "management",
        "scan",
    ),
    "protocols/oip/http": (
        "infer_request",
        "infer_response",
        "infer_routes",
    ),
    "protocols/oip/json": (
        "binary_tensors",
        "elements",
        "templates",
        "write",
    ),
    "protocols/oip": ("shared_memory",),
    "routing": (
        "match",
        "model_discovery",
        "router",
        "server_status",
    ),
    "routing/balancing": ("endpoints",),
    "transports": ("memory_budget",),
    "transports/grpc": (
        "admission",
        "client_call",
        "client_pool",
        "headers",
        "messages",
    ),
    "transports/http": (
        "client_rules",
        "exchange",
        "headers",
        "path_router",
        "request_head",
        "response_writer",
        "timeout_headers",
    ),
    "transports/http1": (
        "chunked",
        "client_connection",
        "head_reader",
        "request",
        "response_reader",
    ),
    "transports/http2": (
        "connection",
        "flood_control",
        "frame_reader",
        "frames",
        "hpack",
        "streams",
        "windows",
    ),
    "wire/heads": ("metadata",),
    "wire/protobuf": ("wire_format",),
}
MODULES = tuple(
    f"gateway/{folder}/{name}.py" for folder, names in _HOT_MODULES.items() for name in names
)
"""On the path of a small request, and taken by mypyc.

It does not take asynchronous generators (frontend, upstream, grpc_call, grpc_incoming), generic
protocols checked at run time (wire/codec), classes that interpreted ones inherit from (oip/grpc,
oip/http), classes with slots of others (policies/limits/deadline, and so the timer wheel), or
children of asyncio's classes (net/write_drain).
"""

_FUTURE = "from __future__ import annotations\n"
# mypyc resolves the field types of a dataclass with the names of its own module only.
_NAMED = f"{_FUTURE}import builtins\n\nglobals()['memoryview'] = builtins.memoryview\n"


def main() -> int:
    """Build, measure in turn, and print a line for each way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--only", default="", metavar="TEXT", help="ways named so in part")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10, help="of each stage in a round")
    parser.add_argument("--whole-of", metavar="WAY", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.whole_of is not None:
        logs.configure("warning", "json")
        print(_whole(arguments.whole_of, arguments.batches))
        return 0
    with tempfile.TemporaryDirectory() as name:
        builds = {"plain": Path(name) / "plain", "compiled": Path(name) / "compiled"}
        for folder in builds.values():
            _copy(folder)
        build(builds["compiled"], arguments.modules)
        for way in stages.ways():
            if arguments.only not in way.name:
                continue
            us = {build: float("inf") for build in builds}
            for _ in range(arguments.rounds):
                for found, folder in builds.items():
                    us[found] = min(us[found], _measure_us(folder, way.name, arguments.batches))
            gain = us["plain"] / us["compiled"]
            print(
                f"{way.name:10} plain {us['plain']:6.1f} us, compiled {us['compiled']:6.1f} us, "
                f"plain / compiled {gain:.2f}",
                flush=True,
            )
    return 0


def build(folder: Path, modules: Sequence[str]) -> None:
    """Compile *modules* in *folder*, next to their sources.

    Raises:
        RuntimeError: mypyc or the compiler failed, or left out a module. The text ends with their
            output.
    """
    for name in modules:
        file = folder / name
        source = file.read_text()
        if "memoryview" in source:
            file.write_text(source.replace(_FUTURE, _NAMED, 1))
    done = subprocess.run(
        [sys.executable, "-m", "mypyc", *modules],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    missing = [name for name in modules if not [*folder.glob(f"{name[:-3]}.*.so")]]
    if done.returncode or missing:
        output = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"mypyc ended with {done.returncode} without {missing}: {output}")


def _copy(folder: Path) -> None:
    for package in ("gateway", "benchmarks"):
        shutil.copytree(
            _ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    shutil.copy(_ROOT / "pyproject.toml", folder)


def _measure_us(folder: Path, way: str, batches: int) -> float:
    words = ["-m", "benchmarks.compiled", "--whole-of", way, "--batches", str(batches)]
    done = subprocess.run(
        [sys.executable, *words],
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{folder.name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout)


def _whole(way: str, batches: int) -> float:
    """Return the CPU time of a small request in this process, in microseconds."""
    found = importlib.util.find_spec("gateway")
    if found is None or Path(str(found.origin)).parent.parent != Path.cwd():
        raise RuntimeError(f"{found} is not the build in {Path.cwd()}")
    rows = stages.measure(way, lambda _text: None, batches)
    return next(row.us for row in rows if row.stage == "whole")


if __name__ == "__main__":
    sys.exit(main())
