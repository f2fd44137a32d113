"""Bytecode in the image: it counts although the files there have other times."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path

from tests.unit.release.loading import load

bytecode = load("bytecode")
_BY_TIME = py_compile.PycInvalidationMode.TIMESTAMP  # SOURCE_DATE_EPOCH would change it
TRACE = "import sys; sys.dont_write_bytecode = True; import pack.used"


def compiles(folder: Path) -> list[str]:
    """Return the modules of *folder* whose bytecode an import does not use."""
    command = [sys.executable, "-v", "-c", TRACE]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if str(folder) in line]
    mark = "# code object from "
    used = {line.removeprefix(mark).strip("'") for line in lines if line.startswith(mark)}
    assert used, done.stderr
    return sorted(each for each in used if each.endswith(".py"))


def test_all_bytecode_of_the_image_was_stale(tmp_path: Path) -> None:
    """An image gives its files other times, which the bytecode of a usual compilation does not survive."""
    package = tmp_path / "pack"
    package.mkdir()
    sources = [package / name for name in ("__init__.py", "used.py")]
    for source in sources:
        source.write_text("x = 1\n")
        py_compile.compile(str(source), invalidation_mode=_BY_TIME)
        os.utime(source, (0, 0))
    assert list(map(str, sources)) == compiles(tmp_path)
    gone = package / "__pycache__" / Path(importlib.util.cache_from_source("gone.py")).name
    gone.write_bytes(b"")
    bytecode.compile_all(bytecode.compiled_before([tmp_path]))
    assert not gone.exists()
    times = {path: path.stat().st_mtime_ns for path in package.rglob("*.pyc")}
    os.utime(sources[0], (7, 7))
    assert [] == compiles(tmp_path)
    bytecode.compile_all(sources)
    assert times == {path: path.stat().st_mtime_ns for path in package.rglob("*.pyc")}


def test_what_a_start_imports_is_known() -> None:
    """It is far more than the modules that are named, Python's own included."""
    found = set(bytecode.imported(bytecode.STARTS))
    names = {path.name for path in found}
    assert {"gateway.py", "supervisor.py", "selectors.py", "base_events.py"} <= names
    assert all(path.exists() for path in found)
