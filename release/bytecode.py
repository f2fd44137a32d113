"""Compiles Python's modules in a container image, so that a start compiles none of them.

Nothing can be written where the image runs, and its files have other times than when they were
compiled. So the bytecode counts without a look at its source ("unchecked-hash"): that of the
gateway, of what a start imports, and of all modules that have bytecode, Python's own included.
"""

import importlib.util
import py_compile
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

# The packages that a start imports, what serves, and what a check of the file imports.
STARTS = (
    *("aiohttp", "cramjam", "grpc", "httptools", "msgspec", "numpy", "orjson", "simdjson"),
    *("uvloop", "yaml", "gateway.app.run.run", "gateway.cli.commands", "gateway.cli.configuration"),
    *("gateway.cli.calling.health", "gateway.cli.serving.run", "gateway.cli.serving.serve"),
)
_PRINT = (
    "import sys\nfor each in list(sys.modules.values()): print(getattr(each, '__file__', None))"
)
_UNCHECKED = (1).to_bytes(4, "little")


def main() -> None:
    """Compile what this Python imports."""
    packages = Path(sysconfig.get_path("purelib"))
    folders = {packages, *Path(sysconfig.get_path("stdlib")).parent.glob("python3*")}
    sources = {*(packages / "gateway").rglob("*.py"), *imported(STARTS)}
    compile_all({*sources, *compiled_before(folders)})


def imported(modules: Iterable[str]) -> Iterator[Path]:
    """Yield the sources of all modules that are in memory once some are imported."""
    script = "\n".join([*(f"import {name}" for name in modules), _PRINT])
    command = [sys.executable, "-B", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return (Path(line) for line in done.stdout.splitlines() if line.endswith(".py"))


def compiled_before(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the sources that have bytecode; remove what has no source, or is for `python -O`."""
    for path in (each for folder in folders for each in list(folder.rglob("__pycache__/*.pyc"))):
        source = Path(importlib.util.source_from_cache(str(path)))
        if ".opt-" in path.name or not source.exists():
            path.unlink()
        else:
            yield source


def compile_all(sources: Iterable[Path]) -> None:
    """Compile modules, unless their bytecode is that already."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for source in sorted(sources):
        target = Path(importlib.util.cache_from_source(str(source)))
        if not target.exists() or target.read_bytes()[4:8] != _UNCHECKED:
            py_compile.compile(str(source), doraise=True, invalidation_mode=mode)


if __name__ == "__main__":
    main()
