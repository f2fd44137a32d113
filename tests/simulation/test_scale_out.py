"""Scale-out: what moves, what a divided limit costs, and how late calls are that nobody coordinates."""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest

from tests.simulation.scale_out import (
    SERVICE_S,
    moved_models,
    moved_share,
    p99_s,
    probes_per_second,
    rejected_share,
    row,
)

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "scale-out.md"


@pytest.mark.parametrize("size", [1, 4, 20])
def test_one_more_endpoint_moves_its_share(size: int) -> None:
    """About 1/(N+1) of the sequences move, and none for the same number of endpoints."""
    assert moved_share(size, size + 1) == pytest.approx(1 / (size + 1), abs=0.08)
    assert moved_share(size + 1, size) == moved_share(size, size + 1)
    assert 0 == moved_share(size, size)


@pytest.mark.parametrize("copies", [1, 3])
def test_one_more_endpoint_loads_its_share_of_the_models(copies: int) -> None:
    """About 1/(N+1) of the models are loaded again, however many copies they have."""
    assert moved_models(10, 11, copies) == pytest.approx(1 / 11, abs=0.03)
    assert 0 == moved_models(10, 10, copies)


def test_a_divided_limit_rejects_more_with_more_replicas() -> None:
    """One replica rejects nothing below the limit; many have an unequal load."""
    shares = [rejected_share(size) for size in (1, 10, 100, 1000)]
    assert 0 == shares[0]
    assert sorted(shares) == shares
    assert shares[-1] > 0.05


def test_replicas_that_see_only_their_own_calls_are_later() -> None:
    """One replica sees every queue; with many, the slowest calls are those of a random choice."""
    alone, several, many = (p99_s(size) for size in (1, 20, 1000))
    assert alone < several < many
    # Of a queue with exponential times: -ln(1 - 0.99) x the service time / (1 - the load).
    assert many == pytest.approx(log(100) * SERVICE_S / 0.3, rel=0.25)


def test_probes_grow_with_replicas_and_endpoints() -> None:
    """Each replica asks each endpoint in each interval."""
    assert probes_per_second(1000, 20) == 1000 * probes_per_second(1, 20)
    assert probes_per_second(10, 20) == 2 * probes_per_second(10, 10)


def test_the_page_has_these_figures() -> None:
    """`make plots` prints the rows of the table."""
    text = PAGE.read_text()
    assert [] == [size for size in (1, 10, 100) if row(size) not in text]
