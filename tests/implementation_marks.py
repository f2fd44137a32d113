"""Tests of what only some implementations offer: they are left out on the others.

A test names what it needs: `@pytest.mark.needs("half_close")`. The table of
`gateway.transports.implementations` says which implementation has it. Where the test would run on
one without it, by a parameter or by the environment of a suite, it is deselected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gateway.transports.implementations import REFERENCE_LIMITATIONS

SIDES = {each.name: each.side for each in REFERENCE_LIMITATIONS}
_SUITES = ("HOSTILE_TRANSPORT", "INTEROP_TRANSPORT")


def is_unavailable(item: pytest.Item) -> bool:
    """Return whether *item* needs what its implementation does not offer."""
    marks = list(item.iter_markers("needs"))
    names = [name for mark in marks for name in mark.args]
    return any(_runs_on_reference(item, SIDES[name]) for name in names)


def _runs_on_reference(item: pytest.Item, side: str) -> bool:
    for place, suite in zip(("hostile", "interop"), _SUITES, strict=True):
        if f"tests/{place}/" in item.nodeid and os.environ.get(suite) == "reference":
            return True
    return any(_names_reference(value, side) for value in _values(item))


def _values(item: pytest.Item) -> Iterator[object]:
    callspec = getattr(item, "callspec", None)
    yield from () if callspec is None else callspec.params.values()


def _names_reference(value: object, side: str) -> bool:
    """Return whether a parameter puts the reference implementation on *side*.

    A pair has the implementations of the server and of the client.
    """
    if isinstance(value, tuple) and value and value[0] in ("native", "reference"):
        return bool(value[-1 if side.endswith("client") else 0] == "reference")
    return value == "reference"
