"""Copies the project as a checkout has it: without what tools and builds leave in it."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_AT_THE_TOP: Final = frozenset({".git", ".venv", "build", "dist", "site"})
"""Folders of these names elsewhere are sources."""
_COMPILED: Final = "__pycache__"
_ANYWHERE: Final = ("*.egg-info", ".*_cache", ".hypothesis")


def is_source(name: str) -> bool:
    """Return whether a path, relative to the project, is none of what tools leave behind."""
    parts = Path(name).parts
    return parts[0] not in _AT_THE_TOP and _COMPILED not in parts


def copy_project(folder: Path, *also_left_out: str, compiled: bool = False) -> None:
    """Copy the project into a folder that does not exist.

    Args:
        folder: The copy.
        also_left_out: Patterns of further names.
        compiled: Copy the modules as Python has compiled them, too, which takes it a minute.
    """
    by_name = ignore_patterns(*_ANYWHERE, *also_left_out, *([] if compiled else [_COMPILED]))

    def left_out(at: str, names: list[str]) -> set[str]:
        return by_name(at, names) | (set(names) & _AT_THE_TOP if Path(at) == ROOT else set())

    copytree(ROOT, folder, ignore=left_out)
