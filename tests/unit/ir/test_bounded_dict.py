"""A dictionary that drops its oldest entries."""

from __future__ import annotations

from gateway.ir.bounded_dict import BoundedDict


def test_a_new_key_replaces_the_oldest_entry() -> None:
    """An assignment to an existing key makes its entry the newest, and drops none."""
    entries: BoundedDict[str, int] = BoundedDict(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        entries[key] = value
    assert [("a", 3), ("c", 4)] == list(entries.items())


def test_a_value_of_none_is_an_entry() -> None:
    """A key whose value is None is not counted twice."""
    entries: BoundedDict[str, None] = BoundedDict(2)
    for key in ("a", "b", "b", "a"):
        entries[key] = None
    assert ["b", "a"] == list(entries)
