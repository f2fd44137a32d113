"""What compiling would gain: the modules it is measured with."""

from __future__ import annotations

from pathlib import Path

import gateway
from benchmarks.compiled import MODULES


def test_modules_are_there() -> None:
    """Every module that is compiled for the comparison exists, and none is named twice."""
    root = Path(gateway.__file__).parent.parent
    assert [] == [name for name in MODULES if not (root / name).is_file()]
    assert len(set(MODULES)) == len(MODULES)
