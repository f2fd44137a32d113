"""A short run of chaos; `make chaos` is a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Chaos


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_no_response_is_wrong_or_late(tmp_path: Path) -> None:
    """Faults, killed workers, reloads and cancelled calls cause errors, and nothing else."""
    summary = await Chaos(1, 30, tmp_path).run()
    print(summary)
    assert not summary.wrong
    answered = sum(count for name, count in summary.outcomes.items() if name.endswith(" answered"))
    assert answered > 500
    assert len(summary.events) > 10
