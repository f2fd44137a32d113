"""Print the unit tests of the packages that differ from `main`, for `make quick`.

A change of `gateway/routing/balance.py` selects `tests/unit/routing`, and a change of a test
selects its folder. Uncommitted changes count, too.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

UNIT: Final = Path("tests/unit")
_SOURCES: Final = (Path("gateway"), UNIT)


def unit_tests(changed: Iterable[str]) -> list[str]:
    """Return the folders and files of `tests/unit` that belong to changed files."""
    found = {test for name in changed for test in [_test_of(Path(name))] if test is not None}
    return sorted(str(test) for test in found if not any(above in found for above in test.parents))


def _test_of(path: Path) -> Path | None:
    """Return the nearest folder of tests that mirrors a changed file; None for other files."""
    root = next((each for each in _SOURCES if path.is_relative_to(each)), None)
    if root is None or path.suffix != ".py":
        return None
    inner = path.relative_to(root)
    if len(inner.parts) == 1:  # a module of the root has a test of its own there
        test = UNIT / (inner if root == UNIT else f"test_{inner.name}")
        return test if test.is_file() else None
    folder = UNIT / inner.parent
    while folder != UNIT and not folder.is_dir():
        folder = folder.parent
    return None if folder == UNIT else folder


def changed_files(base: str = "main") -> list[str]:
    """Return the files that differ from *base*, uncommitted and new ones included."""
    found = _git("diff", "--name-only", f"{base}...HEAD")
    found += _git("diff", "--name-only", "HEAD")
    return found + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.stdout.write(" ".join(unit_tests(changed_files())) + "\n")
