"""Scale-out: what moves, and what a divided limit costs."""

from __future__ import annotations

import pytest

from tests.simulation.scale_out import moved_share, rejected_share


@pytest.mark.parametrize("size", [1, 4, 20])
def test_one_more_endpoint_moves_its_share(size: int) -> None:
    """About 1/(N+1) of the sequences move, and none for the same number of endpoints."""
    assert moved_share(size, size + 1) == pytest.approx(1 / (size + 1), abs=0.08)
    assert moved_share(size + 1, size) == moved_share(size, size + 1)
    assert 0 == moved_share(size, size)


def test_a_divided_limit_rejects_more_with_more_replicas() -> None:
    """One replica rejects nothing below the limit; many have an unequal load."""
    shares = [rejected_share(size) for size in (1, 10, 100, 1000)]
    assert 0 == shares[0]
    assert sorted(shares) == shares
    assert shares[-1] > 0.05
