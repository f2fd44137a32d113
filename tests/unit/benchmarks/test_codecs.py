"""The benchmark of codecs: its comparisons do the same work."""

from __future__ import annotations

from benchmarks import codecs
from benchmarks.messages import small


def test_the_parse_step_decodes_the_numbers() -> None:
    """The lower bound of JSON is parsing down to the numbers: 16 of them, in 8 bytes each."""
    steps = codecs._parse_step(small())
    assert steps is not None
    assert 16 * 8 == steps["decode"]()
    assert 16 * 8 == steps["decode"]()
