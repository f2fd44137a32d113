"""Imports the scripts of `release/`, which is no package: builds run them before anything exists."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

RELEASE = Path(__file__).parents[3] / "release"


def load(name: str) -> ModuleType:
    """Return the module *name* of the folder."""
    if str(RELEASE) not in sys.path:
        sys.path.append(str(RELEASE))
    return import_module(name)
