"""The benchmark of compiled modules: the modules it compiles."""

from __future__ import annotations

from pathlib import Path

import gateway
from benchmarks.compiled import MODULES


def test_modules_exist() -> None:
    """Every module that is compiled for the comparison exists, and is listed once."""
    root = Path(gateway.__file__).parent.parent
    assert [] == [name for name in MODULES if not (root / name).is_file()]
    assert len(set(MODULES)) == len(MODULES)
