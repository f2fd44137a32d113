"""Runs tests in a copy of the project that has no migration kit: no folder, no line, none of its tests.

    python -m tests.without_migration tests/unit tests/properties -q -n 2

All arguments are those of pytest. The copy has `gateway/migration` and its line in
`gateway/registry.py` removed, and all folders `migration` of the tests. Tests elsewhere that check
files which describe the kit too have the marker `migration`, and are left out by
`tests/conftest.py`. The copy is in a folder for temporary files, and is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.project_copy import copy_project

WING: Final = "gateway/migration"
_LINE: Final = "gateway.migration:"


def make_core(folder: Path) -> None:
    """Write a copy of the project without the migration kit into a folder that does not exist."""
    copy_project(folder, compiled=True)
    shutil.rmtree(folder / WING)
    for found in (folder / "tests").glob("*/migration"):
        shutil.rmtree(found)
    registry = folder / "gateway" / "registry.py"
    lines = registry.read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if _LINE not in line]
    if len(kept) != len(lines) - 1:
        raise LookupError(
            f"{len(lines) - len(kept)} lines of {registry.name} have {_LINE}; expected 1"
        )
    registry.write_text("".join(kept), "utf-8")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the gateway of a copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, text=True, check=False
    )


def main(arguments: Sequence[str]) -> int:
    """Run pytest in a copy; return its status."""
    with TemporaryDirectory(prefix="core-") as temporary:
        core = Path(temporary) / "core"
        make_core(core)
        return run(core, "-m", "pytest", *arguments).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
